"""Loads the model of a server, follows its alias in the registry, and answers predict requests.

A new version is loaded next to the old one and replaces it at once. Requests that are under way end
on the version they began with. If the new version cannot be loaded, the old one stays, and
`problem` has the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pipeline_ops.contract.manifest import NAME, read_manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.served import contract
from pipeline_ops.served.http.rest import BadRequest, format_predictions, parse_files
from pipeline_ops.served.preprocessing import Preprocessing
from pipeline_ops.served.requests import ServerStatistics, ToInput
from pipeline_ops.storage.open_store import is_remote
from pipeline_ops.storage.read_errors import make_read_error, summarize_error
from pipeline_ops.system.disk_cache import release_entry

_log = logging.getLogger(__name__)
_parse_lock = threading.Lock()


class LoadedModel:
    """A SavedModel that answers image files.

    `number` is the version. `class_names` is empty if the names are unknown. `loaded` is the result
    of `tf.saved_model.load` for the folder, if it is already there. Raises DataError if the
    SavedModel cannot be loaded, or takes no files.
    """

    def __init__(self, number: int, folder: Path, class_names: list[str], loaded: Any = None):
        from pipeline_ops.input.tensorflow_start import tf

        self.number, self.class_names = number, class_names
        try:
            self._signatures = (loaded or tf.saved_model.load(str(folder))).signatures
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise make_read_error(f"cannot load {folder} as a SavedModel", error) from error
        self.to_input: ToInput | None = (
            self._decode if contract.DECODE in self._signatures else None
        )
        """Returns an image as the model gets it. None if only the client can prepare it."""
        self._preprocessing = Preprocessing.read(folder)
        self._prepares = bool(self._preprocessing.client_stages)
        if self._prepares:  # for the callers of this server
            self._preprocessing.check_code()
            return
        inputs = list(self._signatures[contract.SERVING_DEFAULT].structured_input_signature[1])
        if inputs != [contract.IMAGE_BYTES]:
            raise DataError(
                f"{folder}: the signature {contract.SERVING_DEFAULT} takes {', '.join(inputs)}, "
                f"and the server sends {contract.IMAGE_BYTES}"
            )

    def answer(self, files: Sequence[bytes]) -> dict[str, np.ndarray]:
        """Returns the outputs for image files. Raises ValueError for a file that is refused."""
        if self._prepares:
            return self._call(contract.IMAGES, images=self._prepare(files))
        return self._call(contract.SERVING_DEFAULT, image_bytes=list(files))

    def _decode(self, file: bytes) -> np.ndarray:
        image: np.ndarray = self._call(contract.DECODE, image_bytes=[file])["images"][0]
        return image

    def _call(self, signature: str, **inputs: Any) -> dict[str, np.ndarray]:
        from pipeline_ops.input.tensorflow_start import tf

        try:
            tensors = {name: tf.constant(value) for name, value in inputs.items()}
            outputs = self._signatures[signature](**tensors)
        except tf.errors.OpError as error:
            raise ValueError(summarize_error(error)) from error
        return {name: output.numpy() for name, output in sorted(outputs.items())}

    def _prepare(self, files: Sequence[bytes]) -> np.ndarray:
        """Does the client's preprocessing. Returns float32 [N, H, W, C].

        Raises ValueError for a file that a stage rejects, or makes several images of.
        """
        try:
            images = [self._preprocessing.prepare(file) for file in files]
        except DataError as error:
            raise ValueError(str(error)) from None
        if any(len(each) != 1 for each in images):
            raise ValueError("a stage makes several images of one, which only the client can do")
        return np.concatenate(images).astype(np.float32)


def predict(
    model: LoadedModel, body: bytes | bytearray, statistics: ServerStatistics | None = None
) -> dict[str, Any]:
    """Answers a predict request in TensorFlow Serving's REST form. Threads may call it at once.

    `statistics` counts the request. Raises BadRequest if the client must change the request.
    """
    with _parse_lock:  # JSON as Python objects takes ten times the memory of the body
        files = parse_files(body)
    try:
        outputs = model.answer(files)
    except ValueError as error:
        raise BadRequest(f"the model cannot process this: {error}") from None
    if statistics:
        statistics.add(model, files, outputs)
    return format_predictions(outputs)


class ModelReloader(threading.Thread):
    """Loads the version that an alias or a number names, and polls for changes of the alias.

    `model` is None until the first version is loaded. `problem` is the reason for no model, or for
    no newer one.
    """

    def __init__(self, registry: Registry, alias: str):
        super().__init__(name="reloader", daemon=True)
        self.model: LoadedModel | None = None
        self.problem = ""
        self._registry, self._alias, self._stop_requested = registry, alias, threading.Event()

    def run(self) -> None:
        poll_seconds = 10.0 if is_remote(str(self._registry.location)) else 1.0
        while True:
            try:
                self._reload()
                self.problem = ""
            # The loaded version stays in service. The next poll may succeed.
            except Exception as error:
                if str(error) != self.problem:
                    _log.warning("%s", error)
                self.problem = str(error) or type(error).__name__
            if self._stop_requested.wait(poll_seconds):
                return

    def stop(self) -> None:
        self._stop_requested.set()

    def _reload(self) -> None:
        if self._alias.isdecimal():
            version = self._registry.get_version(int(self._alias))
        elif found := self._registry.find_by_alias(self._alias):
            version = found
        else:
            raise ConfigError(f"{self._registry.location}: no version has the alias {self._alias}")
        if self.model and self.model.number == version.number:
            return
        folder = version.fetch()
        try:
            figures = ModelFigures.model_validate(read_manifest(folder / NAME).figures)
            self.model = LoadedModel(version.number, folder, figures.class_names)
        except ValidationError as error:
            raise DataError(
                f"{version.uri}: the manifest does not have the figures of a published model "
                f"({error.error_count()} errors). Promote another version."
            ) from None
        finally:
            release_entry(folder)  # a loaded model needs no files
        _log.info("version %d is loaded", version.number)
