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

from pipeline_ops.export.serving.model_reloader import FixedModel, LoadedModel, ModelReloader
from pipeline_ops.export.serving.rest import BadRequest, format_response, parse_predict_request

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
class HttpResponse:
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

    def __init__(self, name: str, alias: str, reloader: ModelReloader | FixedModel):
        self.name, self.alias, self.reloader = name, alias, reloader
        self._parse_lock = threading.Lock()

    def get(self, path: str) -> HttpResponse:
        if path in _STATIC:
            kind, files = _STATIC[path]
            return HttpResponse(HTTPStatus.OK, b"".join(file.read_bytes() for file in files), kind)
        if path == "/health":
            return self._report_health()
        if path == "/page.json":
            model = self._require_model()
            return to_json_response(
                {
                    "name": self.name,
                    "alias": self.alias,
                    "version": model.number,
                    "class_names": model.class_names,
                }
            )
        match = self._match_path(path)
        if match["verb"] == "/metadata":
            model = self._find_model(match)
            spec = {"name": self.name, "signature_name": "", "version": str(model.number)}
            return to_json_response(
                {
                    "model_spec": spec,
                    "metadata": {"signature_def": {"signature_def": model.signature_def}},
                }
            )
        if match["verb"]:
            raise BadRequest(f"{match['verb']} needs a POST request", HTTPStatus.METHOD_NOT_ALLOWED)
        return self._report_state(match)

    def post(self, path: str, body: bytes | bytearray) -> HttpResponse:
        match = self._match_path(path)
        if match["verb"] != ":predict":
            raise BadRequest(
                f"only :predict is served, got {match['verb'] or 'nothing'}",
                HTTPStatus.NOT_IMPLEMENTED,
            )
        model = self._find_model(match)
        with self._parse_lock:  # JSON as Python objects takes ten times the memory of the body
            request = parse_predict_request(body, model.signatures)
        try:
            outputs = model.call_signature(request.signature, request.inputs)
        except ValueError as error:
            raise BadRequest(f"the model cannot process this: {error}") from None
        return to_json_response(format_response(outputs, request.is_row))

    def _report_health(self) -> HttpResponse:
        model = self.reloader.model
        value = {
            "status": "ok" if model else "loading",
            "version": model.number if model else None,
            "problem": self.reloader.problem,
        }
        return to_json_response(value, HTTPStatus.OK if model else HTTPStatus.SERVICE_UNAVAILABLE)

    def _report_state(self, match: re.Match[str]) -> HttpResponse:
        model, problem = None, ""
        if self.reloader.model:
            model = self._find_model(match)
        else:
            problem = self.reloader.problem
        state = {
            "version": str(model.number) if model else match["version"] or "0",
            "state": "AVAILABLE" if model else "LOADING",
            "status": {"error_code": "UNKNOWN" if problem else "OK", "error_message": problem},
        }
        return to_json_response({"model_version_status": [state]})

    def _match_path(self, path: str) -> re.Match[str]:
        match = _PATH.fullmatch(path)
        if match is None:
            raise BadRequest(f"Malformed request: {path}", HTTPStatus.NOT_FOUND)
        if match["name"] != self.name:
            raise BadRequest(
                f"there is no model {match['name']} on this server, only {self.name}",
                HTTPStatus.NOT_FOUND,
            )
        if match["label"] and match["label"] != self.alias:
            raise BadRequest(
                f"the label {match['label']} is not served, only {self.alias}",
                HTTPStatus.NOT_FOUND,
            )
        return match

    def _find_model(self, match: re.Match[str]) -> LoadedModel:
        model = self._require_model()
        if match["version"] and int(match["version"]) != model.number:
            raise BadRequest(
                f"version {match['version']} is not loaded, only version {model.number}",
                HTTPStatus.NOT_FOUND,
            )
        return model

    def _require_model(self) -> LoadedModel:
        if model := self.reloader.model:
            return model
        reason = f": {self.reloader.problem}" if self.reloader.problem else ""
        raise BadRequest(f"no model is loaded yet{reason}", HTTPStatus.SERVICE_UNAVAILABLE)


def to_json_response(value: Any, status: int = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(status, json.dumps(value, allow_nan=True).encode())
