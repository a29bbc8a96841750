"""A small HTTP server for a published model, for smoke tests and demos: `trainyard serve`, and the last check of the export job.

It speaks TensorFlow Serving's REST form and follows an alias without a restart. It is no replacement for TensorFlow Serving: it
has no batching of requests, no gRPC, no TLS and no login, which is why it listens on this machine alone unless told otherwise.

    GET  /                                              a page: drop a picture, see the prediction
    GET  /health                                        200 when a model is loaded, 503 before
    GET  /v1/models/NAME[/versions/N|/labels/ALIAS]             state
    GET  /v1/models/NAME[/versions/N|/labels/ALIAS]/metadata    signatures
    POST /v1/models/NAME[/versions/N|/labels/ALIAS]:predict
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import re
import signal
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pipeline_ops.contracts.registry import Registry
from pipeline_ops.contracts.scratch import own_temporary_folder
from pipeline_ops.export.follow import AliasSource, Follower, LoadedModel
from pipeline_ops.export.rest import BadRequest, answer, parse_question

_MAX_BODY_BYTES = 64 << 20
_SILENCE_SECONDS = 60
_PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?(?P<verb>:\w+|/metadata)?")
_HERE = Path(__file__).parent
_STATIC = {"/": ("text/html; charset=utf-8", [_HERE / "serve.html"]), "/serve.js": ("text/javascript; charset=utf-8", [_HERE / "serve.js"]),
           "/page.css": ("text/css; charset=utf-8", [_HERE.parent / "contracts" / "page.css", _HERE / "serve.css"])}
_PAGE_POLICY = ("default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; img-src blob:; connect-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What goes back."""

    status: int
    content: bytes
    type: str = "application/json"


class Service:
    """What is served, whatever the transport: a path and a body to an answer."""

    def __init__(self, name: str, alias: str, follower: Follower):
        self.name, self.alias, self.follower = name, alias, follower

    def get(self, path: str) -> Answer:
        if path in _STATIC:
            kind, files = _STATIC[path]
            return Answer(HTTPStatus.OK, b"".join(file.read_bytes() for file in files), kind)
        if path == "/health":
            return self._health()
        if path == "/page.json":
            model = self._loaded()
            return _json({"name": self.name, "alias": self.alias, "version": model.number, "class_names": model.class_names})
        match = self._match(path)
        if match["verb"] == "/metadata":
            model = self._model(match)
            spec = {"name": self.name, "signature_name": "", "version": str(model.number)}
            return _json({"model_spec": spec, "metadata": {"signature_def": {"signature_def": model.signature_def}}})
        if match["verb"]:
            raise BadRequest(f"{match['verb']} must be asked with POST", HTTPStatus.METHOD_NOT_ALLOWED)
        return self._state(match)

    def post(self, path: str, body: bytes) -> Answer:
        match = self._match(path)
        if match["verb"] != ":predict":
            raise BadRequest(f"only :predict is served, got {match['verb'] or 'nothing'}", HTTPStatus.NOT_IMPLEMENTED)
        model = self._model(match)
        question = parse_question(body, model.signatures)
        try:
            outputs = model.ask(question.signature, question.inputs)
        except ValueError as error:
            raise BadRequest(f"the model can't take this: {error}") from None
        return _json(answer(outputs, question.is_row))

    def _health(self) -> Answer:
        model = self.follower.model
        value = {"status": "ok" if model else "loading", "version": model.number if model else None, "problem": self.follower.problem}
        return _json(value, HTTPStatus.OK if model else HTTPStatus.SERVICE_UNAVAILABLE)

    def _state(self, match: re.Match) -> Answer:
        if self.follower.model is None:
            status = {"error_code": "UNKNOWN" if self.follower.problem else "OK", "error_message": self.follower.problem}
            return _json({"model_version_status": [{"version": match["version"] or "0", "state": "LOADING", "status": status}]})
        number = self._model(match).number
        return _json({"model_version_status": [{"version": str(number), "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}]})

    def _match(self, path: str) -> re.Match:
        match = _PATH.fullmatch(path)
        if match is None:
            raise BadRequest(f"Malformed request: {path}", HTTPStatus.NOT_FOUND)
        if match["name"] != self.name:
            raise BadRequest(f"there is no model {match['name']} here; there is {self.name}", HTTPStatus.NOT_FOUND)
        if match["label"] and match["label"] != self.alias:
            raise BadRequest(f"the label {match['label']} is not served; {self.alias} is", HTTPStatus.NOT_FOUND)
        return match

    def _model(self, match: re.Match) -> LoadedModel:
        model = self._loaded()
        if match["version"] and int(match["version"]) != model.number:
            raise BadRequest(f"version {match['version']} is not loaded; version {model.number} is", HTTPStatus.NOT_FOUND)
        return model

    def _loaded(self) -> LoadedModel:
        if model := self.follower.model:
            return model
        raise BadRequest(f"no model is loaded yet{': ' if self.follower.problem else ''}{self.follower.problem}", HTTPStatus.SERVICE_UNAVAILABLE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "trainyard", ""
    timeout = _SILENCE_SECONDS
    service: Service

    def do_GET(self) -> None:
        self._send(self._answered(lambda: self.service.get(self.path.partition("?")[0])))

    def do_POST(self) -> None:
        self._send(self._answered(lambda: self.service.post(self.path.partition("?")[0], self._body())))

    def _answered(self, ask) -> Answer:
        try:
            return ask()
        except BadRequest as error:
            return _json({"error": str(error)}, error.status)
        except Exception:  # the one who asks is not told our inner life; the log is
            logging.getLogger(__name__).exception("%s %s", self.command, self.path)
            return _json({"error": "internal error; the server's log says more"}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise BadRequest("Content-Length is needed", HTTPStatus.LENGTH_REQUIRED)
        if int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            raise BadRequest(f"the body may have {_MAX_BODY_BYTES} bytes at most", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return self.rfile.read(int(length))

    def _send(self, sent: Answer) -> None:
        self.send_response(sent.status)
        self.send_header("Content-Type", sent.type)
        self.send_header("Content-Length", str(len(sent.content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if sent.type.startswith("text/html"):
            self.send_header("Content-Security-Policy", _PAGE_POLICY)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(sent.content)

    def log_message(self, *_: Any) -> None:
        """A line for each request is for a proxy to write."""


def make_server(host: str, port: int, service: Service) -> ThreadingHTTPServer:
    """Listens when this returns; port 0 takes a free one."""
    return ThreadingHTTPServer((host, port), type("Handler", (_Handler,), {"service": service}))


def _json(value: Any, status: int = HTTPStatus.OK) -> Answer:
    return Answer(status, json.dumps(value, allow_nan=True).encode())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="the place of a model in a registry")
    parser.add_argument("--name", required=True, help="what the model is called in requests")
    parser.add_argument("--alias", default="champion", help="which version, by alias or number")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8501)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the folder of copies goes with the server
    with own_temporary_folder("serve") as folder:
        return _serve(arguments, Follower(AliasSource(Registry(arguments.model), arguments.alias, folder / "copies")))


def _serve(arguments: argparse.Namespace, follower: Follower) -> int:
    try:
        server = make_server(arguments.host, arguments.port, Service(arguments.name, arguments.alias, follower))
    except OSError as error:
        print(f"can't listen on {arguments.host}:{arguments.port}: {error.strerror}; name another port with --port", file=sys.stderr)
        return 1
    print(f"http://{arguments.host}:{server.server_port}/", flush=True)
    follower.start()
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
