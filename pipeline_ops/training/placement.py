"""Layers on named devices: a model too large for one device is spread over several of one worker, layer by layer.

`train.placement` maps patterns of layer names to devices. A layer's variables are made on its device, its optimizer's
slots lie beside them, and it computes there; TensorFlow moves what goes from one layer to the next.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.name_scope import current_path  # where in the model a variable is being made; keras is pinned

from pipeline_ops.errors import ConfigError


def device_of(layer: str, placement: Mapping[str, str]) -> str | None:
    """The device of the first pattern that matches a layer's name."""
    return next((device for pattern, device in placement.items() if fnmatch.fnmatchcase(layer, pattern)), None)


@contextlib.contextmanager
def variables_on_devices(placement: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, variables are made on the devices of the layers that they belong to.

    Raises:
      ConfigError: there is no such device.
    """
    known = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    if unknown := [device for device in placement.values() if device.strip("/").upper() not in known]:
        raise ConfigError(f"train.placement: there is no device {', '.join(unknown)}; this worker has {', '.join(known)} (train.devices_per_worker)")

    def create(next_creator: Any, **options: Any) -> tf.Variable:
        layers = reversed((current_path() or "").split("/"))
        device = next((device for layer in layers if (device := device_of(layer, placement))), None)
        with tf.device(device):
            return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def compute_on_devices(model: keras.Model, placement: Mapping[str, str]) -> None:
    """Lets every layer of a model that has a device compute there.

    Raises:
      ConfigError: a pattern matches no layer.
    """
    layers = list(model._flatten_layers(include_self=False))
    for layer in layers:
        if device := device_of(layer.name, placement):
            layer.call = _on(device, layer.call)
    names = [layer.name for layer in layers]
    if unused := [pattern for pattern in placement if not fnmatch.filter(names, pattern)]:
        raise ConfigError(f"train.placement: no layer matches {', '.join(unused)}; the layers are {', '.join(names)}")


def _on(device: str, call: Any) -> Any:
    def call_there(*arguments: Any, **options: Any) -> Any:
        with tf.device(device):
            return call(*arguments, **options)

    return call_there
