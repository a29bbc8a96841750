"""The names that `train.model` may have, and what is known of each model without building it.

    model: digits_cnn                        an entry of this catalogue
    model: my_package.my_module:build        a function of the user's own

The code is in `pipeline_ops/models/`; this is what the config checks against, before any process starts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from pipeline_ops.contracts.config_text import nearest

_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True)
class CatalogueModel:
    """`module` is the file in `pipeline_ops/models/` with the function `build`; `parameters` are what the builder takes beside the shape of the
    images and the number of classes."""

    module: str
    parameters: tuple[str, ...] = ()
    has_batch_normalization: bool = False


def _backbone(*parameters: str, has_batch_normalization: bool = True) -> CatalogueModel:
    return CatalogueModel("backbones", (*parameters, "weights", "dropout"), has_batch_normalization)


CATALOGUE: Mapping[str, CatalogueModel] = {
    "digits_cnn": CatalogueModel("digits_cnn"),
    "dense": CatalogueModel("dense", ("units", "hidden_layers")),
    "convnext_tiny": _backbone(has_batch_normalization=False),
    "densenet121": _backbone(),
    "efficientnet_b0": _backbone(),
    "efficientnet_v2_b0": _backbone(),
    "efficientnet_v2_s": _backbone(),
    "inception_v3": _backbone(),
    "mobilenet_v2": _backbone("alpha"),
    "mobilenet_v3_large": _backbone("alpha"),
    "mobilenet_v3_small": _backbone("alpha"),
    "resnet50": _backbone(),
    "resnet50_v2": _backbone(),
    "resnet101_v2": _backbone(),
    "xception": _backbone(),
}


def is_own(model: str) -> bool:
    """Whether this names a function of the user's own, `module:function`."""
    return ":" in model


def check_model(name: str) -> str:
    """The name. Raises ValueError with the nearest one in the catalogue."""
    if is_own(name):
        return check_function(name)
    if name not in CATALOGUE:
        raise ValueError(f"there is no model {name!r}; {nearest(name, CATALOGUE)}, and a model of your own is named as my_package.my_module:build")
    return name


def check_function(path: str) -> str:
    """The path of a function of the user's own. Raises ValueError."""
    if not _OWN.fullmatch(path):
        raise ValueError(f"a function of your own is named as my_package.my_module:function, got {path!r}")
    return path
