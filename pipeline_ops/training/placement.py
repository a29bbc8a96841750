"""Layers on named devices: a large model is spread over several devices of one worker.

`train.placement` maps patterns of layer names to devices. A layer's variables and its optimizer
slots are created on its device, and the layer computes there. TensorFlow copies the tensors between
layers.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.name_scope import (
    current_path,  # the path of the variable being created; Keras is pinned
)

from pipeline_ops.errors import ConfigError


def device_of(layer: str, placement: Mapping[str, str]) -> str | None:
    """The device of the first pattern that matches a layer's name."""
    return next(
        (device for pattern, device in placement.items() if fnmatch.fnmatchcase(layer, pattern)),
        None,
    )


@contextlib.contextmanager
def variables_on_devices(placement: Mapping[str, str]) -> Iterator[None]:
    """Creates variables on the devices of their layers while the block runs.

    Raises:
      ConfigError: A device does not exist.
    """
    known = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    if unknown := [
        device for device in placement.values() if device.strip("/").upper() not in known
    ]:
        raise ConfigError(
            f"train.placement: there is no device {', '.join(unknown)}; "
            f"this worker has {', '.join(known)} (train.devices_per_worker)"
        )

    def create(next_creator: Any, **options: Any) -> tf.Variable:
        layers = reversed((current_path() or "").split("/"))
        device = next((device for layer in layers if (device := device_of(layer, placement))), None)
        with tf.device(device):
            return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def compute_on_devices(model: keras.Model, placement: Mapping[str, str]) -> None:
    """Makes every layer that has a device compute there.

    Raises:
      ConfigError: A pattern matches no layer.
    """
    layers = list(model._flatten_layers(include_self=False))
    for layer in layers:
        if device := device_of(layer.name, placement):
            layer.call = _on(device, layer.call)
    names = [layer.name for layer in layers]
    if unused := [pattern for pattern in placement if not fnmatch.filter(names, pattern)]:
        raise ConfigError(
            f"train.placement: no layer matches {', '.join(unused)}; "
            f"the layers are {', '.join(names)}"
        )


def _on(device: str, call: Any) -> Any:
    def call_there(*arguments: Any, **options: Any) -> Any:
        with tf.device(device):
            return call(*arguments, **options)

    return call_there
