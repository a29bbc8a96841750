"""Random configs that `trainyard validate` accepts, on tiny raw data.

`draw_config(number, ...)` starts from a small pipeline that learns its data in seconds, and changes
some of its keys, each time to a value that leaves the config valid. The number is the seed.
Values come from `TABLE`, and for other keys from the type and the bounds in `pipeline_ops/config/`.
`NOT_DRAWN` names the rest, with the reason.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import annotated_types
import numpy as np
import yaml

from pipeline_ops.config.fields import ConfigField, collect_fields
from pipeline_ops.config.model_data_rules import check_model_for_data
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ConfigError

NUM_IMAGES, NUM_SCENES = 150, 60
CLASSES = ("circle", "cross", "stripes")
SIDE = 20
"""Height and width of the images of classes."""
SCENE = (64, 80)
_MAX_CHANGES = 12
_NETS = """
import keras
import tensorflow as tf


def build(image_shape, num_classes, units=24):
    inputs = keras.Input(image_shape)
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.Dense(units, activation="relu", name="hidden")(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(x))


def hinge(labels, logits):
    one_hot = keras.ops.one_hot(labels, logits.shape[-1])
    return keras.ops.mean(keras.ops.maximum(0.0, 1.0 + (1 - 2 * one_hot) * logits), axis=-1)


def top_2(labels, logits):
    return keras.metrics.sparse_top_k_categorical_accuracy(labels, logits, k=2)


def shade(image, seed):
    return image * tf.random.stateless_uniform([], seed, 0.7, 1.0)


def take(model, optimizer, batch, context):
    images, labels = batch
    with tf.GradientTape() as tape:
        loss = model.compute_loss(y=labels, y_pred=model(images, training=True))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return {"loss": loss * context.num_replicas_in_sync}


def halve(step, total_steps, steps):
    return 0.5 ** (step // steps)


watch = keras.callbacks.LambdaCallback()
"""

Change = Mapping[str, Any]
"""Values by dotted key, which are set together."""


def write_raw_data(folder: Path) -> None:
    """Writes pictures of three classes, scenes with them, and their labels in several formats."""
    rng = np.random.default_rng(7)
    rows = []
    for number in range(NUM_IMAGES):
        name = CLASSES[number % len(CLASSES)]
        path = folder / "images" / name / f"{number:03}.png"
        _write_png(path, _draw_class(name, SIDE + number % 3, rng))
        rows.append((f"images/{name}/{path.name}", name))
    _write_text(folder / "labels.csv", _to_csv(["path", "label"], rows))
    lines = [json.dumps({"path": path, "label": label}) for path, label in rows]
    _write_text(folder / "labels.jsonl", "\n".join(lines) + "\n")
    _write_scenes(folder / "scenes", rng)


def _draw_class(name: str, side: int, rng: np.random.Generator) -> np.ndarray:
    """Draws one shape, uint8 [side, side, 3]: bright on dark, in any colour, with noise."""
    y, x = np.mgrid[0:side, 0:side] / (side - 1) - 0.5
    shape = {
        "circle": (x**2 + y**2 < 0.16) & (x**2 + y**2 > 0.05),
        "cross": (abs(x) < 0.1) | (abs(y) < 0.1),
        "stripes": (np.arange(side) // 2 % 2 == 0)[:, None] & np.ones_like(x, bool),
    }[name]
    color = rng.integers(120, 256, 3)
    image = shape[..., None] * color + rng.integers(0, 40, (side, side, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


def _write_scenes(folder: Path, rng: np.random.Generator) -> None:
    """Writes scenes with one or two shapes, and their boxes in all formats."""
    height, width = SCENE
    coco: dict[str, list] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": n + 1, "name": name} for n, name in enumerate(CLASSES)],
    }
    lines, via, beside = [], {}, folder.parent / "beside"
    for number in range(NUM_SCENES):
        image = rng.integers(0, 40, (height, width, 3)).astype(np.uint8)
        boxes = []
        for slot in range(1 + number % 2):
            name, side = CLASSES[(number + slot) % len(CLASSES)], int(rng.integers(18, 30))
            top = int(rng.integers(0, height - side))
            left = slot * width // 2 + int(rng.integers(0, width // 2 - side))
            image[top : top + side, left : left + side] = _draw_class(name, side, rng)
            boxes.append((left, top, left + side, top + side, name))
        file = f"scene-{number:03}.png"
        _write_png(folder / "images" / file, image)
        coco["images"].append({"id": number, "file_name": file, "height": height, "width": width})
        for left, top, right, bottom, name in boxes:
            coco["annotations"].append(
                {
                    "id": len(coco["annotations"]),
                    "image_id": number,
                    "category_id": CLASSES.index(name) + 1,
                    "bbox": [left, top, right - left, bottom - top],
                }
            )
        keys = ("xmin", "ymin", "xmax", "ymax", "label")
        named = [dict(zip(keys, box, strict=True)) for box in boxes]
        lines.append(json.dumps({"path": f"images/{file}", "boxes": named}))
        relative = [
            (
                CLASSES.index(name),
                (left + right) / 2 / width,
                (top + bottom) / 2 / height,
                (right - left) / width,
                (bottom - top) / height,
            )
            for left, top, right, bottom, name in boxes
        ]
        text = "".join(" ".join(map(str, row)) + "\n" for row in relative)
        _write_text(folder / "labels" / f"scene-{number:03}.txt", text)
        _write_png(beside / file, image)
        _write_text(beside / f"scene-{number:03}.txt", text)
        shapes = [
            {"label": name, "shape_type": "rectangle", "points": [[left, top], [right, bottom]]}
            for left, top, right, bottom, name in boxes
        ]
        content = {"imagePath": file, "imageHeight": height, "imageWidth": width, "shapes": shapes}
        _write_text(beside / f"scene-{number:03}.json", json.dumps(content))
        regions = [
            {
                "shape_attributes": {"name": "rect", "x": left, "y": top}
                | {"width": right - left, "height": bottom - top},
                "region_attributes": {"class": name},
            }
            for left, top, right, bottom, name in boxes
        ]
        via[file] = {"filename": file, "regions": regions}
        _write_text(folder / "Annotations" / f"scene-{number:03}.xml", _to_voc(file, boxes))
    _write_text(beside / "classes.txt", "\n".join(CLASSES))
    _write_text(folder / "via.json", json.dumps(via))
    _write_text(folder / "coco.json", json.dumps(coco))
    _write_text(folder / "boxes.jsonl", "\n".join(lines) + "\n")
    _write_text(folder / "data.yaml", yaml.safe_dump({"train": "images", "names": [*CLASSES]}))
    (folder / "JPEGImages").symlink_to("images")


def _to_voc(file: str, boxes: Sequence[tuple]) -> str:
    height, width = SCENE
    objects = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for left, top, right, bottom, name in boxes
    )
    return (
        f"<annotation><filename>{file}</filename><size><width>{width}</width>"
        f"<height>{height}</height><depth>3</depth></size>{objects}</annotation>"
    )


def _to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return text.getvalue()


def _write_png(path: Path, image_HWC: np.ndarray) -> None:
    import cv2

    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image_HWC[..., ::-1])


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


CLASS_SOURCES: Sequence[Change] = (
    {"type": "image_folder", "path": "raw/images"},
    {"type": "csv", "path": "raw", "manifest": "labels.csv", "task": "classification"},
    {"type": "jsonl", "path": "raw", "manifest": "labels.jsonl", "task": "classification"},
)
BOX_SOURCES: Sequence[Change] = (
    {
        "type": "coco",
        "path": "raw/scenes",
        "parts": [{"annotations": "coco.json", "images": "images"}],
    },
    {"type": "voc", "path": "raw/scenes"},
    {"type": "yolo", "path": "raw/scenes"},
    {"type": "yolo", "path": "raw/beside", "data": "classes.txt"},
    {"type": "labelme", "path": "raw/beside"},
    {"type": "via", "path": "raw/scenes", "parts": [{"manifest": "via.json", "images": "images"}]},
    {"type": "jsonl", "path": "raw/scenes", "manifest": "boxes.jsonl", "task": "detection"},
)
CLASSIFICATION = {
    "train.model": "digits_cnn",
    "train.epochs": 6,
    "train.optimizer.learning_rate": 3e-3,
    "evaluate.gate": [{"metric": "accuracy", "at_least": 0.6}],
}
DETECTION = {
    "train.model": "center_detector",
    "train.model_parameters": {"width": 8},
    "train.epochs": 8,
    "train.optimizer.learning_rate": 1e-2,
    "evaluate.gate": [{"metric": "map_50", "at_least": 0.1}],
}
DETECTION_SHARE = 0.2

NOT_DRAWN = {
    "pipeline": "it is the number of the config",
    "per_run": "no run has a conf here",
    "storage.": "the root is a folder of the test. Group stores has buckets",
    "schedule.": "a DAG has it, and no job",
    "search.": "tests/orchestration/test_search.py has real searches",
    "notify[].": "a DAG has it, and no job",
    "runs_on": "groups hosts and containers have other places",
    "pool": "Airflow has it, and no job",
    "retries": "Airflow has it, and no job",
    "timeout_seconds": "it ends the process of the job, and here the jobs have none",
    "train.dataset": "it must make the sizes of the stages, see tests/training/test_own_dataset.py",
    "train.hosts": "groups hosts and containers have other hosts",
    "train.tpu": "there is none",
    "preprocess.source.": "`CLASS_SOURCES` and `BOX_SOURCES`",
    "preprocess.dataset": "it names a data set of an earlier run",
    "preprocess.runner.endpoint": "group engines has other runners",
    "preprocess.runner.options": "group engines has other runners",
    "preprocess.runner.rest_address": "group engines has other runners",
    "preprocess.runner.shared_disk": "group engines has other runners",
    "preprocess.runner.worker_pool": "group engines has other runners",
    "preprocess.stages[].": "`TABLE` has whole lists of stages",
    "evaluate.approval.": "a person has to answer",
    "export.registry": "group stores has registries in buckets",
    "export.model": "it is the name of the pipeline",
    "export.shared_with": "no other pipeline publishes the model",
}
"""Keys, or the beginnings or ends of keys, that are not drawn, with the reason."""

_SLICES = [{"by": "image_bytes", "name": "size", "edges": [500, 1500]}]
TABLE: Mapping[str, Sequence[Change]] = {
    "preprocess.stages": [
        {"preprocess.stages": stages}
        for stages in (
            [{"decode": {"channels": 1}}, {"resize": {"height": 24, "width": 24}}],
            ["decode", {"resize": {"height": 16, "width": 28, "mode": "letterbox"}}],
            ["decode", {"resize": {"height": 32, "width": 32, "mode": "crop"}}],
            ["decode", {"resize": {"height": 64, "width": 64, "mode": "letterbox"}}],
            ["decode", {"resize": {"height": 96, "width": 64, "mode": "stretch"}}],
            ["decode", {"resize": {"height": 48, "width": 48, "mode": "crop"}}],
            ["decode", {"resize": {"height": 32, "width": 32}}, {"encode": {"format": "jpeg"}}],
            ["decode", "equalize", {"resize": {"height": 32, "width": 32}}],
            ["decode", {"filter": {"min_side": 21}}, {"resize": {"height": 32, "width": 32}}],
            ["decode", {"map_classes": {"rename": {"circle": "round"}}}]
            + [{"resize": {"height": 64, "width": 64}}],
            ["decode", {"map_classes": {"drop": ["cross"]}}]
            + [{"resize": {"height": 64, "width": 64}}],
            ["decode", {"tile": {"height": 32, "width": 32, "overlap": 8}}],
            ["decode", {"clip_boxes": {"min_side": 4}}, {"resize": {"height": 64, "width": 64}}],
        )
    ],
    "preprocess.split": [
        {
            "preprocess.split.train": train,
            "preprocess.split.validation": validation,
            "preprocess.split.test": test,
        }
        for train, validation, test in ((0.8, 0.1, 0.1), (0.4, 0.3, 0.3), (0.9, 0.05, 0.05))
    ],
    "preprocess.split.group_by": [
        {"preprocess.split.group_by": "parent_folder"},
        {"preprocess.split.group_by": "regex", "preprocess.split.group_regex": "([0-9])[0-9]\\."},
    ],
    "preprocess.runner.name": [
        {"preprocess.runner.workers": 1},
        {"preprocess.runner.workers": 2},
    ],
    "train.model": [
        {"train.model": "dense", "train.model_parameters": {"units": 16, "hidden_layers": 2}},
        {"train.model": "nets:build"},
        {"train.model": "nets:build", "train.model_parameters": {"units": 12}},
        {"train.model": "center_detector", "train.model_parameters": {"width": 12}},
        {
            "train.model": "center_detector",
            "train.model_parameters": {"width": 8, "max_detections": 150},
        },
    ],
    "train.loss": [{"train.loss": "nets:hinge"}],
    "train.loss_arguments": [
        {
            "train.loss": "keras.losses:CategoricalFocalCrossentropy",
            "train.loss_arguments": {"gamma": 3.0},
        }
    ],
    "train.step": [{"train.step": "nets:take", "train.model": "nets:build"}],
    "train.weights_by_class": [{"train.weights_by_class": {"cross": 2.0}}],
    "train.metrics": [
        {"train.metrics": ["nets:top_2"]},
        {
            "train.metrics": [{"nets:top_2": {"mode": "max"}}],
            "train.best_checkpoint.monitor": "validation_top_2",
        },
    ],
    "train.files": [{"train.files": ["nets.py"]}],
    "evaluate.files": [{"evaluate.files": ["nets.*"]}],
    "preprocess.files": [{"preprocess.files": ["n*.py"]}],
    "train.callbacks": [
        {"train.callbacks": ["nets:watch", {"keras.callbacks:CSVLogger": {"filename": "a.csv"}}]}
    ],
    "train.strategy": [
        {"train.strategy": "multi_worker_mirrored", "train.workers": 2},
        {"train.strategy": "multi_worker_mirrored", "train.devices_per_worker": 2},
        {"train.strategy": "multi_worker_mirrored", "train.workers": 2, "train.min_workers": 1},
        {"train.strategy": "multi_worker_mirrored", "train.max_workers": 2},
        {"train.strategy": "mirrored", "train.devices_per_worker": 2},
        {"train.strategy": "auto"},
        {"train.strategy": "auto", "train.workers": 2},
        {
            "train.strategy": "parameter_server",
            "train.parameter_servers": 1,
        },
        {
            "train.strategy": "device_placement",
            "train.devices_per_worker": 2,
            "train.placement": {"conv2d": "CPU:1", "logits": "CPU:0"},
        },
        {
            "train.strategy": "dtensor",
            "train.devices_per_worker": 2,
            "train.sharding": {"*logits/kernel": 0},
        },
    ],
    "train.input.augment": [
        {"train.input.augment.flip_left_right": True, "train.input.augment.flip_top_bottom": True},
        {"train.input.augment.scale": {"min": 0.7, "max": 1.4}, "train.input.augment.shift": 0.1},
        {"train.input.augment.brightness": 0.3, "train.input.augment.contrast": 0.4},
        {"train.input.augment.saturation": 0.5},
        {"train.input.augment.rotation": 15.0},
        {"train.input.augment.rotation": 180.0, "train.input.augment.own": "nets:shade"},
        {"train.input.augment.mixup": 0.2},
        {"train.input.augment.cutmix": 1.0},
        {"train.input.augment.mixup": 1.0, "train.input.augment.cutmix": 0.5},
        {"train.input.augment.mosaic": 0.5},
        {"train.input.augment.crops": [{"min_object_covered": 0.5}, {"keep_whole": 0.5}]},
        {"train.input.augment.min_visible": 0.8},
    ],
    "train.optimizer": [
        {"train.optimizer": optimizer}
        for optimizer in (
            {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
            {"name": "sgd", "learning_rate": 0.2},
            {"name": "sgd", "learning_rate": 0.05, "momentum": 0.8, "nesterov": True},
            {"name": "sgd", "learning_rate": 10.0, "momentum": 0.99},
            {"name": "adamw", "learning_rate": 3e-3, "weight_decay": 0.01},
            {"name": "rmsprop", "learning_rate": 2e-3, "momentum": 0.5, "epsilon": 1e-3},
            {"name": "adam", "learning_rate": 1e-6},
            {"name": "adam", "learning_rate": 1e-2, "epsilon": 0.1},
            {"name": "keras.optimizers:Lion", "arguments": {"beta_1": 0.95}},
        )
    ],
    "train.optimizer.schedule": [
        {"train.optimizer.schedule": schedule}
        for schedule in (
            {"type": "cosine", "warmup_steps": 5},
            {"type": "cosine", "decay_steps": 10, "end_factor": 0.1},
            {"type": "exponential", "decay_steps": 10, "factor": 0.9},
            {"type": "piecewise", "boundaries_steps": [10, 20], "factors": [0.5, 0.1]},
            {"type": "constant", "warmup_steps": 1000},
            {"type": "own", "function": "nets:halve", "arguments": {"steps": 5}},
            {"type": "cosine", "warmup_steps": 5, "warmup_factor": 0.5, "hold_steps": 3},
            {
                "type": "exponential",
                "decay_steps": 10,
                "factor": 0.9,
                "staircase": True,
                "min_factor": 0.8,
                "warmup_steps": 5,
                "warmup_type": "constant",
            },
        )
    ],
    "train.optimizer.clip": [
        {"train.optimizer.clip": clip} for clip in ({"global_norm": 1}, {"norm": 0.1}, {"value": 1})
    ],
    "train.optimizer.average_weights": [
        {"train.optimizer.average_weights": decay} for decay in (0.5, 0.99, 0.9999)
    ],
    "train.warm_start": [{"train.warm_start": "champion"}, {"train.warm_start": "version 3"}],
    "train.freeze_epochs": [{"train.freeze_epochs": 1, "train.warm_start": "champion"}],
    "train.freeze": [{"train.freeze": {"*kernel": 1}}, {"train.freeze": {"*logits/bias": None}}],
    "train.early_stopping": [
        {"train.early_stopping": {"monitor": "validation_loss", "patience_epochs": 1}},
        {"train.early_stopping": {"monitor": "validation_accuracy", "min_delta": 0.5}},
        {"train.early_stopping": None},
    ],
    "train.reduce_learning_rate": [
        {"train.reduce_learning_rate": {"factor": 0.1, "patience_epochs": 1}},
        {"train.reduce_learning_rate": {"monitor": "validation_accuracy"}},
    ],
    "train.best_checkpoint": [
        {"train.best_checkpoint": None},
        {"train.best_checkpoint": {"monitor": "validation_loss", "keep": 3}},
        *(
            {"train.best_checkpoint": {"monitor": f"validation_{name}"}}
            for name in ("macro_f1", "worst_class_recall", "top_2_accuracy", "map", "mar_10")
        ),
    ],
    "train.on_divergence": [
        {"train.on_divergence": {"action": "skip_batch", "max_times": 2}},
        {"train.on_divergence": {"action": "lower_learning_rate", "max_loss": 50}},
        {"train.on_divergence": {"action": "stop", "max_loss": 1e-3}},
    ],
    "train.debug": [{"train.debug": [switch]} for switch in ("numerics", "determinism", "eager")],
    "train.input.local_folder": [
        {"train.input.local_folder": "{folder}/host", "train.input.local_copy": "always"},
        {"train.input.cache": "disk", "train.input.local_limit_gib": 1e-4},
    ],
    "evaluate.gate": [
        {"evaluate.gate": gate}
        for gate in (
            [{"metric": "accuracy", "at_least": 0.6, "max_regression": 0.01, "confidence": 0.9}],
            [
                {"metric": "macro_f1", "at_least": 0.6},
                {"metric": "calibration_error", "at_most": 0.5},
            ],
            [{"metric": "recall", "of_class": "*", "at_least": 0.5}],
            [{"metric": "recall", "of_class": "cross", "at_least": 0.6, "min_examples": 3}]
            + [{"metric": "accuracy", "at_least": 0.6}],
            [{"metric": "accuracy", "at_least": 0.6}, {"metric": "drift", "at_most": 0.5}],
            [{"metric": "accuracy", "at_least": 0.6}, {"metric": "serving_skew", "at_most": 0.5}],
            [
                {"metric": "accuracy", "at_least": 0.6},
                {"metric": "latency_milliseconds", "at_most": 1e4},
            ],
            [{"metric": "accuracy", "at_least": 0.6}, {"metric": "model_bytes", "at_most": 1e9}],
            [{"metric": "macro_roc_auc", "at_least": 0.8}],
            [{"metric": "macro_average_precision", "at_least": 0.7}],
            [{"metric": "accuracy", "min_improvement": 0.01}],
            [{"metric": "nets:top_2", "at_least": 0.7, "max_regression": 0.1, "confidence": 0.9}],
            [{"metric": "map", "max_regression": 0.1, "confidence": 0.9}]
            + [{"metric": "mar_100", "at_least": 0.1}],
            [{"metric": "macro_f1", "min_skill": 0.3}],
            [{"metric": "map_50", "min_skill": 0.05}],
            [{"metric": "map", "at_least": 0.1}],
            [{"metric": "map_small", "at_least": 0.1}, {"metric": "map_50", "at_least": 0.1}],
        )
    ],
    "evaluate.slices": [
        {
            "evaluate.slices": _SLICES,
            "evaluate.gate": [{"metric": "accuracy", "of_slice": "size", "at_least": 0.5}],
        },
        {"evaluate.slices": [{"by": "folder", "folder_depth": 1}]},
        {"evaluate.slices": [{"by": "image/width", "edges": [21, 22]}]},
    ],
    "export.formats": [
        {"export.formats": ["saved_model", "tflite"]},
        {"export.formats": ["saved_model", "onnx"]},
        {"export.formats": ["saved_model", "tflite_int8"], "export.int8.tolerance": 0.5},
    ],
    "train.epochs": [{"train.epochs": epochs} for epochs in (1, 3, 12)],
    "train.steps": [{"train.steps": steps} for steps in (2, 9, 10**6)],
    "train.global_batch_size": [{"train.global_batch_size": size} for size in (1, 7, 16, 64, 1000)],
    "train.batch_size_per_replica": [
        {"train.global_batch_size": None, "train.batch_size_per_replica": size} for size in (5, 16)
    ],
    "train.scale_learning_rate": [
        {
            "train.global_batch_size": None,
            "train.batch_size_per_replica": 8,
            "train.scale_learning_rate": rule,
        }
        for rule in ("linear", "sqrt")
    ],
    "train.micro_batches": [{"train.micro_batches": parts} for parts in (2, 5)],
    "train.steps_per_call": [{"train.steps_per_call": steps} for steps in (1, 7, 10_000)],
    "train.tensorboard.profile_steps": [
        {"train.tensorboard.profile_steps": steps} for steps in ([1, 1], [4, 9], [10**6, 10**6])
    ],
    "train.seed": [{"train.seed": seed} for seed in (0, 2**31, 2**32 - 1)],
    "preprocess.split.seed": [{"preprocess.split.seed": seed} for seed in (0, 11, -1)],
    "preprocess.shards": [{"preprocess.shards": count} for count in (1, 3, 200)],
    "preprocess.shard_megabytes": [{"preprocess.shard_megabytes": size} for size in (0.01, 100)],
    "train.checkpoint_every_steps": [{"train.checkpoint_every_steps": n} for n in (1, 9, 10**6)],
    "train.start_timeout_seconds": [{"train.start_timeout_seconds": 600}],
    "train.step_timeout_seconds": [{"train.step_timeout_seconds": 600}],
    "train.phase_timeout_seconds": [{"train.phase_timeout_seconds": 600}],
    "train.heartbeat_timeout_seconds": [{"train.heartbeat_timeout_seconds": 60}],
    "description": [{"description": "A *pipeline* of <b>tests</b>."}],
    "owner": [{"owner": "vision"}],
    "tags": [{"tags": ["tests", "random"]}],
    "export.card": [{"export.card": {"Intended use": "Tests."}}],
}


def find_values(field: ConfigField) -> list[Any]:
    """Finds values for a key from its type and bounds. Empty if these say too little."""
    default = field.fields[0].get_default(call_default_factory=True)
    members = set()
    for declared in field.fields:
        members |= {*_iterate_literals(declared.annotation)}
    if members:
        return sorted(members, key=str)
    if isinstance(default, bool):
        return [not default]
    bounds = _find_bounds(field)
    if not bounds or isinstance(default, str):
        return []
    low, high = bounds.get("low"), bounds.get("high")
    base = default if isinstance(default, (int, float)) and default else (low or 1)
    types = {type_ for known in field.fields for type_ in _iterate_types(known.annotation)}
    values = [low, base / 2, base * 2, high if high is not None and high <= base * 20 else None]
    found = [
        float(value) if float in types else int(value) for value in values if value is not None
    ]
    return [value for value in dict.fromkeys(found) if field.accepts(value)]


def _iterate_literals(annotation: Any) -> Iterator[Any]:
    for member in _iterate_types(annotation):
        if typing.get_origin(member) is typing.Literal:
            yield from typing.get_args(member)


def _iterate_types(annotation: Any) -> Iterator[Any]:
    yield annotation
    yield from typing.get_args(annotation)


def _find_bounds(field: ConfigField) -> dict[str, float]:
    bounds: dict[str, float] = {}
    for rule in field.fields[0].metadata:
        for kind, name in ((annotated_types.Ge, "ge"), (annotated_types.Gt, "gt")):
            if isinstance(rule, kind):
                bounds["low"] = getattr(rule, name)
        for kind, name in ((annotated_types.Le, "le"), (annotated_types.Lt, "lt")):
            if isinstance(rule, kind):
                bounds["high"] = getattr(rule, name)
    return bounds


def is_not_drawn(key: str) -> bool:
    """Returns whether `NOT_DRAWN` has a reason for a key."""
    return any(is_meant(key, name) for name in NOT_DRAWN)


def is_meant(key: str, name: str) -> bool:
    """Returns whether an entry of `NOT_DRAWN` is about a key."""
    return key == name or key.endswith("." + name) or (name.endswith(".") and key.startswith(name))


def list_changes() -> list[Change]:
    """All changes that are drawn from. Raises ValueError for a key without any, and no reason."""
    changes: list[Change] = [change for rows in TABLE.values() for change in rows]
    listed = {key for change in changes for key in change}
    for key, field in collect_fields(PipelineConfig).items():
        is_listed = any(
            key == name or key.startswith((f"{name}.", f"{name}[].")) for name in listed
        )
        if is_listed or is_not_drawn(key):
            continue
        values = [] if field.is_in_list else find_values(field)
        if not values:
            raise ValueError(
                f"{key} has no values. Add some to TABLE, or a reason to NOT_DRAWN, "
                "in tests/support/random_configs.py."
            )
        changes += [{key: value} for value in values]
    return changes


def draw_config(number: int, folder: Path, changes: Sequence[Change]) -> Path:
    """Writes the config of a number, which is valid, into a folder. Its raw data are in `raw/`."""
    draw = random.Random(number)
    is_detection = draw.random() < DETECTION_SHARE
    file = folder / f"c{number}.yaml"
    values = _make_base(f"c{number}", draw, is_detection)
    _write_yaml(file, values)
    check_config(file)
    wanted, done = draw.randint(1, _MAX_CHANGES), 0
    for change in draw.sample(changes, len(changes)):
        if done == wanted:
            break
        changed = copy.deepcopy(values)
        try:
            _apply(changed, change)
            _write_yaml(file, changed)
            check_config(file)
        except ConfigError:
            continue
        values, done = changed, done + 1
    _write_yaml(file, values)
    return file


def check_config(file: Path) -> PipelineConfig:
    """Checks a config as `trainyard validate` does. Raises ConfigError."""
    from beam_jobs.stages import check_stages

    config = load_config(file)
    check_stages(config.preprocess, file.parent)
    check_model_for_data(config)
    return config


def write_nets(folder: Path) -> None:
    """Writes the module with the model and the functions that some configs name."""
    _write_text(folder / "nets.py", _NETS)


def _make_base(name: str, draw: random.Random, is_detection: bool) -> dict[str, Any]:
    size = {"height": 64, "width": 80} if is_detection else {"height": 24, "width": 24}
    values = {
        "pipeline": name,
        "storage": {"root": "root"},
        "preprocess": {
            "source": dict(draw.choice(BOX_SOURCES if is_detection else CLASS_SOURCES)),
            "stages": ["decode", {"resize": size}],
            "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
            "shards": 2,
        },
        "train": {"strategy": "one_device", "global_batch_size": 16},
        "evaluate": {},
        "export": {"model": name},
    }
    _apply(values, DETECTION if is_detection else CLASSIFICATION)
    return values


def _apply(values: dict[str, Any], change: Change) -> None:
    """Sets values by dotted key. Sections on the way that are null or missing are made."""
    for key, value in change.items():
        *sections, last = key.split(".")
        inner = values
        for section in sections:
            if not isinstance(inner.get(section), dict):
                inner[section] = {}
            inner = inner[section]
        inner[last] = copy.deepcopy(value)


def _write_yaml(file: Path, values: Mapping[str, Any]) -> None:
    text = yaml.safe_dump(dict(values), sort_keys=False)
    file.write_text(text.replace("{folder}", str(file.parent)))
