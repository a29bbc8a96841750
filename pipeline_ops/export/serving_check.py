"""The last check before a version is published: asks the server of `trainyard serve` over HTTP.

The answers must be those of training. The server runs in threads of the export job's own process,
which has never built the model, and has the SavedModel that the other checks have loaded. A
separate process would cost another import of TensorFlow, as much CPU as all the rest of an export,
and find nothing more.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pipeline_ops.config.export import Export
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.export.check import AgreementRule, References, compare
from pipeline_ops.export.serving.model_reloader import LoadedModel, StillModel
from pipeline_ops.export.serving.server import Server
from pipeline_ops.export.serving.service import Service

_ANSWER_SECONDS = 60.0
_NUM_ASKED = 16


def check_serving(folder: Path, references: References, config: Export) -> None:
    """Requests predictions for some of the references, in rows and in columns.

    Raises:
      DataError: the version can't be loaded, or the answers are not those of the trained model.
      MachineError: the server did not answer.
    """
    asked = [{"b64": base64.b64encode(image).decode()} for image in references.encoded[:_NUM_ASKED]]
    path = f"/v1/models/{config.model}:predict"
    with _server(LoadedModel(1, folder, [], references.model.loaded), config.model) as place:
        rows = _ask(place, path, {"instances": asked})["predictions"]
        columns = _ask(place, path, {"inputs": {"image_bytes": asked}})["outputs"]
    for answer in ({name: [row[name] for row in rows] for name in rows[0]}, columns):
        compare(
            references.outputs[:_NUM_ASKED],
            references.packed(answer),
            AgreementRule.of("saved_model", config),
            "what a server answers with",
        )


@contextlib.contextmanager
def _server(loaded: LoadedModel, model: str) -> Iterator[str]:
    """Yields the path of the socket on which a server of that model answers.

    Only this user can open its folder, so the check opens no port.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="serving-check-"))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        place = f"/proc/self/fd/{descriptor}/socket"  # a socket's path has 107 bytes at most
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(place)
        listener.listen()
        server = Server(listener, Service(model, "staged", StillModel(loaded)))
        thread = threading.Thread(target=server.run, name="serving check")
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.stop)
        yield place


class _Connection(http.client.HTTPConnection):
    """A connection to a server behind a socket of the Unix domain."""

    def __init__(self, place: str):
        super().__init__("localhost", timeout=_ANSWER_SECONDS)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._place)


def _ask(place: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        with contextlib.closing(_Connection(place)) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            reply = connection.getresponse()
            content = reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise MachineError(f"the server for the last check did not answer: {error}") from error
    if reply.status != HTTPStatus.OK:
        raise DataError(
            f"a server refuses the reference examples: {content.decode(errors='replace')}; "
            "nothing was published"
        )
    return json.loads(content)
