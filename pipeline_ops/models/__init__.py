"""The model catalogue: one file per model, named as in the YAML, with `build(image_shape, num_classes)`.

A model takes float32 images in 0..255, shape [batch, height, width, channels], scales them itself, and returns logits
[batch, num_classes] in float32.
"""

from __future__ import annotations

import importlib
import pkgutil

from pipeline_ops.contracts.config_text import nearest
from pipeline_ops.contracts.errors import ConfigError

_NOT_MODELS = ("classification",)


def catalogue() -> list[str]:
    """The names that `train.model` may have. Imports nothing."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_MODELS)


def builder(name: str):
    """The `build` function of a model. Raises ConfigError with the nearest name."""
    if name not in catalogue():
        raise ConfigError(f"train.model: there is no model {name!r}; {nearest(name, catalogue())}")
    return importlib.import_module(f"{__name__}.{name}").build
