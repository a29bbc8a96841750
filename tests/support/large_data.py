"""Large data sets that are written in seconds: small pictures by class, and scenes of many boxes.

A class is a pattern of colours with noise, so that a small network learns it in an epoch or two.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml

from pipeline_ops.config.pipeline import PipelineConfig, load_config

PICTURE_SIDE, SCENE_SIDE = 24, 96
SCENE_CLASSES = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 210)}
_CELLS = 4  # of a pattern, in each direction
_PART = 1000


def write_pictures(folder: Path, count: int, num_classes: int) -> None:
    """Writes `count` JPEG files, in a folder for each class."""
    for number in range(num_classes):
        (folder / _name_class(number)).mkdir(parents=True)
    _run_in_parts(count, partial(_write_pictures, folder, num_classes))


def _name_class(number: int) -> str:
    return f"class_{number:04d}"


def _write_pictures(folder: Path, num_classes: int, part: range) -> None:
    patterns = np.random.default_rng(0).integers(0, 256, (num_classes, _CELLS, _CELLS, 3), np.uint8)
    noise = np.random.default_rng(part.start)
    for number in part:
        label = number % num_classes
        image = np.kron(patterns[label], np.ones((PICTURE_SIDE // _CELLS,) * 2 + (1,)))
        image += noise.normal(0, 16, image.shape)
        _write_image(folder / _name_class(label) / f"{number:07d}.jpg", image)


def write_scenes(folder: Path, count: int, num_boxes: int) -> None:
    """Writes `count` JPEG files with boxes, and `instances.json` as COCO has it."""
    (folder / "images").mkdir(parents=True)
    found = _run_in_parts(count, partial(_write_scenes, folder / "images", num_boxes))
    truth = {
        "images": [
            {
                "id": number,
                "file_name": _name_scene(number),
                "height": SCENE_SIDE,
                "width": SCENE_SIDE,
            }
            for number in range(count)
        ],
        "categories": [{"id": i, "name": name} for i, name in enumerate(SCENE_CLASSES, 1)],
    }
    with (folder / "instances.json").open("w") as file:
        # One part after another: 30,000 scenes have 1.8 million boxes.
        file.write(json.dumps(truth)[:-1] + ', "annotations": [')
        file.write(",\n".join(found) + "]}")


def _name_scene(number: int) -> str:
    return f"{number:07d}.jpg"


def _write_scenes(folder: Path, num_boxes: int, part: range) -> str:
    random, colors, lines = np.random.default_rng(part.start), list(SCENE_CLASSES.values()), []
    side = math.ceil(math.sqrt(num_boxes))
    cell = SCENE_SIDE // side
    for number in part:
        image = np.full((SCENE_SIDE, SCENE_SIDE, 3), 235.0)
        labels = random.integers(0, len(colors), num_boxes)
        sizes = random.integers(cell // 2, cell, (num_boxes, 2))
        for box in range(num_boxes):
            (height, width), label = sizes[box].tolist(), int(labels[box])
            top, left = box // side * cell, box % side * cell
            image[top : top + height, left : left + width] = colors[label]
            values = {
                "id": number * num_boxes + box,
                "image_id": number,
                "category_id": label + 1,
                "bbox": [left, top, width, height],
                "area": height * width,
                "iscrowd": 0,
            }
            lines.append(json.dumps(values))
        image += random.normal(0, 8, (SCENE_SIDE, SCENE_SIDE, 1))
        _write_image(folder / _name_scene(number), image)
    return ",\n".join(lines)


def _write_image(file: Path, image_HWC: np.ndarray) -> None:
    pixels = np.clip(image_HWC, 0, 255).astype(np.uint8)[:, :, ::-1]
    file.write_bytes(cv2.imencode(".jpg", pixels)[1].tobytes())


def _run_in_parts(count: int, write: Callable[[range], Any]) -> list[Any]:
    parts = [range(start, min(start + _PART, count)) for start in range(0, count, _PART)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(write, parts))


def make_config(folder: Path, raw: Path, kind: str, cache: str) -> PipelineConfig:
    """The config of a pipeline over `pictures` or `scenes`, whose training reads with a cache or
    without.

    A fifth of the data set is for validation, another for the test.
    """
    is_scenes = kind == "scenes"
    parts = [{"annotations": "instances.json", "images": "images"}]
    source = {"type": "coco", "parts": parts} if is_scenes else {"type": "image_folder"}
    side = SCENE_SIDE if is_scenes else PICTURE_SIDE
    values = {
        "pipeline": kind,
        "storage": {"root": str(folder / "root")},
        "preprocess": {
            "source": {**source, "path": str(raw)},
            "stages": ["decode", {"resize": {"height": side, "width": side}}],
            "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
            "shards": 16,
        },
        "train": {
            "model": "center_detector" if is_scenes else "dense",
            "model_parameters": {"width": 8} if is_scenes else {"units": 256},
            "strategy": "multi_worker_mirrored",
            "workers": 2,
            "epochs": 2,
            "global_batch_size": 128,
            "optimizer": {"name": "adam", "learning_rate": 1e-3},
            "input": {
                "cache": cache,
                "cache_limit_mib": 4096,
                "local_folder": str(folder / "local"),
            },
        },
        "evaluate": {
            "batch_size": 128,
            "gate": [{"metric": "map_50" if is_scenes else "accuracy", "at_least": 0.0}],
        },
        "export": {"model": kind},
    }
    file = folder / f"{kind}.yaml"
    file.write_text(yaml.safe_dump(values))
    return load_config(file)
