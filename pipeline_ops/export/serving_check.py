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
import socket
import tempfile
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.config.export import Export
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.export.check import AgreementRule, References, compare
from pipeline_ops.export.serving.model_reloader import FixedModel, LoadedModel
from pipeline_ops.export.serving.server import Server
from pipeline_ops.export.serving.service import Service
from pipeline_ops.storage.local_files import open_folder

_RESPONSE_TIMEOUT_SECONDS = 60.0
_NUM_CHECKED = 16


def check_serving(folder: Path, references: References, config: Export) -> None:
    """Requests predictions for some of the references, in rows and in columns.

    Raises:
      DataError: the version cannot be loaded, or the answers are not those of the trained model.
      MachineError: the server did not answer.
    """
    images = [
        {"b64": base64.b64encode(image).decode()} for image in references.encoded[:_NUM_CHECKED]
    ]
    path = f"/v1/models/{config.model}:predict"
    model = LoadedModel(1, folder, [], references.model.loaded)
    with _run_server(model, config.model) as socket_path:
        rows = _predict(socket_path, path, {"instances": images})["predictions"]
        columns = _predict(socket_path, path, {"inputs": {"image_bytes": images}})["outputs"]
    for found in ({name: [row[name] for row in rows] for name in rows[0]}, columns):
        predictions = {name: np.array(values) for name, values in found.items()}
        compare(
            references.outputs[:_NUM_CHECKED],
            references.pack(predictions),
            AgreementRule.for_format("saved_model", config),
            "the model behind a server",
        )


@contextlib.contextmanager
def _run_server(loaded: LoadedModel, model: str) -> Iterator[str]:
    """Yields the path of the socket on which a server of that model answers.

    Only this user can open its folder, so the check opens no port.
    """
    with (
        tempfile.TemporaryDirectory(prefix="serving-check-") as folder,
        open_folder(Path(folder)) as descriptor,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        socket_path = f"/proc/self/fd/{descriptor}/socket"  # a socket's path has 107 bytes at most
        listener.bind(socket_path)
        listener.listen()
        server = Server(listener, Service(model, "staged", FixedModel(loaded)))
        thread = threading.Thread(target=server.run, name="serving check")
        thread.start()
        try:
            yield socket_path
        finally:
            server.stop()
            thread.join()


def _predict(socket_path: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(_RESPONSE_TIMEOUT_SECONDS)
            connected.connect(socket_path)
            connection = http.client.HTTPConnection("localhost")
            connection.sock = connected  # so it connects to no port
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise MachineError(
            f"the server of the last check did not answer: {error}. Retry."
        ) from error
    if response.status != HTTPStatus.OK:
        raise DataError(
            f"a server refuses the reference examples: {content.decode(errors='replace')}. "
            "Nothing was published."
        )
    value: dict[str, Any] = json.loads(content)
    return value
