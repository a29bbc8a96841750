"""The model of ours that is nearest to a model of the Object Detection API.

Detectors with anchors become RetinaNet. CenterNet becomes our own small detector.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.reader import ConfigReader
from pipeline_ops.od_api.text_proto import Scalar

_BACKBONES = {
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "resnet152": "ResNet101",
    "mobilenet": "MobileNetV2",
    "mobiledet": "MobileNetV2",
    "spaghettinet": "MobileNetV2",
    "efficientnet": "EfficientNetB0",
}
"""The backbones, by a part of the type of a feature extractor, for example
`ssd_resnet50_v1_fpn_keras`.
"""
_EXACT_BACKBONES = ("resnet50", "resnet101", "efficientnet_b0", "efficientnet-b0", "mobilenet_v2")
"""The types that have an exact counterpart, not only a nearest one."""

_FPN = "feature_extractor.fpn"
_ANCHORS = "anchor_generator.multiscale_anchor_generator"
_MATCHER = "matcher.argmax_matcher"
_SUPPRESSION = "post_processing.batch_non_max_suppression"
_FIXED_SETTINGS: dict[str, Scalar] = {
    f"{_FPN}.min_level": 3,
    f"{_FPN}.max_level": 7,
    f"{_ANCHORS}.min_level": 3,
    f"{_ANCHORS}.max_level": 7,
    f"{_ANCHORS}.scales_per_octave": 3,
    "loss.classification_loss.weighted_sigmoid_focal.alpha": 0.25,
    "loss.classification_loss.weighted_sigmoid_focal.gamma": 2.0,
    "loss.classification_weight": 1.0,
    "loss.localization_weight": 1.0,
    f"{_MATCHER}.matched_threshold": 0.5,
    f"{_MATCHER}.unmatched_threshold": 0.4,
    f"{_MATCHER}.force_match_for_each_row": True,
    f"{_MATCHER}.ignore_thresholds": False,
    "encode_background_as_zeros": True,
    "normalize_loss_by_num_matches": True,
    "post_processing.score_converter": "SIGMOID",
    f"{_SUPPRESSION}.iou_threshold": 0.5,
    f"{_SUPPRESSION}.max_total_detections": 100,
    f"{_SUPPRESSION}.max_detections_per_class": 100,
}
"""The settings of RetinaNet that are fixed in our model. Other values have no counterpart."""
_FIXED_MESSAGES = (
    "loss.localization_loss.weighted_smooth_l1",
    "similarity_calculator.iou_similarity",
)


_TASKS = {
    "masks": ("instance_mask", "mask_prediction", "mask_estimation", "mask_height"),
    "keypoints": ("keypoint",),
    "dense poses": ("densepose",),
    "tracks": ("track_estimation", "track_id"),
    "context from other frames": ("context_config", "context_features"),
}
"""Tasks of the API beside boxes, each with parts of the names of its fields."""


def find_nearest_model(config: ConfigReader) -> tuple[ConfigReader, str, dict[str, Any]]:
    """Returns the API's model, the name of ours, and its parameters. Raises ConfigError."""
    models = config.message("model")
    kind = models.find_present("ssd", "faster_rcnn", "center_net")
    if kind is None:
        raise ConfigError(
            "pipeline.config: model must be ssd, faster_rcnn or center_net. "
            "The catalogue has no model that is near another one."
        )
    model = models.message(kind)
    _note_lost_tasks(models)
    if kind == "center_net":
        config.note_loss(
            "model.center_net becomes center_detector: also without anchors, "
            "but with a small network, a hundredth of the size"
        )
        return model, "center_detector", {"width": 32}
    if kind == "faster_rcnn":
        config.note_loss(
            "model.faster_rcnn becomes retinanet, the nearest: it has one stage "
            "and does not classify proposals a second time"
        )
    else:
        config.note(
            "model.ssd becomes retinanet: anchors of the same kind, levels 3 to 7, focal loss, "
            "and group normalization in its heads"
        )
    parameters: dict[str, Any] = {"normalization": "group"} | _convert_backbone(model)
    if kind == "ssd":
        parameters |= _convert_head(model)
        _take_fixed_settings(model)
    else:
        parameters |= _freeze_by_default(model)
    return model, "retinanet", parameters


def _note_lost_tasks(models: ConfigReader) -> None:
    fields = [leaf for leaf in models.iterate_leaves() if leaf.value is not False]
    for task, parts in _TASKS.items():
        if any(part in leaf.path for leaf in fields for part in parts):
            models.note_loss(
                f"{task}: our model finds boxes only. All fields of this task are lost."
            )


def _freeze_by_default(model: ConfigReader) -> dict[str, bool]:
    """Faster R-CNN trains its batch normalization only with `batch_norm_trainable`."""
    extractor = model.message("feature_extractor")
    if extractor.take("batch_norm_trainable", bool, False):
        return {}
    model.note(
        f"{extractor.path('batch_norm_trainable')} is false by default, so the statistics of the "
        "backbone are frozen. That is useful only with the weights of a trained backbone. "
        "Set train.warm_start."
    )
    return {"frozen_batch_normalization": True}


def get_size_multiple(name: str) -> int:
    """Returns the number of pixels of which height and width must be multiples."""
    return 16 if name == "center_detector" else 32


def compare_num_classes(model: ConfigReader, class_names: list[str] | None) -> None:
    """Adds a note if the number of classes differs from the label map, which has precedence."""
    count = model.take("num_classes", int, None)
    if count is not None and class_names is not None and count != len(class_names):
        model.note(
            f"{model.path('num_classes')} is {count}, and the label map has {len(class_names)} "
            "classes. Our model has the classes of the label map."
        )


def _convert_backbone(model: ConfigReader) -> dict[str, Any]:
    extractor = model.message("feature_extractor")
    kind = extractor.take("type", str, "")
    found = next((name for key, name in _BACKBONES.items() if key in kind), None)
    parameters: dict[str, Any] = {"backbone": found or "ResNet50"}
    if found is None or not any(name in kind for name in _EXACT_BACKBONES):
        model.note(
            f"{extractor.path('type')}: {kind or 'none'} becomes the backbone "
            f"{parameters['backbone']}, the nearest"
        )
    if found == "MobileNetV2" and extractor.has("depth_multiplier"):
        parameters["backbone_parameters"] = {
            "alpha": extractor.take("depth_multiplier", float, 1.0)
        }
    if model.has("freeze_batchnorm"):
        frozen = model.take("freeze_batchnorm", bool, False)
        parameters["frozen_batch_normalization"] = frozen
        if frozen:
            model.note(
                f"{model.path('freeze_batchnorm')}: frozen statistics are useful only with the "
                "weights of a trained backbone. Set train.warm_start."
            )
    return parameters


def _convert_head(model: ConfigReader) -> dict[str, Any]:
    pyramid = model.message("feature_extractor").message("fpn")
    predictor = model.message("box_predictor").message("weight_shared_convolutional_box_predictor")
    width = (
        pyramid.take("additional_layer_depth", int, 256)
        if pyramid.has("additional_layer_depth")
        else predictor.take("depth", int, 256)
    )
    predictor.take_equal("depth", width)
    predictor.take_equal("kernel_size", 3)
    parameters: dict[str, Any] = {
        "width": max(8, -(-width // 8) * 8),
        "depth": max(1, predictor.take("num_layers_before_predictor", int, 4)),
    }
    anchors = model.message("anchor_generator").message("multiscale_anchor_generator")
    if anchors.has("anchor_scale"):
        parameters["anchor_scale"] = anchors.take("anchor_scale", float, 4.0)
    predictor.take_equal("class_prediction_bias_init", -4.6)  # a prior of 0.01, as ours
    return parameters


def _take_fixed_settings(model: ConfigReader) -> None:
    for path, expected in _FIXED_SETTINGS.items():
        *names, name = path.split(".")
        _get_message(model, names).take_equal(name, expected)
    for path in _FIXED_MESSAGES:
        *names, name = path.split(".")
        _get_message(model, names).mark_taken(name)
    anchors = model.message("anchor_generator").message("multiscale_anchor_generator")
    anchors.take_equal_values("aspect_ratios", (0.5, 1.0, 2.0))


def _get_message(model: ConfigReader, names: Sequence[str]) -> ConfigReader:
    return functools.reduce(ConfigReader.message, names, model)
