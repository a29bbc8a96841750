"""A small data set of scenes with real digits, as preprocessing leaves it, and train jobs on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manifests import list_counted, make_manifest
from small_datasets import decode_only

from beam_jobs.statistics.summary import compute_class_weights
from pipeline_ops.contract.dataset import CLASS_WEIGHTS, DatasetFigures, build_shard_name
from pipeline_ops.contract.manifest import write_manifest
from pipeline_ops.storage.open_store import open_path

DIGIT_SCENES = Path(__file__).resolve().parents[2] / "configs" / "digit_scenes.yaml"
NUM_SHARDS = 4
COUNTS = {"train": 150, "validation": 20, "test": 30}
CLASS_NAMES = [str(digit) for digit in range(10)]
SGD = {"name": "sgd", "learning_rate": 3e-5, "momentum": 0.9, "clip": {"global_norm": 10.0}}
"""And not Adam, which divides by the size of a gradient, and so makes much of the last digit of a
small one."""
AUGMENT = {
    "flip_left_right": True,
    "scale": {"min": 0.8, "max": 1.25},
    "brightness": 0.1,
    "contrast": 0.1,
    "mosaic": 0.5,
}
"""Everything that moves boxes: each worker has to change its examples as any other would have."""
DETECTORS = {
    "center_detector": {"width": 8},
    "retinanet": {
        "backbone": "MobileNetV2",
        "backbone_parameters": {"alpha": 0.35},
        "width": 16,
        "depth": 1,
        "normalization": "group",
        "frozen_batch_normalization": True,
        "anchor_scale": 2.0,
    },
}
"""A small detector of each kind, by the name of its model."""

_LIGHT = DETECTORS["retinanet"] | {"separable": True}
_OF_THE_API = {"box_scales": [10.0, 10.0, 5.0, 5.0], "box_loss_delta": 1.0, "scales_per_octave": 2}
DETECTOR_KINDS = {
    **{name: (name, parameters) for name, parameters in DETECTORS.items()},
    "fpnlite": ("retinanet", _LIGHT | _OF_THE_API | {"activation": "relu6"}),
    "efficientdet": ("retinanet", _LIGHT | {"bifpn_rounds": 2, "activation": "silu"}),
}
"""Those, and detectors as of the Object Detection API: models with parameters."""


@pytest.fixture(scope="session")
def scenes(tmp_path_factory) -> str:
    """The URI of a data set's manifest: 200 scenes of 128x128."""
    folder = tmp_path_factory.mktemp("scenes")
    counts, labels = {}, {}
    for split, count in COUNTS.items():
        examples = [scene_example(split, number) for number in range(count)]
        boxes = [box.label for example in examples for box in example.boxes]
        labels[split] = {name: boxes.count(name) for name in CLASS_NAMES}
        for shard in range(NUM_SHARDS):
            name = build_shard_name(split, shard, NUM_SHARDS)
            counts[name] = _write_shard(folder / name, examples[shard::NUM_SHARDS])
    figures = DatasetFigures(
        task="detection",
        class_names=CLASS_NAMES,
        image_shape=(128, 128, 1),
        num_examples=COUNTS,
        labels=labels,
        num_rejected=0,
        rejected_by_reason={},
        stages=[decode_only(1)],
    )
    (folder / CLASS_WEIGHTS).write_text(json.dumps(compute_class_weights(labels["train"])))
    files = list_counted(folder, counts)
    write_manifest(folder, make_manifest(pipeline="digit_scenes", figures=figures, files=files))
    return str(folder / "manifest.json")


def scene_example(split: str, number: int):
    """A scene as the stages of preprocessing see it."""
    from beam_jobs.stages.stage import Box, Example
    from pipeline_ops.examples.digit_scene import draw_scene

    image, boxes = draw_scene(split, number)
    found = tuple(Box(*map(float, corners), str(digit)) for corners, digit in boxes)
    return Example(
        key=f"{split}/{number:03d}.png", label="", encoded=b"", split=split, boxes=found
    ).with_image(image[..., None])


def _write_shard(path: Path, examples) -> int:
    from beam_jobs.io.example import serialise
    from beam_jobs.io.tfrecord_files import write_tfrecord

    with write_tfrecord(open_path(path)) as writer:
        for example in examples:
            writer.write(
                *serialise(example, {name: index for index, name in enumerate(CLASS_NAMES)})
            )
    return len(examples)


@pytest.fixture
def make_detection_job(scenes, tmp_path, make_job_in):
    """Makes train jobs on the scenes, with overrides of configs/digit_scenes.yaml."""
    return make_job_in(tmp_path, scenes, DIGIT_SCENES)
