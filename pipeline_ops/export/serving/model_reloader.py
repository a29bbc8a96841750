"""Loads the version that a server has: an alias of a registry, or one fixed folder.

A new version is loaded next to the old one and replaces it at once. Requests that are under way end
on the version they began with. If the new version cannot be loaded, the old one stays, and
`problem` has the reason.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pipeline_ops.artifacts.manifest import NAME, read_manifest
from pipeline_ops.artifacts.results import ModelFigures
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.export.serving.rest import Spec
from pipeline_ops.input.tensorflow_start import import_tensorflow
from pipeline_ops.registry.minisign import PublicKey
from pipeline_ops.registry.registry import Registry, Version
from pipeline_ops.storage.atomic import remove_own, staging_folder
from pipeline_ops.storage.object_store import is_remote
from pipeline_ops.storage.read_errors import reason_of, unreadable

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class AliasSource:
    """The version that an alias names, or a version that is given by its number."""

    registry: Registry
    alias: str
    cache: Path
    key: PublicKey | None = None
    """The key that versions must be signed with. Others are refused.

    Signed versions are served from a copy that was verified while it was made.
    """

    @property
    def poll_seconds(self) -> float:
        return 10.0 if is_remote(str(self.registry.place)) else 1.0

    def number(self) -> int:
        if self.alias.isdecimal():
            return self.registry.version(int(self.alias)).number
        if version := self.registry.aliased(self.alias):
            return version.number
        raise ConfigError(f"{self.registry.place}: no version has the alias {self.alias}")

    def folder(self, number: int) -> tuple[Path, list[str]]:
        version = self.registry.version(number)
        local = version.fetch(self.cache) if self.key is None else self._verified(version)
        try:
            return local, ModelFigures.model_validate(
                read_manifest(local / NAME).figures
            ).class_names
        except ValidationError as error:
            raise DataError(
                f"{version.uri}: its figures are not those of a published model "
                f"({error.error_count()} errors)"
            ) from None

    def _verified(self, version: Version) -> Path:
        copies = self.cache / "verified"
        remove_own(copies)
        with staging_folder(copies / str(version.number)) as staging:
            version.copy(staging, self.cache, self.key)
        return copies / str(version.number)


class LoadedModel:
    """A SavedModel with any signatures, ready for requests.

    Args:
      number: the number of the version.
      folder: the SavedModel.
      class_names: the names of its classes, empty if they are unknown.
      loaded: the result of `tf.saved_model.load` for the folder, if it is already there.

    Raises:
      DataError: the SavedModel cannot be loaded.
    """

    def __init__(self, number: int, folder: Path, class_names: list[str], loaded: Any = None):
        tf = import_tensorflow()
        self.number, self.class_names = number, class_names
        try:
            self._model = loaded or tf.saved_model.load(str(folder))
            self.signature_def = _signature_def(folder)
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise unreadable(f"{folder}: can't be loaded as a SavedModel", error) from error
        self.signatures = {
            name: _specs(function) for name, function in self._model.signatures.items()
        }

    def ask(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature.

        Raises:
          ValueError: the model itself cannot process the inputs, such as bytes that are not an
            image.
        """
        tf = import_tensorflow()
        tensors = {
            name: tf.constant(value.tolist() if value.dtype == object else value)
            for name, value in inputs.items()
        }
        try:
            outputs = self._model.signatures[signature](**tensors)
        except tf.errors.OpError as error:
            raise ValueError(reason_of(error)) from error
        return {name: output.numpy() for name, output in sorted(outputs.items())}


@dataclasses.dataclass(frozen=True)
class StillModel:
    """A fixed model in place of a follower."""

    model: LoadedModel
    problem: str = ""


class Follower(threading.Thread):
    """Loads the version that an alias names, and polls for changes.

    `model` is None until the first version is loaded. `problem` says why there is none, or no newer
    one.
    """

    def __init__(self, source: AliasSource):
        super().__init__(name="follower", daemon=True)
        self.model: LoadedModel | None = None
        self.problem = ""
        self._source, self._stop_asked = source, threading.Event()

    def run(self) -> None:
        while True:
            try:
                self._follow()
                self.problem = ""
            except (
                Exception
            ) as error:  # the loaded version stays in service; the next poll may succeed
                if str(error) != self.problem:
                    _log.warning("%s", error)
                self.problem = str(error) or type(error).__name__
            if self._stop_asked.wait(self._source.poll_seconds):
                return

    def stop(self) -> None:
        self._stop_asked.set()

    def _follow(self) -> None:
        number = self._source.number()
        if self.model is None or self.model.number != number:
            self.model = LoadedModel(number, *self._source.folder(number))
            _log.info("version %d is loaded", number)


def _specs(function: Any) -> dict[str, Spec]:
    return {
        name: Spec(np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape.as_list()))
        for name, spec in function.structured_input_signature[1].items()
    }


def _signature_def(folder: Path) -> dict[str, Any]:
    """Returns the signatures as in TensorFlow Serving's metadata."""
    from google.protobuf import json_format
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    return {
        name: json_format.MessageToDict(
            signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        for name, signature in saved_model.meta_graphs[0].signature_def.items()
    }
