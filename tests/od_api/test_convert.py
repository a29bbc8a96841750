"""Conversion of a pipeline.config of the Object Detection API: the result, and the report of every
field that has no counterpart."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from job_chain import run_jobs
from od_api_files import CENTER_NET, SSD, with_paths, write_records
from od_api_zoo import EFFICIENTDET, FASTER_RCNN, FPNLITE, MOBILENET

from beam_jobs.io.example import parse
from beam_jobs.sources.tfrecord import parse_label_map
from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import SAVED_MODEL
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.input.framework_internals import freeze_variables
from pipeline_ops.models import build_model
from pipeline_ops.od_api.convert import convert
from pipeline_ops.od_api.text_proto import ConfigReader, parse_text_proto

MINIMAL = """
model { ssd { num_classes: 3 image_resizer { fixed_shape_resizer { height: 320 width: 320 } }
              feature_extractor { type: "ssd_resnet50_v1_fpn_keras" } } }
train_config { batch_size: 16 num_steps: 1000 optimizer { %s use_moving_average: false } }
train_input_reader { tf_record_input_reader { input_path: "data/train.record" } }
eval_input_reader { tf_record_input_reader { input_path: "data/eval.record" } }
"""
MOMENTUM = "momentum_optimizer { learning_rate { %s } momentum_optimizer_value: 0.8 }"

BY_HAND = """
pipeline: hand
preprocess:
  source:
    type: tfrecord
    path: {folder}
    task: detection
    parts: [{{files: train.record-*}}, {{files: eval.record, split: test}}]
    label_map: labels.pbtxt
  stages: [decode, clip_boxes, resize: {{height: 128, width: 128}}]
  split: {{train: 1, validation: 0, test: 0}}
train:
  model: center_detector
  model_parameters: {{width: 32}}
  strategy: one_device
  global_batch_size: 16
  steps: 195
  input: {{augment: {{brightness: 0.1}}}}
  optimizer:
    learning_rate: 0.008
    epsilon: 1.0e-8
    schedule: {{type: cosine, warmup_steps: 15, warmup_factor: 0, decay_steps: 180}}
    clip: {{global_norm: 10}}
  best_checkpoint: null
evaluate:
  gate: [{{metric: map, at_least: 0.01}}]
export: {{model: hand}}
"""


def converted(tmp_path, text: str):
    file = tmp_path / "some_ssd" / "pipeline.config"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return convert(file)


def test_the_result_is_valid_and_says_what_the_file_said(api_folder, capsys):
    out = api_folder.parent / "configs" / "digits_ssd.yaml"
    assert main(["import-od-api", str(api_folder / "pipeline.config"), "--output", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        f"Wrote {out}\n\nTrains RetinaNet with MobileNetV2, in place of SSD with FPN "
        "(ssd_mobilenet_v2_fpn_keras): the same anchors and losses. The pyramid takes other layers "
        "of the backbone, and has group normalization, as the heads have.\n"
        "  train_config.fine_tune_checkpoint: 'resnet50.ckpt-1' is not used"
    )
    assert (
        "\nCarried over:\n  retinanet; 8 steps of batch 8; sgd, learning rate 0.01\n"
        "  images of 128x128 pixels; augmentation: flip_left_right, crops\n\nThe end of "
    ) in said
    assert main(["validate", str(out)]) == 0
    config = load_config(out)
    assert config.pipeline == "digits_ssd"
    source = config.preprocess.source
    assert (source.path, source.label_map, source.class_names) == (
        str(api_folder),
        "labels.pbtxt",
        [f"digit_{digit}" for digit in range(10)],
    )
    assert [(part.files, part.split) for part in source.parts] == [
        ("train.record-?????-of-00002", None),
        ("eval.record", "test"),
    ]
    train = config.train
    assert (
        train.model,
        train.global_batch_size,
        train.precision,
        train.input.augment.flip_left_right,
    ) == ("retinanet", 8, "bfloat16", True)
    assert (train.steps, train.epochs) == (8, None)
    assert train.model_parameters == {
        "normalization": "group",
        "backbone": "MobileNetV2",
        "backbone_parameters": {"alpha": 0.35},
        "frozen_batch_normalization": True,
        "batch_normalization_momentum": 0.997,
        "width": 16,
        "depth": 1,
        "anchor_scale": 2.0,
        "scales_per_octave": 2,
        "aspect_ratios": [1.0, 0.5, 2.0],
        "matched_iou": 0.5,
        "unmatched_iou": 0.5,
        "nms_iou": 0.6,
        "focal_alpha": 0.25,
        "focal_gamma": 2.0,
        "class_loss_weight": 1.0,
        "box_loss": "smooth_l1",
        "box_loss_delta": 1.0,
        "box_loss_weight": 1.0,
        "box_scales": [10.0, 10.0, 5.0, 5.0],
    }
    assert train.optimizer.clip.global_norm == 10
    assert train.optimizer.schedule.model_dump() == {
        "type": "cosine",
        "warmup_steps": 10,
        "warmup_factor": 0.1,
        "warmup_type": "linear",
        "decay_steps": 20,
        "end_factor": 0.0,
        "hold_steps": 0,
    }
    head, _, end = " ".join(out.read_text().split("\n#     ")).partition("\npipeline: ")
    assert "train_config.fine_tune_checkpoint: 'resnet50.ckpt-1'" in head
    activation = "model.ssd.feature_extractor.conv_hyperparams.activation: RELU_6"
    assert activation in end and activation not in head + said
    assert config.train.optimizer.weight_decay == pytest.approx(4e-4)


ZOO = {
    "fpnlite": (
        FPNLITE,
        "RetinaNet with MobileNetV2, in place of SSD FPNLite (ssd_mobilenet_v2_fp",
    ),
    "efficientdet": (EFFICIENTDET, "EfficientDet with EfficientNetB0, in place of EfficientDet ("),
    "mobilenet": (
        MOBILENET,
        "RetinaNet with MobileNetV2, in place of SSD (ssd_mobilenet_v2): other",
    ),
    "faster_rcnn": (
        FASTER_RCNN,
        "RetinaNet with ResNet50, in place of Faster R-CNN (faster_rcnn_r",
    ),
}


@pytest.mark.parametrize("kind", ZOO)
def test_a_config_of_the_zoo_says_in_a_few_lines_what_trains_and_what_is_lost(tmp_path, kind):
    text, stand_in = ZOO[kind]
    found = converted(tmp_path, text)
    assert found.stand_in.startswith(f"Trains {stand_in}")
    lost = found.summarize()
    assert 1 <= len(lost) <= 3, lost
    assert sum("fine_tune_checkpoint: " in line for line in lost) == 1
    end = found.to_yaml().partition("\npipeline: ")[2].replace("\n#    ", "")
    for leaf in found.unconverted:
        assert str(leaf) in end
    assert len(found.unconverted) > 15


def build_ssd(side: int, num_classes: int):
    """The network of an SSD with MobileNetV2, of six levels with a convolution for each output."""
    import keras
    from keras import layers

    base = keras.applications.MobileNetV2(
        input_shape=(side, side, 3), include_top=False, weights=None
    )
    levels = [base.get_layer(name).output for name in ("block_13_expand_relu", "out_relu")]
    for width in (512, 256, 256, 128):
        inner = layers.Conv2D(width // 2, 1, activation="relu6")(levels[-1])
        levels.append(layers.Conv2D(width, 3, 2, "same", activation="relu6")(inner))
    anchors = [3, 6, 6, 6, 6, 6]
    outputs = [
        layers.Conv2D(count * size, 1)(level)
        for level, count in zip(levels, anchors, strict=True)
        for size in (4, num_classes + 1)
    ]
    return keras.Model(base.input, outputs)


def count_operations(model, side: int) -> int:
    import tensorflow as tf

    call = tf.function(model, autograph=False).get_concrete_function(
        tf.TensorSpec((1, side, side, 3))
    )
    with freeze_variables(call).graph.as_default() as graph:
        options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
        found = tf.compat.v1.profiler.profile(graph, options=options | {"output": "none"})
        return found.total_float_ops


@pytest.mark.models
def test_what_stands_in_for_an_ssd_takes_as_many_more_operations_as_is_said(tmp_path):
    found = converted(tmp_path, MOBILENET)
    [told] = re.findall(r"so about (\d\.\d) times the operations", found.stand_in)
    config = Train.model_validate(found.sections["train"])
    model = build_model(config, (320, 320, 3), 6, tmp_path, for_training=False)
    ratio = count_operations(model, 320) / count_operations(build_ssd(320, 6), 320)
    assert ratio == pytest.approx(float(told), abs=0.1)


def test_numbers_as_the_tools_of_the_api_write_them_are_those_that_people_write(tmp_path):
    """They are float32 in all their digits."""
    expanded = {
        "0.6": "0.6000000238418579",
        "-4.6": "-4.599999904632568",
        ".08": "0.07999999821186066",
        "1e-8": "9.99999993922529e-09",
        "0.997": "0.996999979019165",
    }
    text = FPNLITE
    for short, long in expanded.items():
        text = re.sub(rf"(?<=[ :]){re.escape(short)}(?=[ ,\n])", long, text)
    assert text != FPNLITE
    found, expected = converted(tmp_path, text), converted(tmp_path, FPNLITE)
    assert found.sections == expected.sections
    assert (found.stand_in, found.summarize()) == (expected.stand_in, expected.summarize())


def test_the_first_line_does_not_call_the_same_what_is_listed_as_another(tmp_path):
    same = "the same anchors and losses"
    assert same in converted(tmp_path, FPNLITE).stand_in
    for old, new in (
        ("weighted_sigmoid_focal { alpha: 0.25 gamma: 2.0 }", "weighted_softmax { }"),
        ("min_level: 3 max_level: 7 anchor_scale", "min_level: 4 max_level: 6 anchor_scale"),
        ("force_match_for_each_row: true", "force_match_for_each_row: false"),
        ("normalize_loss_by_num_matches: true", "normalize_loss_by_num_matches: false"),
    ):
        assert old in FPNLITE
        assert same not in converted(tmp_path, FPNLITE.replace(old, new)).stand_in, new


def test_what_changes_the_accuracy_has_both_values(tmp_path):
    text = FPNLITE.replace("min_level: 3 max_level: 7", "min_level: 2 max_level: 6")
    text = text.replace("num_steps", 'freeze_variables: "a" num_steps')
    lost = " ".join(converted(tmp_path, text).summarize())
    for part in (
        "multiscale_anchor_generator.min_level: 2 (ours: 3 to 7), max_level: 6 (ours: 3 to 7)",
        "train_config.freeze_variables: 'a' (ours: all weights train, but for train.freeze)",
    ):
        assert part in lost


def test_a_checkpoint_that_is_there_fills_our_backbone(api_folder, monkeypatch):
    """Relative paths start in the working directory, as with the API."""
    file = api_folder / "pipeline.config"
    monkeypatch.chdir(api_folder)
    converted = convert(file)
    assert "warm_start" not in converted.sections["train"]
    assert (
        "the training starts from random weights, because there is no resnet50.ckpt-1.index"
        in " ".join(converted.losses)
    )
    index, data = (
        api_folder / f"resnet50.ckpt-1.{end}" for end in ("index", "data-00000-of-00001")
    )
    index.touch()
    for content, problem in (
        (None, f"there is no {data.name}"),
        (b"version https://git-lfs.github.com/spec/v1\n", f"{data.name} is a pointer of Git LFS"),
    ):
        if content:
            data.write_bytes(content)
        converted = convert(file)
        assert "warm_start" not in converted.sections["train"]
        assert f"because {problem}" in " ".join(converted.losses)
    data.write_bytes(b"weights")
    converted = convert(file)
    assert converted.sections["train"]["warm_start"] == f"{api_folder}/resnet50.ckpt-1"
    [told] = [text for text in converted.losses if "fine_tune_checkpoint" in text]
    assert "fills the backbone MobileNetV2 (train.warm_start)" in told
    text = file.read_text()
    for network, reason in (
        ("ssd_mobilenet_v1_fpn_keras", "no backbone of ours is that of ssd_mobilenet_v1"),
        ("ssd_resnet152_v1_fpn_keras", "no backbone of ours is that of ssd_resnet152"),
    ):
        file.write_text(text.replace("ssd_mobilenet_v2_fpn_keras", network))
        converted = convert(file)
        assert "warm_start" not in converted.sections["train"]
        assert reason in " ".join(converted.losses)
    file.write_text(text.replace("\"resnet50\" '.ckpt-1'", '"gs://zoo/ckpt-0"'))
    assert "because there is no gs://zoo/ckpt-0.index" in " ".join(convert(file).losses)


def test_every_field_is_taken_or_told(api_folder):
    """A changed number or word changes the result, or is reported to have no counterpart."""
    file = api_folder / "pipeline.config"
    text = file.read_text()
    unconverted_paths = {leaf.path for leaf in convert(file).unconverted}
    every = {
        leaf.path: leaf
        for leaf in ConfigReader(parse_text_proto(text, "it"), "it").iterate_leaves()
    }
    assert unconverted_paths < set(every)
    lines = text.splitlines()
    for path in sorted(set(every) - unconverted_paths):
        leaf = every[path]
        if type(leaf.value) not in (int, float):
            continue
        name = path.rpartition(".")[2].partition("[")[0]
        changed = lines.copy()
        changed[leaf.line - 1] = lines[leaf.line - 1].replace(
            f"{name}: {leaf.value}", f"{name}: {leaf.value * 2}"
        )
        if changed == lines:
            continue  # of a list
        file.write_text("\n".join(changed))
        try:
            other = convert(file)
        except ConfigError:  # the value is out of bounds
            continue
        finally:
            file.write_text(text)
        assert other.to_yaml() != convert(file).to_yaml(), path


@pytest.mark.parametrize(
    ("trained", "evaluated", "wanted"),
    [
        ("", "", None),
        ("", "use_moving_averages: false", None),
        ("", "use_moving_averages: true", 0.9999),
        ("use_moving_average: false", "use_moving_averages: true", None),
        ("moving_average_decay: 0.99", "use_moving_averages: true", 0.99),
    ],
)
def test_averaged_weights_are_used_only_where_the_api_evaluates_them(
    tmp_path, trained, evaluated, wanted
):
    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    text = text.replace("use_moving_average: false", trained)
    found = converted(tmp_path, text + f"eval_config {{ {evaluated} }}")
    assert found.sections["train"]["optimizer"].get("average_weights") == wanted


@pytest.mark.parametrize(
    ("more", "rate", "momentum"),
    [
        ("", 0.3, 0.8),
        ("momentum_optimizer { momentum_optimizer_value: 0.5 }", 0.3, 0.5),
        ("momentum_optimizer { learning_rate { %s { learning_rate: 0.4 } } }", 0.4, 0.8),
        (
            "momentum_optimizer { learning_rate { manual_step_learning_rate { } %s { } } }",
            2e-3,
            0.8,
        ),
        ("adam_optimizer { } momentum_optimizer { }", 2e-3, 0.9),
    ],
)
def test_blocks_of_one_message_are_merged_as_protobuf_does(tmp_path, more, rate, momentum):
    """The last member of a oneof clears the earlier ones. Repeated messages stay apart."""
    constant = "constant_learning_rate"
    text = MINIMAL % (MOMENTUM % f"{constant} {{ learning_rate: 0.3 }}")
    text += """train_config {
        num_steps: 77 fine_tune_checkpoint: "x" optimizer { %s }
        data_augmentation_options { random_vertical_flip { } random_horizontal_flip { } }
        data_augmentation_options { random_adjust_contrast { } }
    }"""
    train = converted(tmp_path, text % more.replace("%s", constant)).sections["train"]
    assert (train["global_batch_size"], train["steps"]) == (16, 77)
    assert train["input"]["augment"] == {"flip_left_right": True, "contrast": 0.25}
    optimizer = train["optimizer"]
    assert (optimizer["learning_rate"], optimizer["momentum"]) == (rate, momentum)


def test_the_gate_keeps_back_a_model_that_finds_nothing(tmp_path):
    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    [rule] = converted(tmp_path, text).sections["evaluate"]["gate"]
    assert rule["metric"] == "map" and rule["at_least"] > 0


def test_the_last_suppression_of_faster_rcnn_is_carried_and_its_anchors_are_said_beside_ours(
    tmp_path,
):
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace(
        "ssd {",
        """faster_rcnn {
        first_stage_anchor_generator { grid_anchor_generator { scales: [0.5, 2.0] } }
        second_stage_post_processing {
          batch_non_max_suppression {
            score_threshold: 0.3 iou_threshold: 0.4 max_total_detections: 300
          }
        }""",
    )
    found = converted(
        tmp_path, text.replace("train_config {", 'train_config { fine_tune_checkpoint: ""')
    )
    parameters = found.sections["train"]["model_parameters"]
    assert (parameters["nms_iou"], parameters["max_detections"]) == (0.4, 300)
    assert any(
        "grid_anchor_generator {scales: 0.5 2.0}: our anchors have" in each
        for each in found.summarize()
    )
    assert not any("fine_tune_checkpoint" in each for each in found.summarize())
    assert "score_threshold: 0.3 (ours: 0.01)" in found.to_yaml()


@pytest.mark.parametrize(
    ("trainable", "frozen"), [("", True), ("batch_norm_trainable: true", None)]
)
def test_batch_normalization_of_faster_rcnn_is_frozen_by_default(tmp_path, trainable, frozen):
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace("ssd {", "faster_rcnn {")
    found = converted(
        tmp_path, text.replace("feature_extractor {", f"feature_extractor {{ {trainable}")
    )
    assert found.sections["train"]["model_parameters"].get("frozen_batch_normalization") == frozen
    assert any("Frozen statistics need the weights" in each for each in found.losses) == bool(
        frozen
    )


@pytest.mark.parametrize(
    ("kind", "fields", "task"),
    [
        (
            "faster_rcnn",
            "second_stage_box_predictor { predict_instance_masks: true }",
            "masks",
        ),
        (
            "faster_rcnn",
            "second_stage_box_predictor { predict_instance_masks: false }",
            None,
        ),
        ("faster_rcnn", "context_config { max_num_context_features: 20 }", "context from other"),
        ("center_net", "keypoint_estimation_task { task_name: 'human' }", "keypoints"),
        ("center_net", "mask_estimation_task { task_loss_weight: 1.0 }", "masks"),
    ],
)
def test_a_lost_task_comes_first(tmp_path, kind, fields, task):
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace(
        "ssd {", f"{kind} {{ {fields}"
    )
    found = converted(tmp_path, text)
    first = next(iter(found.list_differences().values()))[0]
    assert first == found.summarize()[0] and first.startswith(task or f"model.{kind}.feature_extra")


def test_what_changes_the_result_is_listed_apart(tmp_path):
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace(
        "num_steps",
        "replicas_to_aggregate: 8 startup_delay_steps: 0 max_number_of_boxes: 100 "
        "data_augmentation_options { ssd_random_crop_pad { } } num_steps",
    )
    text = text.replace("feature_extractor {", "feature_extractor { min_depth: 16 ")
    found = converted(tmp_path, text).list_differences()
    assert [(title.split()[0], len(items)) for title, items in found.items()] == [
        ("Not", 1),
        ("Settings", 3),
        ("Details", 1),
        ("Fields", 3),
    ]
    assert (
        "ssd_random_crop_pad {} is not done. train.input.augment.crops"
        in found[next(iter(found))][0]
    )


@pytest.mark.parametrize(
    ("num_examples", "has_test", "split"),
    [
        (1000, True, {"train": 1, "validation": 0, "test": 0}),
        (9, True, {"train": 1, "validation": 0, "test": 0}),
        (1000, False, {"train": 0.8, "validation": 0.1, "test": 0.1}),
        (25, False, {"train": 0.6, "validation": 0.2, "test": 0.2}),
        (0, True, {"train": 1, "validation": 0, "test": 0}),
    ],
)
def test_a_split_of_a_small_set_is_not_empty(tmp_path, num_examples, has_test, split):
    import tensorflow as tf

    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    text = text.replace("data/train.record", str(tmp_path / "train.record"))
    if num_examples:
        with tf.io.TFRecordWriter(str(tmp_path / "train.record")) as writer:
            for _ in range(num_examples):
                writer.write(b"a record")
    if not has_test:
        text = text[: text.index("eval_input_reader")]
    else:
        text = text.replace("data/eval.record", str(tmp_path / "eval.record"))
    assert converted(tmp_path, text).sections["preprocess"]["split"] == split


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("random_horizontal_flip { }", {"flip_left_right": True}),
        ("random_vertical_flip { keypoint_flip_permutation: 1 }", {"flip_top_bottom": True}),
        ("random_horizontal_flip { probability: 0.0 }", None),
        ("random_image_scale { min_scale_ratio: 0.8 max_scale_ratio: 1.2 }", None),
        ("random_adjust_brightness { max_delta: 0.3 }", {"brightness": 0.3}),
        ("random_adjust_contrast { }", {"contrast": 0.25}),
        ("random_adjust_saturation { min_delta: 0.6 max_delta: 1.1 }", {"saturation": 0.4}),
        ("random_black_patches { }", None),
    ],
)
def test_random_changes(tmp_path, option, wanted):
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace(
        "num_steps", f"data_augmentation_options {{ {option} }} num_steps"
    )
    found = converted(tmp_path, text)
    assert found.sections["train"].get("input", {}).get("augment") == wanted
    assert [leaf.path.rpartition(".")[2] for leaf in found.unconverted] == {
        "random_vertical_flip { keypoint_flip_permutation: 1 }": ["keypoint_flip_permutation"],
    }.get(option, [])
    name = option.partition(" ")[0]
    is_lost = not wanted and "flip" not in name
    assert [f".{name} {{" in loss for loss in found.losses] == [True] * is_lost


def test_a_flip_of_another_share_is_told_with_both(tmp_path):
    option = "data_augmentation_options { random_horizontal_flip { probability: 0.3 } } num_steps"
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace("num_steps", option)
    [loss] = converted(tmp_path, text).losses
    assert loss.endswith("random_horizontal_flip.probability: 0.3, and 0.5 here")


@pytest.mark.parametrize(
    ("resizer", "stage", "channels"),
    [
        ("fixed_shape_resizer { height: 320 width: 640 }", {"height": 320, "width": 640}, 3),
        ("fixed_shape_resizer { height: 300 width: 300 }", {"height": 320, "width": 320}, 3),
        (
            "fixed_shape_resizer { height: 64 width: 64 convert_to_grayscale: true }",
            {"height": 64, "width": 64},
            1,
        ),
        (
            (
                "keep_aspect_ratio_resizer { "
                "min_dimension: 640 max_dimension: 640 pad_to_max_dimension: true }"
            ),
            {"height": 640, "width": 640, "mode": "letterbox"},
            3,
        ),
        ("identity_resizer { }", {"height": 640, "width": 640}, 3),
    ],
)
def test_sizes_of_images(tmp_path, resizer, stage, channels):
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace(
        "fixed_shape_resizer { height: 320 width: 320 }", resizer
    )
    stages = converted(tmp_path, text).sections["preprocess"]["stages"]
    assert stages == [{"decode": {"channels": channels}}, "clip_boxes", {"resize": stage}]


@pytest.mark.parametrize(
    ("kind", "model", "said"),
    [
        ("ssd", "retinanet", "RetinaNet with ResNet50, in place of SSD with FPN (ssd_resnet50"),
        ("faster_rcnn", "retinanet", "RetinaNet with ResNet50, in place of Faster R-CNN"),
        ("center_net", "center_detector", "center_detector in place of CenterNet"),
    ],
)
def test_the_nearest_model_is_said_plainly(tmp_path, kind, model, said):
    found = converted(
        tmp_path,
        (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace("ssd {", f"{kind} {{"),
    )
    assert found.sections["train"]["model"] == model
    assert found.stand_in.startswith(f"Trains {said}")
    assert found.sections["description"].startswith(found.stand_in)
    assert found.to_yaml().startswith(f"# {found.stand_in}.\n")


@pytest.mark.parametrize(
    ("extractor", "backbone"),
    [
        ("ssd_mobilenet_v2_fpn_keras", "MobileNetV2"),
        ("ssd_mobiledet_cpu", "MobileNetV2"),
        ("ssd_spaghettinet", "MobileNetV2"),
        ("ssd_efficientnet-b3_bifpn_keras", "EfficientNetB3"),
        ("ssd_efficientnet-b6_bifpn_keras", "EfficientNetB4"),
        ("ssd_inception_v2", "ResNet50"),
    ],
)
def test_the_nearest_backbone_is_noted_if_it_is_another_one(tmp_path, extractor, backbone):
    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    found = converted(tmp_path, text.replace("ssd_resnet50_v1_fpn_keras", extractor))
    assert found.sections["train"]["model_parameters"]["backbone"] == backbone
    is_told = f"with {backbone}, the nearest to {extractor}," in found.stand_in
    is_exact = extractor in ("ssd_mobilenet_v2_fpn_keras", "ssd_efficientnet-b3_bifpn_keras")
    assert is_told != is_exact


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            "matcher { argmax_matcher { } }",
            "force_match_for_each_row is False by default, and True",
        ),
        ("matcher { bipartite_matcher { } }", None),
        ("post_processing { }", "post_processing.score_converter is IDENTITY by default, and SIG"),
        (
            "box_predictor { weight_shared_convolutional_box_predictor { } }",
            "class_prediction_bias_init is 0.0 by default, and -4.6 in our model",
        ),
    ],
)
def test_a_default_of_the_api_that_our_model_has_otherwise_is_listed(tmp_path, fields, message):
    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    notes = converted(tmp_path, text.replace("ssd {", f"ssd {{ {fields}")).notes
    if message is None:
        assert not any("force_match" in note for note in notes)
    else:
        assert any(message in note for note in notes)


def test_an_ssd_with_other_anchors_is_said_to_become_a_larger_network(tmp_path):
    text = (MINIMAL % (MOMENTUM % "constant_learning_rate { }")).replace(
        "ssd {", "ssd { anchor_generator { ssd_anchor_generator { num_layers: 6 } }"
    )
    found = converted(tmp_path, text)
    assert found.stand_in.endswith(
        "in place of SSD (ssd_resnet50_v1_fpn_keras): other anchors, and a pyramid with levels 3 "
        "to 7, as in SSD FPNLite"
    )
    assert any(
        "ssd_anchor_generator {num_layers: 6}: our anchors have 4 times the stride" in line
        for line in found.summarize()
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("ssd {", "deepmac {"), "model must be ssd, faster_rcnn or center_net"),
        (
            ("batch_size: 16", "batch_size: 'many'"),
            r"pipeline.config:4:16: train_config.batch_size must be a whole number, got 'many'",
        ),
        (
            ("batch_size: 16", "batch_size 16"),
            r"pipeline.config:4:27: expected a colon or a bracket after batch_size",
        ),
        (
            ('"data/train.record"', '"gs://bucket/train.record"'),
            "in local folders are converted. Copy or mount them",
        ),
        (
            ("train_input_reader", "some_reader"),
            "pipeline.config: train_input_reader: there is no tf_record_input_reader.input_path",
        ),
        (('"data/train.record"', '"/train.record"'), "no /train.record. .*folder in common but /."),
        (('"data/eval.record"', '"data/train.record"'), "both read .*/data/train.record, so the"),
        (
            ("constant_learning_rate { }", "exponential_decay_learning_rate { decay_steps: 0 }"),
            r"pipeline.config:4:\d+: .*decay_steps should be greater than or equal to 1, got 0",
        ),
        (
            (
                "constant_learning_rate { }",
                "manual_step_learning_rate { initial_learning_rate: 0.0 "
                "schedule { step: 9 learning_rate: 0.1 } }",
            ),
            r"pipeline.config:4:\d+: .*initial_learning_rate should be greater than 0, got 0.0",
        ),
        (
            (
                "constant_learning_rate { }",
                "manual_step_learning_rate { schedule { step: 9 } schedule { step: 8 } }",
            ),
            r"pipeline.config:4:\d+: .*manual_step_learning_rate.schedule: the steps must ascend",
        ),
        (
            ("train_input_reader {", "train_input_reader { label_map_path: 'data/none.pbtxt'"),
            "cannot read .*none.pbtxt: No such file",
        ),
        (
            (
                "train_input_reader {",
                "train_input_reader { label_map_path: 'PATH_TO_BE_CONFIGURED'",
            ),
            "PATH_TO_BE_CONFIGURED is a placeholder. Set the path.",
        ),
    ],
)
def test_what_can_not_be_carried_over_is_refused(tmp_path, change, problem):
    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    assert change[0] in text
    with pytest.raises(ConfigError, match=problem):
        converted(tmp_path, text.replace(*change))


def test_all_placeholders_are_named_at_once_with_their_lines(tmp_path):
    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    text = re.sub(r'"data/\w+.record"', '"PATH_TO_BE_CONFIGURED"', text).replace(
        "_reader { tf", '_reader { label_map_path: "PATH_TO_BE_CONFIGURED/labels.pbtxt"\n tf'
    )
    with pytest.raises(ConfigError) as error:
        converted(tmp_path, text)
    assert re.findall(r"(\w+)\.(?:\w+\.)?(\w+): '[^']+' \(line (\d)\)", str(error.value)) == [
        ("train_input_reader", "label_map_path", "5"),
        ("train_input_reader", "input_path", "6"),
        ("eval_input_reader", "label_map_path", "7"),
        ("eval_input_reader", "input_path", "8"),
    ]


def test_a_file_that_is_not_utf_8_is_to_be_saved_as_such(tmp_path):
    file = tmp_path / "mine.config"
    file.write_bytes(b"\n# f\xfcr uns")
    with pytest.raises(ConfigError, match=r"mine.config:2: is not UTF-8: .*Save it as UTF-8"):
        convert(file)


def test_records_and_classes_that_are_not_there_yet_are_told(api_folder):
    file = api_folder / "pipeline.config"
    assert not any("There is no" in note for note in convert(file).notes)
    text = file.read_text().replace(f'label_map_path: "{api_folder}/labels.pbtxt"', "")
    file.write_text(text)
    (api_folder / "eval.record").unlink()
    said = " ".join(convert(file).notes)
    assert f"There is no {api_folder}/eval.record yet." in said
    assert "There is no label_map_path. The classes are those that the records name" in said
    assert "not num_classes (10) of the model" in said


@pytest.mark.parametrize(
    "train",
    [
        "train.record@2",
        "train.record-?????-of-00002",
        "train.record-*",
        "train.record-0000[01]-of-00002",
    ],
)
def test_sharded_records_are_counted_under_all_their_names(api_folder, train):
    text = with_paths(SSD, api_folder, train).partition("eval_config")[0]
    (api_folder / "pipeline.config").write_text(text)
    split = convert(api_folder / "pipeline.config").sections["preprocess"]["split"]
    assert split == {"train": 0.72, "validation": 0.14, "test": 0.14}  # about 5 of 36


def test_record_files_without_records_are_named(api_folder):
    for file in api_folder.glob("train.record-*"):
        file.write_bytes(b"")
    with pytest.raises(ConfigError, match="train.record-00000-of-00002 has no record. Correct"):
        convert(api_folder / "pipeline.config")


def test_the_background_of_the_label_map_is_no_class_and_told(api_folder):
    file, labels = api_folder / "pipeline.config", api_folder / "labels.pbtxt"
    before = convert(file)
    labels.write_text("item { id: 0 name: 'background' }\n" + labels.read_text())
    found = convert(file)
    assert found.sections == before.sections
    [told] = set(found.notes) - set(before.notes)
    assert told.startswith("train_input_reader.label_map_path: the item with the id 0 is the back")


def test_equal_label_maps_under_two_paths_are_one(api_folder):
    """An empty path is none."""
    file, labels = api_folder / "pipeline.config", api_folder / "labels.pbtxt"
    other = api_folder / "other.pbtxt"
    other.write_bytes(labels.read_bytes())
    first, second = file.read_text().split(f'eval_input_reader {{\n  label_map_path: "{labels}')
    text = f'{first}eval_input_reader {{\n  label_map_path: "%s{second}'
    for path in (other, ""):
        file.write_text(text % path)
        source = convert(file).sections["preprocess"]["source"]
        assert source["label_map"] == "labels.pbtxt" and len(source["class_names"]) == 10
    other.write_text("item { id: 1 name: 'cat' }")
    file.write_text(text % other)
    with pytest.raises(ConfigError, match="the readers have different label maps"):
        convert(file)


@pytest.mark.parametrize("content", [b"not a record at all, and long enough", b"\x05"])
def test_a_file_that_holds_no_records_is_named(api_folder, content):
    (api_folder / "train.record-00001-of-00002").write_bytes(content)
    with pytest.raises(
        ConfigError,
        match="train.record-00001-of-00002 is truncated or not a TFRecord file",
    ):
        convert(api_folder / "pipeline.config")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            ("optimizer_value: 0.9", "optimizer_value: 1.0"),
            r":77:7: train_config.optimizer.momentum_optimizer.momentum_optimizer_value should be "
            "less than 1, got 1.0",
        ),
        (("batch_size: 8", "batch_size: 0"), r":\d+:3: train_config.batch_size should be greater"),
        (
            ("learning_rate_base: 0.01", "learning_rate_base: 0"),
            r":\d+:11: .*base should be greater",
        ),
        (("rate_base: 0.01", "rate_base: inf"), "base should be a finite number, got inf"),
        (("total_steps: 30", "total_steps: 9"), r":\d+:36: .*total_steps must be above .* got 9"),
        (
            ("warmup_learning_rate: 0.001", "warmup_learning_rate: 1"),
            "must be at most .*base, 0.01",
        ),
        (("height: 128", "height: 20000"), r"resizer.height should be less than or equal to 16384"),
        (("num_steps: 8", "num_steps: 9999999999"), "num_steps should be less than or equal to"),
        (
            ("weight: 4e-05", "weight: 0.5"),
            r":\d+:\d+: .*weight makes a weight decay of 5, divided",
        ),
        (("by_norm: 10.0", "by_norm: inf"), "gradient_clipping_by_norm should be a finite number"),
        (
            ("random_horizontal_flip { }", "random_adjust_brightness { max_delta: -1 }"),
            "random_adjust_brightness.max_delta should be greater than or equal to 0, got -1",
        ),
    ],
)
def test_a_value_out_of_bounds_is_named_with_its_place_in_the_file(
    api_folder, capsys, change, problem
):
    file = api_folder / "pipeline.config"
    text = file.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    assert main(["import-od-api", str(file)]) == 78
    message = capsys.readouterr().err
    assert re.search(problem, message) and str(file) in message
    assert ".yaml" not in message  # there is none


def test_a_decay_factor_of_one_is_a_constant_rate_and_a_larger_one_is_named(tmp_path):
    text = MINIMAL % (MOMENTUM % "exponential_decay_learning_rate { decay_factor: 1.0 }")
    optimizer = converted(tmp_path, text).sections["train"]["optimizer"]
    assert optimizer["schedule"]["factor"] == 1
    with pytest.raises(ConfigError, match=r"pipeline.config:4:\d+: .*decay_factor should be less"):
        converted(tmp_path, text.replace("1.0", "1.1"))


def test_the_pipeline_gets_a_name_that_fits(api_folder, capsys):
    long = api_folder / f"{'ssd_mobilenet_' * 8}coco.config"
    long.write_text((api_folder / "pipeline.config").read_text())
    assert main(["import-od-api", str(long)]) == 0
    name = yaml.safe_load(capsys.readouterr().out)["pipeline"]
    assert len(name) <= 63 and long.name.startswith(name)
    assert main(["import-od-api", str(long), "--name", "mine"]) == 0
    sections = yaml.safe_load(capsys.readouterr().out)
    assert sections["pipeline"] == sections["export"]["model"] == "mine"
    for options, problem in (
        (["--name", "Too Nice"], "Too Nice cannot be the name of a pipeline"),
        (
            ["--output", str(api_folder / f"{'a' * 64}.yaml")],
            "aaa cannot be the name of a pipeline",
        ),
        (["--name", "mine", "--output", str(api_folder / "other.yaml")], "name of its file, other"),
    ):
        assert main(["import-od-api", str(long), *options]) == 78
        assert problem in capsys.readouterr().err


def test_nothing_is_overwritten_and_without_a_place_it_is_printed(api_folder, capsys):
    out = api_folder / "mine.yaml"
    out.write_text("mine")
    assert main(["import-od-api", str(api_folder / "pipeline.config"), "--output", str(out)]) == 78
    assert "already exists" in capsys.readouterr().err and out.read_text() == "mine"
    assert main(["import-od-api", str(api_folder / "pipeline.config")]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["train"]["model"] == "retinanet"


@pytest.mark.models
@pytest.mark.parametrize(("kind", "last"), [("ssd", "train"), ("center_net", "export")])
def test_what_was_imported_is_trained_and_answers_with_the_numbers_of_its_label_map(
    api_folder, tmp_path, kind, last
):
    import tensorflow as tf

    file, labels = api_folder / "pipeline.config", api_folder / "labels.pbtxt"
    text = re.sub(r"id: (\d+)", lambda found: f"id: {9 * int(found[1])}", labels.read_text())
    labels.write_text(f"item {{ id: 0 name: 'background' }}\n{text}")
    file.write_text(
        file.read_text().replace("  ssd {", f"  {kind} {{").replace("use_bfloat16: true", "")
    )
    with (api_folder / "labels.pbtxt").open("a") as labels:
        labels.write("item { id: 11 name: 'cow' }")
    out = Path(tmp_path / "configs" / "imported.yaml")
    assert main(["import-od-api", str(file), "--output", str(out)]) == 0
    gate = [{"metric": "map", "at_least": 0.0}]
    made = run_jobs(out, tmp_path, last, evaluate__gate=gate)
    data = DatasetFigures.model_validate(read_manifest(made["preprocess"]).figures)
    assert data.num_examples == {"train": 36, "validation": 0, "test": 6}
    assert data.class_names == ["digit_0", "cow", *(f"digit_{digit}" for digit in range(1, 10))]
    assert data.num_rejected == 0
    assert any(text.startswith("No training example of cow, so") for text in data.warnings)
    epochs = read_manifest(made["train"]).figures["history"]
    assert epochs[-1]["step"] == 8 and all(
        math.isfinite(epoch["metrics"]["loss"]) for epoch in epochs
    )
    folder = Path(made["train"]).parent / SAVED_MODEL
    model = tf.saved_model.load(str(folder))
    numbers = [9, 11, *(9 * number for number in range(2, 11))]
    found = parse_label_map((folder / "assets" / "label_map.pbtxt").read_bytes(), "it")
    assert list(found.names.items()) == list(zip(numbers, data.class_names, strict=True))
    record = next(iter(tf.data.TFRecordDataset(str(api_folder / "eval.record")))).numpy()
    [image] = parse(record)["image/encoded"]
    pixels = tf.io.decode_image(image, 3)
    ours = model.signatures["serving_default"](tf.io.encode_png(pixels)[None])
    theirs = model(pixels[None])
    assert ours["scores"].numpy().max() > 0
    wanted = np.where(ours["scores"] > 0, np.array(numbers)[ours["classes"].numpy()], 1)
    assert (theirs["detection_classes"].numpy() == wanted).all()


@pytest.mark.models
@pytest.mark.timeout(600)
def test_an_imported_model_is_as_good_as_the_same_one_written_by_hand(api_folder, tmp_path):
    write_records(api_folder / "train.record-00000-of-00002", "train", range(120))
    write_records(api_folder / "train.record-00001-of-00002", "train", range(120, 240))
    write_records(api_folder / "eval.record", "test", range(40))
    (api_folder / "pipeline.config").write_text(with_paths(CENTER_NET, api_folder))
    imported, by_hand = tmp_path / "configs" / "imported.yaml", tmp_path / "configs" / "hand.yaml"
    assert (
        main(["import-od-api", str(api_folder / "pipeline.config"), "--output", str(imported)]) == 0
    )
    by_hand.write_text(BY_HAND.format(folder=api_folder))
    found = [
        read_manifest(run_jobs(file, tmp_path / file.stem, "evaluate")["evaluate"]).figures
        for file in (imported, by_hand)
    ]
    first, second = (figures["challenger"]["metrics"] for figures in found)
    assert first["map_50"] > 0.3
    assert abs(first["map"] - second["map"]) < 0.001


@pytest.mark.parametrize(
    ("fields", "parameter", "is_listed"),
    [
        ("max_total_detections: 300 max_detections_per_class: 300", 300, False),
        ("max_total_detections: 100 max_detections_per_class: 100", None, False),
        ("max_total_detections: 300 max_detections_per_class: 20", 300, True),
        ("", None, False),
    ],
)
def test_the_number_of_answers_is_converted(tmp_path, fields, parameter, is_listed):
    text = MINIMAL % (MOMENTUM % "constant_learning_rate { }")
    suppression = f"ssd {{ post_processing {{ batch_non_max_suppression {{ {fields} }} }}"
    found = converted(tmp_path, text.replace("ssd {", suppression))
    assert found.sections["train"]["model_parameters"].get("max_detections") == parameter
    assert any("max_detections_per_class" in field.path for field in found.unconverted) == is_listed


@pytest.mark.parametrize(
    "old, new, error, message",
    [
        ("LABELS", "/dev/zero", DataError, "/dev/zero: has 4194305 bytes, allowed are 4194304"),
        ("LABELS", "\\000", ConfigError, "a path has no null character. Correct the path."),
        ("TRAIN", "a\\000b", ConfigError, r"input_path: 'a.b' \(line \d+\): a path has no null "),
        ("EVAL", "\\377", ConfigError, r"config:\d+:\d+: the text b'.xff' is not UTF-8. Rename"),
    ],
)
def test_a_path_that_leads_to_no_file_is_told(api_folder, old, new, error, message):
    file = api_folder / "pipeline.config"
    file.write_text(with_paths(SSD.replace(old, new, 1), api_folder))
    with pytest.raises(error, match=message):
        convert(file)


def test_a_checkpoint_with_a_name_that_no_file_can_have_is_told(api_folder):
    file = api_folder / "pipeline.config"
    file.write_text(file.read_text().replace('"resnet50"', f'"{"a" * 300}"'))
    converted = convert(file)
    assert "warm_start" not in converted.sections["train"]
    problem = f"because {'a' * 300}.ckpt-1.index cannot be read (File name too long)."
    assert problem in " ".join(converted.losses)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_kinds_of_line_ends_give_the_same_lines(api_folder, end):
    file = api_folder / "pipeline.config"
    expected = convert(file).to_yaml()
    file.write_bytes(file.read_text().replace("\n", end).encode())
    assert convert(file).to_yaml() == expected
