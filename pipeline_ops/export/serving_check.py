"""The last check before a version is published: asks the server of `trainyard serve` over HTTP.

The answers must be those of training. The server runs in threads of the export job's own process,
which has never built the model, and has the SavedModel that the other checks have loaded. A
separate process would cost another import of TensorFlow, as much CPU as all the rest of an export,
and find nothing more.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
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
    with _server(LoadedModel(1, folder, [], references.model.loaded), config.model) as address:
        rows = _ask(address, {"instances": asked})["predictions"]
        columns = _ask(address, {"inputs": {"image_bytes": asked}})["outputs"]
    for answer in ({name: [row[name] for row in rows] for name in rows[0]}, columns):
        compare(
            references.outputs[:_NUM_ASKED],
            references.packed(answer),
            AgreementRule.of("saved_model", config),
            "what a server answers with",
        )


@contextlib.contextmanager
def _server(loaded: LoadedModel, model: str) -> Iterator[str]:
    """Yields the predict address of a server of that model."""
    server = Server("127.0.0.1", 0, Service(model, "staged", StillModel(loaded)))
    thread = threading.Thread(target=server.run, name="serving check")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/v1/models/{model}:predict"
    finally:
        server.stop()
        thread.join()


def _ask(address: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({})
    )  # the environment's proxy is not for loopback
    try:
        with opener.open(request, timeout=_ANSWER_SECONDS) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        raise DataError(
            f"a server refuses the reference examples: {error.read().decode(errors='replace')}; "
            "nothing was published"
        ) from None
    except OSError as error:
        raise MachineError(f"the server for the last check did not answer: {error}") from error
