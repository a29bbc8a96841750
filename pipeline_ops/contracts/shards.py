"""The one place that makes shard names and knows what is in a data set's manifest.

A data set's artifact holds `train-00000-of-00008.tfrecord` and so on for each split, `quarantine.jsonl` with what was
rejected, and these figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contracts.manifest import Manifest, ManifestFile

Task = Literal["classification", "detection"]
SPLITS = ("train", "validation", "test")
QUARANTINE = "quarantine.jsonl"
"""One line per rejected record: {"key", "stage", "reason", "detail"}."""

# The features of one tf.train.Example. All:
ENCODED = "image/encoded"  # bytes: the image file, JPEG or PNG
KEY = "image/key"  # bytes, UTF-8: the record's key in the source
HEIGHT = "image/height"  # int64, pixels; detection only
WIDTH = "image/width"
# Classification:
LABEL = "image/class/label"  # int64: index into class_names
# Detection, with the names of the TensorFlow Object Detection API; one value per box:
BOX_YMIN = "image/object/bbox/ymin"  # float, fraction of the height
BOX_XMIN = "image/object/bbox/xmin"  # float, fraction of the width
BOX_YMAX = "image/object/bbox/ymax"
BOX_XMAX = "image/object/bbox/xmax"
BOX_LABEL = "image/object/class/label"  # int64: index into class_names, from 0
BOX_IS_CROWD = "image/object/is_crowd"  # int64, 0 or 1
BOX_IS_DIFFICULT = "image/object/difficult"  # int64, 0 or 1


def shard_name(split: str, index: int, num_shards: int) -> str:
    return f"{split}-{index:05d}-of-{num_shards:05d}.tfrecord"


class DatasetFigures(BaseModel):
    """The `figures` of a data set's manifest.

    `image_shape` is (height, width, channels) where all images have it. `labels` counts by split and class name: examples
    for classification, boxes for detection.
    """

    model_config = ConfigDict(frozen=True)

    task: Task = "classification"
    class_names: list[str]
    image_shape: tuple[int, int, int]
    num_examples: dict[str, int]
    labels: dict[str, dict[str, int]]
    num_rejected: int
    rejected_by_reason: dict[str, int]
    skipped_by_reason: dict[str, int] = {}
    """Sound examples that a stage did not want, by `<stage>: <reason>`."""
    seconds_by_stage: dict[str, float] = {}


def shards_of(manifest: Manifest, split: str) -> list[ManifestFile]:
    """The shards of a split, in order."""
    return [file for file in manifest.files if file.path.startswith(f"{split}-") and file.path.endswith(".tfrecord")]


def shard_paths(manifest_uri: str, manifest: Manifest, split: str) -> list[str]:
    folder = Path(manifest_uri).parent
    return [str(folder / file.path) for file in shards_of(manifest, split)]
