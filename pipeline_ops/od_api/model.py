"""The model of a `pipeline.config`: the nearest one of ours, with its parameters.

An SSD with a pyramid becomes `retinanet` with the API's anchors, matching, losses and suppression.
Other detectors with anchors become RetinaNet, too. CenterNet becomes our own small detector.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.text_proto import ConfigReader, Scalar, describe_values

_BACKBONES = {
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "resnet152": "ResNet101",
    "mobilenet": "MobileNetV2",
    "mobiledet": "MobileNetV2",
    "spaghettinet": "MobileNetV2",
    **{f"efficientnet-b{number}": f"EfficientNetB{min(number, 4)}" for number in range(8)},
    "efficientnet": "EfficientNetB0",
}
"""The backbones, by a part of the type of a feature extractor, for example
`ssd_resnet50_v1_fpn_keras`.
"""
_EXACT_BACKBONES = re.compile(r"resnet50|resnet101|efficientnet-b[0-4]|mobilenet_v2")
"""The types that have an exact counterpart, not only a nearest one."""
_ACTIVATIONS = {"RELU": "relu", "RELU_6": "relu6", "SWISH": "silu"}
_LIGHT_HEAD = {"separable": True, "width": 128, "depth": 4}
"""Of FPNLite, for an SSD without a pyramid, whose heads are small."""
_USUAL_DETECTIONS = 100
"""The number of detections of an image that a config does not have to name."""
_FROZEN = (
    "Frozen statistics need the weights of a trained backbone: set train.warm_start, or "
    "frozen_batch_normalization: false"
)
_STRIDE = 128
"""Pixels between anchors of level 7."""
_CODE_SIZE = 4
"""The numbers of a box."""
_CARRIED: dict[str, dict[str, tuple[str, type[int] | type[float], float]]] = {
    "anchor_generator.multiscale_anchor_generator": {
        "anchor_scale": ("anchor_scale", float, 4.0),
        "scales_per_octave": ("scales_per_octave", int, 2),
    },
    "matcher.argmax_matcher": {
        "matched_threshold": ("matched_iou", float, 0.5),
        "unmatched_threshold": ("unmatched_iou", float, 0.5),
    },
    "loss.classification_loss.weighted_sigmoid_focal": {"gamma": ("focal_gamma", float, 2.0)},
    "loss": {"classification_weight": ("class_loss_weight", float, 1.0)},
}
"""Fields of messages of an SSD: the parameter of ours, its type, and the API's default."""
_FIXED_SETTINGS: dict[str, dict[str, Scalar]] = {
    "": {"encode_background_as_zeros": True, "normalize_loss_by_num_matches": True},
    "feature_extractor.fpn": {"min_level": 3, "max_level": 7},
    "feature_extractor.bifpn": {"min_level": 3, "max_level": 7},
    "anchor_generator.multiscale_anchor_generator": {"min_level": 3, "max_level": 7},
    "matcher.argmax_matcher": {
        "force_match_for_each_row": True,
        "ignore_thresholds": False,
        "negatives_lower_than_unmatched": True,
    },
    "box_predictor.weight_shared_convolutional_box_predictor": {
        "kernel_size": 3,
        "class_prediction_bias_init": -4.6,
        "share_prediction_tower": False,
    },
    "post_processing": {"score_converter": "SIGMOID"},
}
"""The settings of RetinaNet that are fixed in our model. Other values have no counterpart."""
_OTHER_DEFAULTS: dict[str, Scalar] = {
    "matcher.argmax_matcher.force_match_for_each_row": False,
    "box_predictor.weight_shared_convolutional_box_predictor.class_prediction_bias_init": 0.0,
    "post_processing.score_converter": "IDENTITY",
}
"""The API's defaults for settings that have another value in our model."""
_SAME = re.compile(r"^(?!.*\.use_).*(anchor|matcher|\.loss\.|normalize_|similarity)")
"""Fields of anchors, matching and losses."""
_TASKS = {
    "masks": ("instance_mask", "mask_prediction", "mask_estimation", "mask_height"),
    "keypoints": ("keypoint",),
    "dense poses": ("densepose",),
    "tracks": ("track_estimation", "track_id"),
    "context from other frames": ("context_config", "context_features"),
}
"""Tasks of the API beside boxes, each with parts of the names of its fields."""


class NearestModel(NamedTuple):
    """The API's model, and ours. `stand_in` says in a sentence what trains in place of what."""

    theirs: ConfigReader
    name: str
    parameters: dict[str, Any]
    stand_in: str
    is_near: bool
    """Whether its network, anchors and losses have counterparts in ours, one by one."""


def find_nearest_model(config: ConfigReader) -> NearestModel:
    """Finds the model of ours that is nearest. Raises ConfigError."""
    models = config.message("model")
    kind = models.find_present("ssd", "faster_rcnn", "center_net")
    if kind is None:
        raise ConfigError(
            f"{config.format_location('model')} must be ssd, faster_rcnn or center_net. "
            "The catalogue has no model that is near another one."
        )
    model = models.message(kind)
    _note_lost_tasks(models)
    extractor = model.message("feature_extractor").take("type", str, "")
    if kind == "center_net":
        return NearestModel(
            model,
            "center_detector",
            {"width": 32},
            f"Trains center_detector in place of CenterNet ({extractor}): also without anchors, "
            "but a small network, a hundredth of the size",
            is_near=False,
        )
    parameters: dict[str, Any] = {"normalization": "group"} | _convert_backbone(model)
    if kind == "ssd":
        parameters |= _convert_ssd(model)
        theirs, difference = _compare_plans(model, parameters)
    else:
        parameters |= _freeze_by_default(model)
        parameters |= _convert_suppression(model.message("second_stage_post_processing"))
        _note_anchors(model.message("first_stage_anchor_generator"), "grid_anchor_generator")
        is_rfcn = any(leaf.path.count("rfcn_box_predictor") for leaf in model.iterate_leaves())
        theirs = "R-FCN" if is_rfcn else "Faster R-CNN"
        difference = "one stage, which does not classify proposals a second time"
    backbone = parameters["backbone"]
    is_exact = _EXACT_BACKBONES.search(extractor)
    nearest = "" if is_exact else f", the nearest to {extractor or 'no type'}"
    ours = "EfficientDet" if parameters.get("bifpn_rounds") else "RetinaNet"
    return NearestModel(
        model,
        "retinanet",
        parameters,
        f"Trains {ours} with {backbone}{nearest}, in place of {theirs}"
        f"{f' ({extractor})' * bool(is_exact)}: {difference}",
        kind == "ssd" and not model.message("anchor_generator").has("ssd_anchor_generator"),
    )


def has_exact_backbone(model: ConfigReader) -> bool:
    """Returns whether a backbone of ours is the one of the API's model."""
    return bool(_EXACT_BACKBONES.search(model.message("feature_extractor").take("type", str, "")))


def _compare_plans(model: ConfigReader, parameters: dict[str, Any]) -> tuple[str, str]:
    """Returns what an SSD is called, and how ours differs."""
    if model.message("anchor_generator").has("ssd_anchor_generator"):
        more = ", so about 1.5 times the operations" * (parameters["backbone"] == "MobileNetV2")
        return "SSD", f"other anchors, and a pyramid with levels 3 to 7, as in SSD FPNLite{more}"
    unlike = [leaf for leaf in model.list_unconverted() if _SAME.search(leaf.path)]
    same = "anchors and losses of its kind, with the differences that are listed"
    if not (unlike or any("becomes" in loss for loss in model.root.losses)):
        same = "the same anchors and losses"
    plan = (
        f"{same}. The pyramid takes other layers of the backbone, and has group normalization, as "
        "the heads have"
    )
    if parameters.get("bifpn_rounds"):
        return "EfficientDet", plan
    return "SSD FPNLite" if parameters.get("separable") else "SSD with FPN", plan


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
    model.note_loss(f"{extractor.path('batch_norm_trainable')} is false by default. {_FROZEN}")
    return {"frozen_batch_normalization": True}


def compare_num_classes(model: ConfigReader, class_names: list[str] | None) -> None:
    """Adds a note if the number of classes differs from the label map, which has precedence."""
    count = model.take("num_classes", int, None)
    if class_names is None:
        model.note(
            "There is no label_map_path. The classes are those that the records name in "
            f"image/object/class/text, in the order of the alphabet, and not num_classes ({count}) "
            "of the model. Records with class numbers only need a label map."
        )
    elif count is not None and count != len(class_names):
        model.note(
            f"{model.path('num_classes')} is {count}, and the label map has {len(class_names)} "
            "classes. Our model has the classes of the label map."
        )


def _convert_backbone(model: ConfigReader) -> dict[str, Any]:
    extractor = model.message("feature_extractor")
    kind = extractor.take("type", str, "").replace("efficientnet_b", "efficientnet-b")
    found = next((name for key, name in _BACKBONES.items() if key in kind), None)
    parameters: dict[str, Any] = {"backbone": found or "ResNet50"}
    if found == "MobileNetV2" and extractor.has("depth_multiplier"):
        alpha = extractor.take("depth_multiplier", float, 1.0)
        parameters["backbone_parameters"] = {"alpha": alpha}
    moments = extractor.message("conv_hyperparams.batch_norm")
    if moments.has("decay") and extractor.take(
        "override_base_feature_extractor_hyperparams", bool, False
    ):
        parameters["batch_normalization_momentum"] = moments.take("decay", float, 0.999)
    if model.has("freeze_batchnorm"):
        frozen = model.take("freeze_batchnorm", bool, False)
        parameters["frozen_batch_normalization"] = frozen
        if frozen:
            model.note(f"{model.path('freeze_batchnorm')}: true. {_FROZEN}")
    return parameters


def _convert_ssd(model: ConfigReader) -> dict[str, Any]:
    """Returns the parameters of pyramid, heads, anchors, losses and suppression."""
    parameters = _convert_network(model)
    for path, fields in _CARRIED.items():
        parent, _, name = path.rpartition(".")
        if (model.message(parent) if parent else model).has(name):
            message = model.message(path)
            for field, (key, kind, default) in fields.items():
                parameters[key] = message.take(field, kind, default)
    anchors = model.message("anchor_generator")
    _note_anchors(anchors, "ssd_anchor_generator")
    resizer = model.message("image_resizer.fixed_shape_resizer")
    sides = [resizer.take(name, int, 300) for name in ("height", "width")]
    if anchors.has("multiscale_anchor_generator") and any(side % _STRIDE for side in sides):
        model.note(
            f"{anchors.path('multiscale_anchor_generator')}: where the size is no multiple of the "
            "stride, as for level 7 of 320 pixels, the API's anchors begin at the edge. Ours are "
            "in the middle of each cell"
        )
    if anchors.has("multiscale_anchor_generator"):
        ratios = anchors.message("multiscale_anchor_generator").take_all("aspect_ratios", float)
        # Width by height in the API.
        parameters["aspect_ratios"] = [float(f"{1 / each:.6g}") for each in ratios or (1, 2, 0.5)]
    _take_fixed_settings(model)
    parameters |= _convert_class_loss(model.message("loss")) | _convert_box_loss(model)
    return parameters | _convert_suppression(model.message("post_processing"))


def _note_anchors(generators: ConfigReader, kind: str) -> None:
    if generators.has(kind):
        values = describe_values(generators.message(kind).take_rest())
        generators.note_loss(
            f"{generators.path(kind)} {{{values}}}: our anchors have 4 times the stride of the "
            "levels 3 to 7, three sizes for each octave, and the ratios 0.5, 1 and 2"
        )


def _convert_suppression(processing: ConfigReader) -> dict[str, Any]:
    """Returns the parameters of the suppression of boxes of the last stage."""
    if not processing.has("batch_non_max_suppression"):
        return {}
    suppression = processing.message("batch_non_max_suppression")
    parameters: dict[str, Any] = {"nms_iou": suppression.take("iou_threshold", float, 0.6)}
    limit = suppression.take("max_total_detections", int, _USUAL_DETECTIONS)
    suppression.take_equal("max_detections_per_class", limit)
    if limit != _USUAL_DETECTIONS:
        parameters["max_detections"] = limit
    return parameters


def _convert_network(model: ConfigReader) -> dict[str, Any]:
    extractor, predictors = model.message("feature_extractor"), model.message("box_predictor")
    predictor = predictors.message("weight_shared_convolutional_box_predictor")
    if model.message("anchor_generator").has("ssd_anchor_generator"):
        return dict(_LIGHT_HEAD)
    pyramid, bifpn = extractor.message("fpn"), extractor.message("bifpn")
    has_bifpn = extractor.has("bifpn") or "bifpn" in extractor.take("type", str, "")
    width = pyramid.take("additional_layer_depth", int, 256 if extractor.has("fpn") else None)
    width = width or predictor.take("depth", int, 256)
    if has_bifpn:
        width = bifpn.take("num_filters", int, width)
    predictor.take_equal("depth", width)
    is_shared = predictors.has("weight_shared_convolutional_box_predictor")
    depth = predictor.take("num_layers_before_predictor", int, 0 if is_shared else 4)
    parameters: dict[str, Any] = {"width": max(8, -(-width // 8) * 8), "depth": max(1, depth)}
    if parameters != {"width": width, "depth": depth}:
        model.note(
            f"{predictor.path('')[:-1]}: {width} channels and {depth} layers become "
            f"{parameters['width']} and {parameters['depth']}"
        )
    is_separable = [each.take("use_depthwise", bool, False) for each in (extractor, predictor)]
    if any(is_separable) or has_bifpn:
        parameters["separable"] = True
    if has_bifpn:
        parameters["bifpn_rounds"] = bifpn.take("num_iterations", int, 3)
        bifpn.take_equal("combine_method", "fast_attention")
    if any(
        str(leaf).endswith("share_prediction_tower: true") for leaf in predictor.iterate_leaves()
    ):
        model.note_loss(
            "Classes and boxes have convolutions of their own in the heads "
            f"({predictor.path('share_prediction_tower')} is true)"
        )
    convolutions = predictor.message("conv_hyperparams")
    for name, ours in _ACTIVATIONS.items():
        if convolutions.take_equal("activation", name):
            parameters["activation"] = ours
    return parameters


def _convert_class_loss(loss: ConfigReader) -> dict[str, Any]:
    losses = loss.message("classification_loss")
    kind = losses.find_present(*losses.field_names)
    if kind == "weighted_sigmoid_focal":
        return {"focal_alpha": losses.message(kind).take("alpha", float, None)}
    if kind == "weighted_sigmoid" and not loss.has("hard_example_miner"):
        losses.mark_taken(kind)
        return {"focal_alpha": None, "focal_gamma": 0.0}
    if kind:
        miner = loss.message("hard_example_miner").take_rest()
        chosen = f" with hard_example_miner {{{describe_values(miner)}}}" if miner else ""
        losses.mark_taken(kind)
        loss.note_loss(
            f"{losses.path(kind)}{chosen} becomes focal loss with alpha 0.25 and gamma 2, which "
            "weighs easy background down"
        )
    return {}


def _convert_box_loss(model: ConfigReader) -> dict[str, Any]:
    """Returns the parameters with which our loss is the API's.

    Its Huber loss is `delta` times a smooth L1. It divides by the numbers of a box as well if it
    normalizes by the size of the code.
    """
    loss = model.message("loss")
    losses = loss.message("localization_loss")
    kind = losses.find_present(*losses.field_names) or "weighted_smooth_l1"
    parameters: dict[str, Any] = {"box_loss": "smooth_l1"}
    weight = loss.take("localization_weight", float, 1.0)
    if kind == "weighted_giou":
        parameters["box_loss"] = "giou"
    elif kind == "weighted_smooth_l1":
        delta = losses.message(kind).take("delta", float, 1.0)
        parameters["box_loss_delta"] = delta
        weight *= delta
    else:
        loss.note_loss(f"{losses.path(kind)} becomes a smooth L1")
        parameters["box_loss_delta"] = 1.0
    losses.mark_taken(kind)
    if model.take("normalize_loc_loss_by_codesize", bool, False):
        weight /= _CODE_SIZE
    parameters["box_loss_weight"] = weight
    coder = model.message("box_coder.faster_rcnn_box_coder")
    scales = (("y_scale", 10.0), ("x_scale", 10.0), ("height_scale", 5.0), ("width_scale", 5.0))
    parameters["box_scales"] = [coder.take(name, float, default) for name, default in scales]
    return parameters


def _take_fixed_settings(model: ConfigReader) -> None:
    for message, settings in _FIXED_SETTINGS.items():
        parent, _, name_of_message = message.rpartition(".")
        outer = model.message(parent) if parent else model
        reader = outer.message(name_of_message) if message else model
        for name, expected in settings.items():
            reader.take_equal(name, expected)
            default = _OTHER_DEFAULTS.get(f"{message}.{name}")
            if default is not None and outer.has(name_of_message) and not reader.has(name):
                model.note(
                    f"{reader.path(name)} is {default} by default, and {expected} in our model"
                )
    model.message("similarity_calculator").mark_taken("iou_similarity")
