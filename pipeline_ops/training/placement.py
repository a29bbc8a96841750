"""Layers on named devices: a large model is spread over several devices of one worker.

`train.placement` maps patterns of layer names to devices. A layer's variables and its optimizer
slots are created on its device, and the layer computes there. TensorFlow copies the tensors between
layers.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import keras
import tensorflow as tf

from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import get_creation_path, list_layers

_Value = TypeVar("_Value")


def find_match(name: str, by_pattern: Mapping[str, _Value]) -> _Value | None:
    """Returns the value of the first pattern that matches a name."""
    matches = (value for pattern, value in by_pattern.items() if fnmatch.fnmatchcase(name, pattern))
    return next(matches, None)


def find_unmatched(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the patterns that match no name."""
    names = list(names)
    return [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]


@contextlib.contextmanager
def place_variables(placement: Mapping[str, str]) -> Iterator[None]:
    """Creates variables on the devices of their layers while the block runs."""
    known = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    asked = placement.values()
    if unknown := [device for device in asked if device.strip("/").upper() not in known]:
        raise ConfigError(
            f"train.placement: there is no device {', '.join(unknown)}. "
            f"This worker has {', '.join(known)} (train.devices_per_worker)."
        )

    def create(next_creator: Any, **options: Any) -> tf.Variable:
        layers = reversed((get_creation_path() or "").split("/"))
        devices = filter(None, (find_match(layer, placement) for layer in layers))
        with tf.device(next(devices, None)):
            return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def place_layers(model: keras.Model, placement: Mapping[str, str]) -> None:
    """Makes every layer that has a device compute there."""
    layers = list_layers(model)
    for layer in layers:
        if device := find_match(layer.name, placement):
            layer.call = functools.partial(_call_on_device, device, layer.call)
    names = [layer.name for layer in layers]
    if unused := find_unmatched(placement, names):
        raise ConfigError(
            f"train.placement: no layer matches {', '.join(unused)}. "
            f"The layers are {', '.join(names)}."
        )


def _call_on_device(device: str, call: Any, *arguments: Any, **options: Any) -> Any:
    with tf.device(device):
        return call(*arguments, **options)
