"""The model of ours that is nearest to a model of the Object Detection API.

Detectors with anchors become RetinaNet. CenterNet becomes our own small detector.
"""

from __future__ import annotations

from typing import Any

from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.reader import ConfigReader

_BACKBONES = {
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "resnet152": "ResNet101",
    "mobilenet": "MobileNetV2",
    "efficientnet": "EfficientNetB0",
}
"""The backbones, by a part of the type of a feature extractor, for example
`ssd_resnet50_v1_fpn_keras`.
"""
_SAME = ("resnet50", "resnet101", "efficientnet_b0", "efficientnet-b0", "mobilenet_v2")
"""The types that have an exact counterpart, not only a nearest one."""


def nearest_model(config: ConfigReader) -> tuple[ConfigReader, str, dict[str, Any]]:
    """Returns the API's model, the name of ours, and its parameters. Raises ConfigError."""
    models = config.message("model")
    kind = models.one_of("ssd", "faster_rcnn", "center_net")
    if kind is None:
        raise ConfigError(
            "pipeline.config: model must be ssd, faster_rcnn or center_net; "
            "nothing in the catalogue is near any other"
        )
    model = models.message(kind)
    if kind == "center_net":
        config.note(
            "model.center_net becomes center_detector: also without anchors, "
            "but with a small network of its own, a hundredth of the size"
        )
        return model, "center_detector", {"width": 32}
    if kind == "faster_rcnn":
        config.note(
            "model.faster_rcnn becomes retinanet, the nearest: it has one stage, "
            "and no second look at proposals"
        )
    else:
        config.note(
            "model.ssd becomes retinanet: anchors of the same kind, levels 3 to 7, focal loss; "
            "with group normalisation in its heads"
        )
    parameters: dict[str, Any] = {"normalization": "group"} | _backbone(config, model)
    if kind == "ssd":
        parameters |= _head(config, model)
        _take_what_is_so_anyway(model)
    return model, "retinanet", parameters


def multiple_of(name: str) -> int:
    """Returns the number of pixels of which height and width must be multiples."""
    return 16 if name == "center_detector" else 32


def check_num_classes(
    config: ConfigReader, model: ConfigReader, class_names: list[str] | None
) -> None:
    """Adds a note if the number of classes differs from the label map, which has precedence."""
    count = model.take("num_classes", int, None)
    if count is not None and class_names is not None and count != len(class_names):
        config.note(
            f"{model.path('num_classes')} is {count}, and the label map names {len(class_names)}: "
            "our model has as many as are named"
        )


def _backbone(config: ConfigReader, model: ConfigReader) -> dict[str, Any]:
    extractor = model.message("feature_extractor")
    kind = extractor.take("type", str, "")
    found = next((name for key, name in _BACKBONES.items() if key in kind), None)
    if found is None or not any(name in kind for name in _SAME):
        config.note(
            f"{extractor.path('type')}: {kind or 'none'} becomes the backbone "
            f"{found or 'ResNet50'}, the nearest"
        )
    parameters: dict[str, Any] = {"backbone": found or "ResNet50"}
    if found == "MobileNetV2" and extractor.has("depth_multiplier"):
        parameters["backbone_parameters"] = {
            "alpha": extractor.take("depth_multiplier", float, 1.0)
        }
    if model.has("freeze_batchnorm"):
        parameters["frozen_batch_normalization"] = model.take("freeze_batchnorm", bool, False)
        if parameters["frozen_batch_normalization"]:
            config.note(
                f"{model.path('freeze_batchnorm')}: frozen statistics are worth something only "
                "with the weights of a backbone that was trained: give train.warm_start"
            )
    return parameters


def _head(config: ConfigReader, model: ConfigReader) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    pyramid = model.message("feature_extractor").message("fpn")
    predictor = model.message("box_predictor").message("weight_shared_convolutional_box_predictor")
    width = (
        pyramid.take("additional_layer_depth", int, 256)
        if pyramid.has("additional_layer_depth")
        else predictor.take("depth", int, 256)
    )
    predictor.take_equal("depth", width)
    predictor.take_equal("kernel_size", 3)
    parameters["width"] = max(8, -(-width // 8) * 8)
    parameters["depth"] = max(1, predictor.take("num_layers_before_predictor", int, 4))
    anchors = model.message("anchor_generator").message("multiscale_anchor_generator")
    if anchors.has("anchor_scale"):
        parameters["anchor_scale"] = anchors.take("anchor_scale", float, 4.0)
    if predictor.message("conv_hyperparams").has("regularizer"):
        config.note(
            f"{predictor.message('conv_hyperparams').path('regularizer')}: weight decay is a key "
            "of our optimizer, train.optimizer.weight_decay; it was left at 0"
        )
    return parameters


def _take_what_is_so_anyway(model: ConfigReader) -> None:
    pyramid = model.message("feature_extractor").message("fpn")
    anchors = model.message("anchor_generator").message("multiscale_anchor_generator")
    for levels in (pyramid, anchors):
        levels.take_equal("min_level", 3)
        levels.take_equal("max_level", 7)
    anchors.take_equals("aspect_ratios", (0.5, 1.0, 2.0))
    anchors.take_equal("scales_per_octave", 3)
    loss = model.message("loss")
    focal = loss.message("classification_loss").message("weighted_sigmoid_focal")
    focal.take_equal("alpha", 0.25)
    focal.take_equal("gamma", 2.0)
    if model.message("loss").message("localization_loss").has("weighted_smooth_l1"):
        loss.message("localization_loss").mark("weighted_smooth_l1")
    for weight in ("classification_weight", "localization_weight"):
        loss.take_equal(weight, 1.0)
    matcher = model.message("matcher").message("argmax_matcher")
    matcher.take_equal("matched_threshold", 0.5)
    matcher.take_equal("unmatched_threshold", 0.4)
    matcher.take_equal("force_match_for_each_row", True)
    matcher.take_equal("ignore_thresholds", False)
    model.message("similarity_calculator").mark("iou_similarity")
    model.take_equal("encode_background_as_zeros", True)
    model.take_equal("normalize_loss_by_num_matches", True)
    processing = model.message("post_processing")
    processing.take_equal("score_converter", "SIGMOID")
    suppression = processing.message("batch_non_max_suppression")
    suppression.take_equal("iou_threshold", 0.5)
    suppression.take_equal("max_total_detections", 100)
    suppression.take_equal("max_detections_per_class", 100)
