"""The names that `train.model` may have, and the facts about each model that need no build.

    model: digits_cnn                        an entry of this catalogue
    model: my_package.my_module:build        a function of the user's own

The code is in `pipeline_ops/models/`. The config is checked against this catalogue before any
process starts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, WithJsonSchema

from pipeline_ops.config.keras_words import find_cure
from pipeline_ops.config.reading import suggest_name

Task = Literal["classification", "detection"]

_USER_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True)
class CatalogueModel:
    """A model of the catalogue.

    `module` is the file in `pipeline_ops/models/` with the function `build`. It is called with the
    shape of the images, the number of classes, `arguments`, and those of `parameters` that the
    config gives. `metrics` are the figures of an epoch besides the loss. A detector's module also
    has `make_head`.
    """

    module: str
    parameters: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    has_batch_normalization: bool = False
    task: Task = "classification"
    metrics: tuple[str, ...] = ("accuracy",)
    min_size: int = 1
    """Height and width of the smallest images that it can be built for."""
    size_multiple: int = 1
    """Factor that divides the height and the width of the images."""


def _make_backbone(name: str, *parameters: str, **facts: Any) -> CatalogueModel:
    """One of `keras.applications`, by the name of its function there."""
    facts = {"has_batch_normalization": True, "min_size": 32} | facts
    return CatalogueModel("backbones", (*parameters, "dropout"), {"name": name}, **facts)


CATALOGUE: Mapping[str, CatalogueModel] = {
    "center_detector": CatalogueModel(
        "center_detector",
        ("width", "max_detections"),
        task="detection",
        metrics=("heat_loss", "box_iou"),
        min_size=16,
        size_multiple=16,
    ),
    "compact_cnn": CatalogueModel("compact_cnn", ("width",)),
    "digits_cnn": CatalogueModel("digits_cnn", min_size=10),
    "dense": CatalogueModel("dense", ("units", "hidden_layers")),
    "convnext_tiny": _make_backbone("ConvNeXtTiny", has_batch_normalization=False),
    "densenet121": _make_backbone("DenseNet121"),
    "efficientnet_b0": _make_backbone("EfficientNetB0"),
    "efficientnet_v2_b0": _make_backbone("EfficientNetV2B0"),
    "efficientnet_v2_s": _make_backbone("EfficientNetV2S"),
    "inception_v3": _make_backbone("InceptionV3", min_size=75),
    "mobilenet_v2": _make_backbone("MobileNetV2", "alpha"),
    "mobilenet_v3_large": _make_backbone("MobileNetV3Large", "alpha"),
    "mobilenet_v3_small": _make_backbone("MobileNetV3Small", "alpha"),
    "resnet50": _make_backbone("ResNet50"),
    "resnet50_v2": _make_backbone("ResNet50V2"),
    "resnet101_v2": _make_backbone("ResNet101V2"),
    "retinanet": CatalogueModel(
        "retinanet",
        (
            "backbone",
            "backbone_parameters",
            "width",
            "depth",
            "normalization",
            "activation",
            "separable",
            "bifpn_rounds",
            "frozen_batch_normalization",
            "batch_normalization_momentum",
            "anchor_scale",
            "scales_per_octave",
            "aspect_ratios",
            "matched_iou",
            "unmatched_iou",
            "box_loss",
            "box_scales",
            "box_loss_delta",
            "box_loss_weight",
            "class_loss_weight",
            "focal_alpha",
            "focal_gamma",
            "nms_iou",
            "max_boxes",
            "max_detections",
        ),
        task="detection",
        metrics=("class_loss", "box_iou"),
        min_size=32,
        size_multiple=32,
        has_batch_normalization=True,
    ),
    "xception": _make_backbone("Xception", min_size=71),
}


_OWN_MODEL = CatalogueModel("", has_batch_normalization=True)
"""A model of the user's own is a classifier. Nothing else is known of it."""


def is_user_function(name: str) -> bool:
    """Returns whether a name is the path of a user's function, `module:function`."""
    return ":" in name


def find_model(name: str) -> CatalogueModel:
    return CATALOGUE.get(name, _OWN_MODEL)


def check_model(name: str) -> str:
    """Returns the name. Raises ValueError with the nearest one in the catalogue."""
    if is_user_function(name):
        return check_function(name)
    if name not in CATALOGUE:
        raise ValueError(
            f"there is no model {name!r}; {suggest_name(name, CATALOGUE)}, and a model of your own "
            "is named as my_package.my_module:build"
        )
    return name


def check_function(path: str) -> str:
    """Returns the path of a function of the user's own. Raises ValueError if it is not one."""
    if not _USER_FUNCTION.fullmatch(path) or path.startswith(("tf.", "tensorflow.keras.")):
        dotted = path.removeprefix("tf.").removeprefix("tensorflow.").replace(":", ".")
        module, _, name = dotted.rpartition(".")
        cure = f"write {module}:{name}" if _USER_FUNCTION.fullmatch(f"{module}:{name}") else None
        cure = cure or find_cure(path)
        hint = f". {cure[0].upper()}{cure[1:]}" if cure else ""
        raise ValueError(
            f"a function of your own is named as my_package.my_module:function, got {path!r}{hint}"
        )
    return path


FUNCTION_SCHEMA = {"type": "string", "pattern": r"^[^\s:]+:[^\s:]+$"}
"""How editors check the path of a function. All other rules are those of `check_function`."""
UserFunction = Annotated[str, AfterValidator(check_function), WithJsonSchema(FUNCTION_SCHEMA)]


def name_or_function(names: Iterable[str]) -> WithJsonSchema:
    """Has editors offer the names, and accept the path of a function of the user's own as well."""
    return WithJsonSchema({"type": "string", "anyOf": [{"enum": [*names]}, FUNCTION_SCHEMA]})


ModelName = Annotated[str, AfterValidator(check_model), name_or_function(CATALOGUE)]
