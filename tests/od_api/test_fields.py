"""Every field of the Object Detection API's messages, and what the importer does with it.

The values and learning rates here were compared with those that protobuf's text format reads with
the API's definitions, and that the API's own schedules compute.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from od_api_fields import CARRIED_OVER, CHANGES_THE_RESULT, NETWORK, WITHOUT_EFFECT
from od_api_files import CENTER_NET
from od_api_files import SSD as SAMPLE_SSD

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.convert import ConvertedConfig, convert
from pipeline_ops.od_api.text_proto import (
    ConfigReader,
    LeafField,
    TextMessage,
    parse_text_proto,
)
from pipeline_ops.training.optimizer import compute_schedule_factor

SSD, TRAIN = "model.ssd", "train_config"
OPTIMIZER = f"{TRAIN}.optimizer"
SGD, ADAM = f"{OPTIMIZER}.momentum_optimizer", f"{OPTIMIZER}.adam_optimizer"
RMSPROP = f"{OPTIMIZER}.rms_prop_optimizer"
AUGMENT = f"{TRAIN}.data_augmentation_options"
PREDICTOR = f"{SSD}.box_predictor.weight_shared_convolutional_box_predictor"
ANCHORS = f"{SSD}.anchor_generator.multiscale_anchor_generator"
MATCHER, CODER = f"{SSD}.matcher.argmax_matcher", f"{SSD}.box_coder.faster_rcnn_box_coder"
SUPPRESSION = f"{SSD}.post_processing.batch_non_max_suppression"
LOSS = f"{SSD}.loss"
BOX_LOSS = f"{LOSS}.localization_loss"
FOCAL = f"{LOSS}.classification_loss.weighted_sigmoid_focal"
READER, PATHS = "train_input_reader", "tf_record_input_reader.input_path"
BASE = {
    f"{SSD}.image_resizer.fixed_shape_resizer.height": 320,
    f"{SSD}.image_resizer.fixed_shape_resizer.width": 320,
    f"{SSD}.feature_extractor.type": "ssd_resnet50_v1_fpn_keras",
    f"{TRAIN}.batch_size": 16,
    f"{TRAIN}.num_steps": 1000,
    f"{SGD}.learning_rate.constant_learning_rate.learning_rate": 0.01,
    f"{READER}.{PATHS}": "data/train.record",
    f"eval_input_reader.{PATHS}": "data/eval.record",
}
ONEOFS = (
    {"ssd", "faster_rcnn", "center_net"},
    {
        "fixed_shape_resizer",
        "keep_aspect_ratio_resizer",
        "identity_resizer",
        "conditional_shape_resizer",
        "pad_to_multiple_resizer",
    },
    {"momentum_optimizer", "adam_optimizer", "rms_prop_optimizer"},
    {
        "constant_learning_rate",
        "exponential_decay_learning_rate",
        "manual_step_learning_rate",
        "cosine_decay_learning_rate",
    },
)
TITLES = {
    "changes": "Not carried over, so the result changes:",
    "network": "Details of the original network, which ours does not have:",
    "nothing": "Fields without an effect on the result:",
}


def rate(kind: str, **fields: Any) -> dict[str, Any]:
    found = {f"{SGD}.learning_rate.{kind}.{name}": value for name, value in fields.items()}
    return found or {f"{SGD}.learning_rate.{kind}": {}}


def stairs(*schedule: tuple[int, float], **fields: Any) -> dict[str, Any]:
    for number, (step, value) in enumerate(schedule):
        fields |= {f"schedule[{number}].step": step, f"schedule[{number}].learning_rate": value}
    return rate("manual_step_learning_rate", **fields)


def model(**sections: Any) -> dict[str, Any]:
    return {f"train.model_parameters.{name}": value for name, value in sections.items()}


def resized(height: int, width: int, channels: int = 3, **more: str) -> dict[str, Any]:
    size = {"height": height, "width": width} | more
    stages = [{"decode": {"channels": channels}}, "clip_boxes", {"resize": size}]
    return {"preprocess.stages": stages}


CROP = {
    "min_area": 0.1,
    "max_area": 1.0,
    "min_aspect_ratio": 0.75,
    "max_aspect_ratio": 1.33,
    "min_object_covered": 1.0,
    "min_overlap": 0.3,
    "keep_whole": 0.0,
}


def crops(**changes: float) -> dict[str, Any]:
    return {"train.input.augment.crops": [CROP | changes]}


FIXED = f"{SSD}.image_resizer.fixed_shape_resizer"
ASPECT = f"{SSD}.image_resizer.keep_aspect_ratio_resizer"
L2 = "conv_hyperparams.regularizer.l2_regularizer.weight"
AVERAGE = "train.optimizer.average_weights"
EVALUATED = {"eval_config.use_moving_averages": True}
MOBILE = {f"{SSD}.feature_extractor.type": "ssd_mobilenet_v2_fpn_keras"}
RCNN = {"model.faster_rcnn.feature_extractor.type": "faster_rcnn_resnet101_keras"}
CASES = [
    # batch, steps, images
    ({f"{TRAIN}.batch_size": 24}, {"train.global_batch_size": 24}),
    ({f"{TRAIN}.batch_size": None}, {"train.global_batch_size": 32}),
    ({f"{TRAIN}.num_steps": 77}, {"train.steps": 77, "train.epochs": None}),
    ({f"{TRAIN}.num_steps": 900_000}, {"train.steps": 900_000}),
    ({f"{TRAIN}.num_steps": None}, {"train.steps": None, "train.epochs": 10}),
    ({f"{TRAIN}.use_bfloat16": True}, {"train.precision": "bfloat16"}),
    ({f"{TRAIN}.use_bfloat16": False}, {"train.precision": "float32"}),
    ({f"{FIXED}.width": 640}, resized(320, 640)),
    ({f"{FIXED}.height": 64, f"{FIXED}.width": None}, resized(64, 320)),  # 300, rounded up
    ({f"{FIXED}.convert_to_grayscale": True}, resized(320, 320, 1)),
    (
        {f"{ASPECT}.min_dimension": 512, f"{ASPECT}.max_dimension": 512},
        resized(512, 512, mode="letterbox"),
    ),
    ({f"{ASPECT}.pad_to_max_dimension": True}, resized(1024, 1024, mode="letterbox")),
    ({f"{ASPECT}.convert_to_grayscale": True}, resized(1024, 1024, 1, mode="letterbox")),
    # optimizers
    ({}, {"train.optimizer.name": "sgd", "train.optimizer.momentum": 0.9}),
    ({f"{SGD}.momentum_optimizer_value": 0.8}, {"train.optimizer.momentum": 0.8}),
    ({f"{SGD}.momentum_optimizer_value": 0.0}, {"train.optimizer.momentum": 0.0}),
    ({ADAM: {}}, {"train.optimizer.name": "adam", "train.optimizer.epsilon": 1e-8}),
    ({f"{ADAM}.epsilon": 0.1}, {"train.optimizer.epsilon": 0.1}),
    (
        {RMSPROP: {}},
        {
            "train.optimizer.name": "rmsprop",
            "train.optimizer.momentum": 0.9,
            "train.optimizer.rho": 0.9,
            "train.optimizer.epsilon": 1.0,
        },
    ),
    ({f"{RMSPROP}.momentum_optimizer_value": 0.7}, {"train.optimizer.momentum": 0.7}),
    ({f"{RMSPROP}.decay": 0.95}, {"train.optimizer.rho": 0.95}),
    ({f"{RMSPROP}.epsilon": 0.002}, {"train.optimizer.epsilon": 0.002}),
    ({f"{TRAIN}.gradient_clipping_by_norm": 10.0}, {"train.optimizer.clip.global_norm": 10.0}),
    ({f"{TRAIN}.gradient_clipping_by_norm": 0.0}, {"train.optimizer.clip": None}),
    (EVALUATED, {AVERAGE: 0.9999}),
    ({}, {AVERAGE: None}),
    (EVALUATED | {f"{OPTIMIZER}.moving_average_decay": 0.99}, {AVERAGE: 0.99}),
    (EVALUATED | {f"{OPTIMIZER}.use_moving_average": False}, {AVERAGE: None}),
    ({f"{SSD}.feature_extractor.{L2}": 4e-5}, {"train.optimizer.weight_decay": 4e-4}),
    (
        {f"{SSD}.feature_extractor.{L2}": 4e-5, f"{SGD}.momentum_optimizer_value": 0.0},
        {"train.optimizer.weight_decay": 4e-5},
    ),
    ({f"{PREDICTOR}.{L2}": 5e-4, RMSPROP: {}}, {"train.optimizer.weight_decay": 5e-3}),
    (
        {f"{PREDICTOR}.{L2}": 5e-4, f"{TRAIN}.add_regularization_loss": False},
        {"train.optimizer.weight_decay": 0.0},
    ),
    (
        {f"{SSD}.post_processing.batch_non_max_suppression.max_total_detections": 300},
        {"train.model_parameters.max_detections": 300},
    ),
    # random changes
    ({f"{AUGMENT}.random_horizontal_flip": {}}, {"train.input.augment.flip_left_right": True}),
    (
        {f"{AUGMENT}.random_horizontal_flip.probability": 0.5},
        {"train.input.augment.flip_left_right": True},
    ),
    (
        {f"{AUGMENT}.random_vertical_flip.probability": 0.5},
        {"train.input.augment.flip_top_bottom": True},
    ),
    ({f"{AUGMENT}.random_adjust_brightness": {}}, {"train.input.augment.brightness": 0.2}),
    (
        {f"{AUGMENT}.random_adjust_brightness.max_delta": 0.3},
        {"train.input.augment.brightness": 0.3},
    ),
    ({f"{AUGMENT}.random_adjust_contrast": {}}, {"train.input.augment.contrast": 0.25}),
    (
        {
            f"{AUGMENT}.random_adjust_contrast.min_delta": 0.6,
            f"{AUGMENT}.random_adjust_contrast.max_delta": 1.4,
        },
        {"train.input.augment.contrast": 0.4},
    ),
    (
        {
            f"{AUGMENT}.random_adjust_saturation.min_delta": 0.9,
            f"{AUGMENT}.random_adjust_saturation.max_delta": 1.1,
        },
        {"train.input.augment.saturation": 0.1},
    ),
    ({f"{AUGMENT}.random_image_scale": {}}, {"train.input.augment.scale": None}),
    ({f"{AUGMENT}.random_crop_image": {}}, crops()),
    (
        {
            f"{AUGMENT}.random_crop_image.{name}": value
            for name, value in {
                "min_object_covered": 0.5,
                "min_aspect_ratio": 0.6,
                "max_aspect_ratio": 1.5,
                "min_area": 0.2,
                "max_area": 0.9,
                "overlap_thresh": 0.4,
                "random_coef": 0.1,
                "clip_boxes": True,
            }.items()
        },
        crops(
            min_object_covered=0.5,
            min_aspect_ratio=0.6,
            max_aspect_ratio=1.5,
            min_area=0.2,
            max_area=0.9,
            min_overlap=0.4,
            keep_whole=0.1,
        ),
    ),
    (
        {f"{AUGMENT}.ssd_random_crop": {}},
        {
            f"train.input.augment.crops.{number}": CROP
            | {"min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0, "keep_whole": 0.15}
            | {"min_object_covered": covered, "min_overlap": covered}
            for number, covered in enumerate((0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0))
        },
    ),
    (
        {
            f"{AUGMENT}.ssd_random_crop.operations.{name}": value
            for name, value in {
                "min_aspect_ratio": 0.6,
                "max_aspect_ratio": 1.5,
                "min_area": 0.2,
                "max_area": 0.9,
                "min_object_covered": 0.2,
                "overlap_thresh": 0.6,
                "random_coef": 0.1,
            }.items()
        },
        crops(
            min_aspect_ratio=0.6,
            max_aspect_ratio=1.5,
            min_area=0.2,
            max_area=0.9,
            min_object_covered=0.2,
            min_overlap=0.6,
            keep_whole=0.1,
        ),
    ),
    (
        {f"{AUGMENT}.random_square_crop_by_scale": {}},
        {
            "train.input.augment.scale.min": pytest.approx(1 / 1.3),
            "train.input.augment.scale.max": pytest.approx(1 / 0.6),
        },
    ),
    (
        {
            f"{AUGMENT}.random_square_crop_by_scale.scale_min": 0.5,
            f"{AUGMENT}.random_square_crop_by_scale.scale_max": 2.0,
        },
        {"train.input.augment.scale": {"min": 0.5, "max": 2.0}},
    ),
    (
        {
            f"{AUGMENT}.random_scale_crop_and_pad_to_square.scale_min": 0.3,
            f"{AUGMENT}.random_scale_crop_and_pad_to_square.scale_max": 1.8,
        },
        {"train.input.augment.scale": {"min": 0.3, "max": 1.8}},
    ),
    # records and classes
    (
        {f"{READER}.{PATHS}": "data/train.record@10"},
        {"preprocess.source.parts.0.files": "train.record-?????-of-00010"},
    ),
    (
        {f"eval_input_reader.{PATHS}": "data/other.record"},
        {"preprocess.source.parts.1": {"files": "other.record", "split": "test"}},
    ),
    (
        {
            f"{READER}.label_map_path": "data/labels.pbtxt",
            "eval_input_reader.label_map_path": "data/labels.pbtxt",
        },
        {
            "preprocess.source.label_map": "labels.pbtxt",
            "preprocess.source.class_names": ["cat", "dog"],
        },
    ),
    ({f"{READER}.shuffle": True}, {"train.input.shuffle": "examples"}),
    # the model
    ({}, model(backbone="ResNet50", width=256, depth=4, normalization="group")),
    (
        MOBILE | {f"{SSD}.feature_extractor.depth_multiplier": 0.35},
        model(backbone="MobileNetV2", backbone_parameters={"alpha": 0.35}),
    ),
    ({f"{SSD}.feature_extractor.fpn.additional_layer_depth": 128}, model(width=128)),
    ({f"{SSD}.feature_extractor.fpn.min_level": 3, f"{PREDICTOR}.depth": 64}, model(width=256)),
    (
        {f"{SSD}.feature_extractor.bifpn.num_filters": 64, f"{PREDICTOR}.depth": 64},
        model(width=64, depth=1),
    ),
    ({f"{PREDICTOR}.num_layers_before_predictor": 2}, model(depth=2)),
    (
        {f"{SSD}.anchor_generator.multiscale_anchor_generator.anchor_scale": 3.0},
        model(anchor_scale=3.0),
    ),
    (
        {
            f"{ANCHORS}.aspect_ratios": 3.0,  # width by height, and ours is height by width
            f"{ANCHORS}.scales_per_octave": 4,
        },
        model(aspect_ratios=[0.333333], scales_per_octave=4),
    ),
    (
        {f"{ANCHORS}.anchor_scale": 4.0},
        model(aspect_ratios=[1.0, 0.5, 2.0], scales_per_octave=2),
    ),
    (
        {f"{MATCHER}.matched_threshold": 0.6, f"{MATCHER}.unmatched_threshold": 0.3},
        model(matched_iou=0.6, unmatched_iou=0.3),
    ),
    ({MATCHER: {}}, model(matched_iou=0.5, unmatched_iou=0.5)),
    ({f"{SUPPRESSION}.iou_threshold": 0.7}, model(nms_iou=0.7)),
    ({f"{SUPPRESSION}.max_total_detections": 100}, model(nms_iou=0.6)),
    # the losses
    (
        {f"{BOX_LOSS}.weighted_smooth_l1": {}},
        model(
            box_loss="smooth_l1",
            box_loss_delta=1.0,
            box_loss_weight=1.0,
            box_scales=[10.0, 10.0, 5.0, 5.0],
        ),
    ),
    (
        {
            f"{BOX_LOSS}.weighted_smooth_l1.delta": 0.5,
            f"{LOSS}.localization_weight": 3.0,
            f"{SSD}.normalize_loc_loss_by_codesize": True,
        },
        model(box_loss_delta=0.5, box_loss_weight=0.375),
    ),
    (
        {f"{BOX_LOSS}.weighted_giou": {}, f"{LOSS}.localization_weight": 2.0},
        model(box_loss="giou", box_loss_weight=2.0),
    ),
    (
        {
            f"{CODER}.y_scale": 1.0,
            f"{CODER}.x_scale": 2.0,
            f"{CODER}.height_scale": 3.0,
            f"{CODER}.width_scale": 4.0,
        },
        model(box_scales=[1.0, 2.0, 3.0, 4.0]),
    ),
    (
        {f"{FOCAL}.alpha": 0.75, f"{FOCAL}.gamma": 1.5, f"{LOSS}.classification_weight": 0.5},
        model(focal_alpha=0.75, focal_gamma=1.5, class_loss_weight=0.5),
    ),
    ({FOCAL: {}}, model(focal_alpha=None, focal_gamma=2.0)),
    (
        {f"{LOSS}.classification_loss.weighted_sigmoid": {}},
        model(focal_alpha=None, focal_gamma=0.0),
    ),
    # pyramid and heads
    (
        MOBILE
        | {
            f"{SSD}.feature_extractor.override_base_feature_extractor_hyperparams": True,
            f"{SSD}.feature_extractor.conv_hyperparams.batch_norm.decay": 0.997,
        },
        model(batch_normalization_momentum=0.997),
    ),
    (
        MOBILE | {f"{SSD}.feature_extractor.conv_hyperparams.batch_norm.decay": 0.997},
        model(batch_normalization_momentum=None),  # the API has it for the other layers alone
    ),
    (
        MOBILE
        | {
            f"{SSD}.feature_extractor.use_depthwise": True,
            f"{PREDICTOR}.use_depthwise": True,
            f"{PREDICTOR}.conv_hyperparams.activation": "RELU_6",
        },
        model(separable=True, activation="relu6"),
    ),
    (
        {
            f"{SSD}.feature_extractor.type": "ssd_efficientnet-b2_bifpn_keras",
            f"{SSD}.feature_extractor.bifpn.num_iterations": 5,
            f"{SSD}.feature_extractor.bifpn.num_filters": 112,
            f"{PREDICTOR}.conv_hyperparams.activation": "SWISH",
        },
        model(
            backbone="EfficientNetB2", bifpn_rounds=5, width=112, separable=True, activation="silu"
        ),
    ),
    (
        MOBILE | {f"{SSD}.anchor_generator.ssd_anchor_generator.num_layers": 6},
        model(width=128, depth=4, separable=True, anchor_scale=None),
    ),
    ({f"{SSD}.freeze_batchnorm": True}, model(frozen_batch_normalization=True)),
    ({f"{SSD}.freeze_batchnorm": False}, model(frozen_batch_normalization=False)),
    (RCNN, model(backbone="ResNet101", frozen_batch_normalization=True)),
    (
        RCNN | {"model.faster_rcnn.feature_extractor.batch_norm_trainable": True},
        model(frozen_batch_normalization=None),
    ),
    ({"model.center_net.num_classes": 3}, {"train.model": "center_detector"}),
    ({f"{SSD}.num_classes": 3}, {"train.model": "retinanet"}),
    ({"model.faster_rcnn.num_classes": 3}, {"train.model": "retinanet"}),
    (
        {
            f"{SSD}.matcher.argmax_matcher.force_match_for_each_row": True,
            f"{SSD}.similarity_calculator.iou_similarity": {},
            f"{SSD}.encode_background_as_zeros": True,
            f"{SSD}.loss.classification_loss.weighted_sigmoid_focal.alpha": 0.25,
            f"{TRAIN}.sync_replicas": True,
        },
        {"train.model": "retinanet"},  # which has these settings
    ),
    ({"eval_config.metrics_set": "coco_detection_metrics"}, {"train.model": "retinanet"}),
]


# The learning rates of the API, by its formulas


def exponential(rate, every, factor, staircase=True, burnin_rate=0.0, burnin=0, least=0.0):
    def compute(step):
        periods = (step - burnin) / every
        decayed = rate * factor ** (math.floor(periods) if staircase else periods)
        return max(least, (burnin_rate or rate) if step < burnin else decayed)

    return compute


def cosine(base, total, begin=2e-4, warmup=10_000, hold=0):
    def compute(step):
        if step < warmup:
            return begin + (base - begin) / warmup * step
        if step <= warmup + hold:
            return base
        done = (step - warmup - hold) / (total - warmup - hold)
        return 0.0 if step > total else 0.5 * base * (1 + math.cos(math.pi * done))

    return compute


def manual(first, *schedule, warmup=False):
    def compute(step):
        (end, value), *_ = schedule
        if warmup and step < end:
            return first + (value - first) / end * step
        return [first, *(value for start, value in schedule if start <= step)][-1]

    return compute


EXPONENTIAL, COSINE = "exponential_decay_learning_rate", "cosine_decay_learning_rate"
RATES = [
    (rate("constant_learning_rate"), lambda step: 0.002),
    (rate("constant_learning_rate", learning_rate=0.3), lambda step: 0.3),
    (rate(EXPONENTIAL), exponential(0.002, 4_000_000, 0.95)),
    (
        rate(EXPONENTIAL, initial_learning_rate=0.1, decay_steps=400, decay_factor=0.5),
        exponential(0.1, 400, 0.5),
    ),
    (
        rate(EXPONENTIAL, decay_steps=300, staircase=False),
        exponential(0.002, 300, 0.95, staircase=False),
    ),
    (rate(EXPONENTIAL, decay_steps=300, decay_factor=1.0), exponential(0.002, 300, 1.0)),
    (rate(EXPONENTIAL, decay_steps=1), exponential(0.002, 1, 0.95)),
    (
        rate(EXPONENTIAL, decay_steps=200, burnin_steps=150),
        exponential(0.002, 200, 0.95, burnin=150),
    ),
    (
        rate(EXPONENTIAL, decay_steps=200, burnin_steps=150, burnin_learning_rate=0.0005),
        exponential(0.002, 200, 0.95, burnin=150, burnin_rate=0.0005),
    ),
    (
        rate(EXPONENTIAL, decay_steps=100, decay_factor=0.5, min_learning_rate=0.0004),
        exponential(0.002, 100, 0.5, least=0.0004),
    ),
    (
        rate(
            EXPONENTIAL,
            decay_steps=100,
            decay_factor=0.5,
            staircase=False,
            burnin_steps=80,
            burnin_learning_rate=0.0002,
            min_learning_rate=0.0004,
        ),
        exponential(0.002, 100, 0.5, False, burnin_rate=0.0002, burnin=80, least=0.0004),
    ),
    (stairs((500, 0.01), initial_learning_rate=0.1), manual(0.1, (500, 0.01))),
    (stairs((500, 0.01), (800, 0.0)), manual(0.002, (500, 0.01), (800, 0.0))),
    # Only an old version of the API takes a rate from step 0 on.
    (stairs((0, 0.03), (500, 0.01)), manual(0.03, (500, 0.01))),
    (
        stairs((50, 0.1), (800, 0.01), initial_learning_rate=0.01, warmup=True),
        manual(0.01, (50, 0.1), (800, 0.01), warmup=True),
    ),
    (
        stairs((50, 0.1), initial_learning_rate=0.0, warmup=True),
        manual(0.0, (50, 0.1), warmup=True),
    ),
    (
        stairs((50, 0.1), initial_learning_rate=0.2, warmup=True),
        manual(0.2, (50, 0.1), warmup=True),
    ),
    (rate(COSINE), cosine(0.002, 4_000_000)),
    (rate(COSINE, total_steps=12_000), cosine(0.002, 12_000)),
    (
        rate(COSINE, learning_rate_base=0.04, total_steps=900, warmup_steps=100),
        cosine(0.04, 900, warmup=100),
    ),
    (rate(COSINE, total_steps=900, warmup_steps=0), cosine(0.002, 900, warmup=0)),
    (
        rate(COSINE, total_steps=900, warmup_steps=90, warmup_learning_rate=0.0),
        cosine(0.002, 900, 0.0, 90),
    ),
    (
        rate(
            COSINE,
            learning_rate_base=0.08,
            total_steps=1500,
            warmup_learning_rate=0.02,
            warmup_steps=200,
            hold_base_rate_steps=300,
        ),
        cosine(0.08, 1500, 0.02, 200, 300),
    ),
]


def render(fields: dict[str, Any]) -> str:
    """Writes `{"a.b": 1, "a.c[0].d": "x"}` as `a { b: 1 c { d: "x" } }`."""
    tree: dict[str, Any] = {}
    for path, value in fields.items():
        *parents, name = path.split(".")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value

    def write(name: str, value: Any) -> str:
        name = name.partition("[")[0]
        if isinstance(value, dict):
            return f"{name} {{ {' '.join(write(*item) for item in value.items())} }}"
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, str) and not value.isupper():
            value = f'"{value}"'
        return f"{name}: {value}"

    return "\n".join(write(*item) for item in tree.items())


def merge(fields: dict[str, Any]) -> dict[str, Any]:
    """Adds fields to BASE, in place of the others of a oneof. None removes a field."""

    def is_replaced(path: str) -> bool:
        for new in fields:
            for one, other in zip(path.split("."), new.split("."), strict=False):
                if one != other:
                    if any({one, other} <= group for group in ONEOFS):
                        return True
                    break
        return False

    kept = {path: value for path, value in BASE.items() if not is_replaced(path)}
    return {path: value for path, value in (kept | fields).items() if value is not None}


@pytest.fixture
def convert_fields(tmp_path, monkeypatch):
    """Converts BASE with fields of a test."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/labels.pbtxt").write_text("item { id: 1 name: 'cat' } item { id: 2 name: 'dog' }")

    def convert_them(fields: dict[str, Any]) -> ConvertedConfig:
        Path("my.config").write_text(render(merge(fields)))
        return convert(Path("my.config"))

    return convert_them


def get_values(converted: ConvertedConfig) -> dict[str, Any]:
    """Returns the sections as a pipeline reads them, with the defaults of `train`."""
    sections = yaml.safe_load(converted.to_yaml())
    return sections | {"train": Train.model_validate(sections["train"]).model_dump()}


def look_up(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[int(name)] if isinstance(values, list) else (values or {}).get(name)
    return values


@pytest.mark.parametrize(("fields", "wanted"), CASES, ids=lambda each: "+".join(each)[:80])
def test_values_are_those_of_the_api(convert_fields, fields, wanted):
    values = get_values(convert_fields(fields))
    assert {path: look_up(values, path) for path in wanted} == {
        path: pytest.approx(value) if isinstance(value, float) else value
        for path, value in wanted.items()
    }


@pytest.mark.parametrize(("fields", "formula"), RATES, ids=range(len(RATES)))
def test_learning_rates_are_those_of_the_api_in_every_step(convert_fields, fields, formula):
    train = Train.model_validate(get_values(convert_fields(fields))["train"])
    optimizer = train.optimizer
    steps = [*range(2000), *range(2000, 15_000, 97)]
    found = [
        optimizer.learning_rate * compute_schedule_factor(optimizer.schedule, step, 1000)
        for step in steps
    ]
    assert found == pytest.approx([formula(step) for step in steps], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("total", "hold"), [(900, 0), (1000, 100), (950, 100)])
def test_a_cosine_that_ends_with_its_warm_up_or_before_is_the_rate_of_the_api(
    convert_fields, total, hold
):
    fields = rate(
        COSINE,
        learning_rate_base=0.04,
        total_steps=total,
        warmup_steps=900,
        hold_base_rate_steps=hold,
    )
    steps = {f"{TRAIN}.num_steps": total}
    train = Train.model_validate(get_values(convert_fields(fields | steps))["train"])
    found = [
        train.optimizer.learning_rate
        * compute_schedule_factor(train.optimizer.schedule, step, total)
        for step in range(total)
    ]
    formula = cosine(0.04, total, warmup=900, hold=hold)
    assert found == pytest.approx([formula(step) for step in range(total)], rel=1e-6)
    with pytest.raises(ConfigError, match=r"my.config:\d+:\d+: .*total_steps must be above"):
        convert_fields(fields | {f"{TRAIN}.num_steps": total + 1})


# Every field


def list_leaves(text: str) -> list[LeafField]:
    return list(ConfigReader(parse_text_proto(text, "fields"), "fields").iterate_leaves())


def find_lists(converted: ConvertedConfig, leaf: LeafField) -> set[str]:
    """Returns the titles under which a field is listed, by itself or as a part of its message."""
    parent, _, name = leaf.path.rpartition(".")
    change = parent.partition(".operations")[0]  # of images

    def is_in(item: str) -> bool:
        of_change = item.startswith(f"{change} {{") and f"{name}: " in item
        return of_change or item.startswith((leaf.path, f"{parent.partition('.')[0]}: "))

    return {
        title
        for title, items in converted.list_differences().items()
        if title in TITLES.values() and any(map(is_in, items))
    }


_RATE = f"{SGD}.learning_rate"
NEEDED = {
    f"{SSD}.feature_extractor.override_base_feature_extractor_hyperparams": True,
    f"{_RATE}.cosine_decay_learning_rate.total_steps": 20_000,
    f"{_RATE}.manual_step_learning_rate.schedule.step": 7,
}
"""Fields that others of their message need."""
LISTS = {
    "carried": CARRIED_OVER,
    "changes": CHANGES_THE_RESULT,
    "network": NETWORK,
    "nothing": WITHOUT_EFFECT,
}


@pytest.mark.parametrize("kind", LISTS)
def test_a_field_is_carried_over_or_listed_where_it_belongs(convert_fields, kind):
    leaves = list_leaves(LISTS[kind])
    assert len(leaves) > 50
    expected = {TITLES[kind]} if kind in TITLES else set()
    wrong = {}
    for leaf in leaves:
        value = {} if isinstance(leaf.value, TextMessage) else leaf.value
        more = {
            path: number for path, number in NEEDED.items() if path.rpartition(".")[0] in leaf.path
        }
        found = find_lists(convert_fields(more | {leaf.path: value}), leaf)
        if found != expected:
            wrong[leaf.path] = found
    assert wrong == {}


def get_field(path: str) -> str:
    """Returns the field without the place of its message: `fpn.additional_layer_depth`."""
    return ".".join(re.sub(r"\[\d+\]", "", path).split(".")[-2:])


def test_each_field_is_in_one_list():
    fields = [leaf.path for text in LISTS.values() for leaf in list_leaves(text)]
    assert sorted(set(fields)) == sorted(fields)


def test_the_configs_together_set_every_field_that_is_carried_over():
    are_set = {get_field(path) for fields, _ in [*CASES, *RATES] for path in BASE | fields}
    assert {get_field(leaf.path) for leaf in list_leaves(CARRIED_OVER)} <= are_set
    assert len(CASES) + len(RATES) >= 60


def test_every_field_of_the_sample_configs_is_in_a_list():
    known = {get_field(leaf.path) for text in LISTS.values() for leaf in list_leaves(text)}
    for text in (SAMPLE_SSD, CENTER_NET):
        leaves = [each for each in list_leaves(text) if not isinstance(each.value, TextMessage)]
        assert {get_field(leaf.path) for leaf in leaves} <= known
