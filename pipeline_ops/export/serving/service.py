"""The service of one model, for any transport: from a path and a body to an answer.

GET  /                                                    a page for predictions of a picture
GET  /health                                              200 when a model is loaded, 503 before
GET  /v1/models/NAME[/versions/N|/labels/ALIAS]           state
GET  /v1/models/NAME[/versions/N|/labels/ALIAS]/metadata  signatures
POST /v1/models/NAME[/versions/N|/labels/ALIAS]:predict
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pipeline_ops.export.serving.model_reloader import Follower, LoadedModel, StillModel
from pipeline_ops.export.serving.rest import BadRequest, answer, parse_question

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]{1,18})|/labels/(?P<label>[^/:]+))?"
    r"(?P<verb>:\w+|/metadata)?"
)
_HERE = Path(__file__).parent
_STATIC = {
    "/": ("text/html; charset=utf-8", [_HERE / "page.html"]),
    "/page.js": ("text/javascript; charset=utf-8", [_HERE / "page.js"]),
    "/page.css": (
        "text/css; charset=utf-8",
        [_HERE.parents[1] / "pages" / "page.css", _HERE / "page.css"],
    ),
}


@dataclasses.dataclass(frozen=True)
class HttpAnswer:
    """The status, content and content type of a response."""

    status: int
    content: bytes
    type: str = "application/json"


class Service:
    """Answers requests for one model. Several threads may call its methods at once.

    Raises:
      BadRequest: each method, for a request that the client must change, or before a model is
        loaded.
    """

    def __init__(self, name: str, alias: str, follower: Follower | StillModel):
        self.name, self.alias, self.follower = name, alias, follower
        self._parsing = threading.Lock()

    def get(self, path: str) -> HttpAnswer:
        if path in _STATIC:
            kind, files = _STATIC[path]
            return HttpAnswer(HTTPStatus.OK, b"".join(file.read_bytes() for file in files), kind)
        if path == "/health":
            return self._health()
        if path == "/page.json":
            model = self._loaded()
            return as_json(
                {
                    "name": self.name,
                    "alias": self.alias,
                    "version": model.number,
                    "class_names": model.class_names,
                }
            )
        match = self._match(path)
        if match["verb"] == "/metadata":
            model = self._model(match)
            spec = {"name": self.name, "signature_name": "", "version": str(model.number)}
            return as_json(
                {
                    "model_spec": spec,
                    "metadata": {"signature_def": {"signature_def": model.signature_def}},
                }
            )
        if match["verb"]:
            raise BadRequest(
                f"{match['verb']} must be asked with POST", HTTPStatus.METHOD_NOT_ALLOWED
            )
        return self._state(match)

    def post(self, path: str, body: bytes) -> HttpAnswer:
        match = self._match(path)
        if match["verb"] != ":predict":
            raise BadRequest(
                f"only :predict is served, got {match['verb'] or 'nothing'}",
                HTTPStatus.NOT_IMPLEMENTED,
            )
        model = self._model(match)
        with self._parsing:  # JSON as Python objects takes ten times the memory of the body
            question = parse_question(body, model.signatures)
        try:
            outputs = model.ask(question.signature, question.inputs)
        except ValueError as error:
            raise BadRequest(f"the model can't take this: {error}") from None
        return as_json(answer(outputs, question.is_row))

    def _health(self) -> HttpAnswer:
        model = self.follower.model
        value = {
            "status": "ok" if model else "loading",
            "version": model.number if model else None,
            "problem": self.follower.problem,
        }
        return as_json(value, HTTPStatus.OK if model else HTTPStatus.SERVICE_UNAVAILABLE)

    def _state(self, match: re.Match) -> HttpAnswer:
        if self.follower.model is None:
            status = {
                "error_code": "UNKNOWN" if self.follower.problem else "OK",
                "error_message": self.follower.problem,
            }
            state = {"version": match["version"] or "0", "state": "LOADING", "status": status}
        else:
            status = {"error_code": "OK", "error_message": ""}
            state = {
                "version": str(self._model(match).number),
                "state": "AVAILABLE",
                "status": status,
            }
        return as_json({"model_version_status": [state]})

    def _match(self, path: str) -> re.Match:
        match = _PATH.fullmatch(path)
        if match is None:
            raise BadRequest(f"Malformed request: {path}", HTTPStatus.NOT_FOUND)
        if match["name"] != self.name:
            raise BadRequest(
                f"there is no model {match['name']} here; there is {self.name}",
                HTTPStatus.NOT_FOUND,
            )
        if match["label"] and match["label"] != self.alias:
            raise BadRequest(
                f"the label {match['label']} is not served; {self.alias} is", HTTPStatus.NOT_FOUND
            )
        return match

    def _model(self, match: re.Match) -> LoadedModel:
        model = self._loaded()
        if match["version"] and int(match["version"]) != model.number:
            raise BadRequest(
                f"version {match['version']} is not loaded; version {model.number} is",
                HTTPStatus.NOT_FOUND,
            )
        return model

    def _loaded(self) -> LoadedModel:
        if model := self.follower.model:
            return model
        reason = f": {self.follower.problem}" if self.follower.problem else ""
        raise BadRequest(f"no model is loaded yet{reason}", HTTPStatus.SERVICE_UNAVAILABLE)


def as_json(value: Any, status: int = HTTPStatus.OK) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(value, allow_nan=True).encode())
