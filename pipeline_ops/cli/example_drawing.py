"""A picture of training examples as a data set has them, for the person who started the run.

It is drawn from the beginnings of the shards, in a folder or in a bucket. TensorFlow is not
imported.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from beam_jobs.io.example import parse
from beam_jobs.io.tfrecord_files import scan_records
from pipeline_ops.artifacts.dataset import (
    BOX_EDGES,
    BOX_LABEL,
    ENCODED,
    KEY,
    LABEL,
    DatasetFigures,
    list_removed_positions,
    list_shards,
)
from pipeline_ops.artifacts.manifest import Manifest, locate_file, read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.pages.drawing import (
    LARGE_CELL_PIXELS,
    LabelledBox,
    count_boxes,
    decode_image,
    draw_cell,
    draw_grid,
)
from pipeline_ops.storage.store_path import StorePath

_NUM_SHOWN = 9
_NUM_READ = 64
"""The number of examples among which those with different classes are looked for."""
_MAX_BYTES = 4 << 20
"""Bytes to read of a shard."""


def draw_examples(dataset: StorePath) -> bytes:
    """Draws up to nine training examples of a data set as a PNG file, by the path of its manifest.

    They show as many classes as possible. A data set always gives the same picture.
    """
    manifest = read_manifest(dataset)
    figures = DatasetFigures.model_validate(manifest.figures)
    examples = list(islice(_read_examples(dataset, manifest), _NUM_READ))
    if not examples:
        raise DataError(f"{dataset}: no training example can be read from the data set")
    label = BOX_LABEL if figures.task == "detection" else LABEL
    chosen = _choose([set(example[label]) for example in examples])
    return draw_grid([_draw_example(examples[i], figures) for i in chosen], columns=3)


def _read_examples(dataset: StorePath, manifest: Manifest) -> Iterator[dict[str, list[Any]]]:
    shards, removed = list_shards(manifest, "train"), list_removed_positions(manifest, "train")
    for shard, positions in zip(shards, removed, strict=True):
        start = locate_file(dataset, shard).read_range(0, min(shard.num_bytes, _MAX_BYTES))
        for position, (_, record) in enumerate(scan_records(io.BytesIO(start), len(start))):
            if isinstance(record, bytes) and position not in positions:
                yield parse(record)


def _choose(labels: Sequence[set[int]]) -> list[int]:
    """Prefers examples with a class that no earlier one has. Returns their positions in order."""
    seen: set[int] = set()
    is_new = []
    for found in labels:
        is_new.append(bool(found - seen))
        seen |= found
    ranked = sorted(range(len(labels)), key=lambda i: not is_new[i])
    return sorted(ranked[:_NUM_SHOWN])


def _draw_example(example: dict[str, list[Any]], figures: DatasetFigures) -> Any:
    image, names = decode_image(example[ENCODED][0]), figures.class_names
    boxes = []
    if figures.task == "detection":
        edges = zip(*(example[edge] for edge in BOX_EDGES), strict=True)
        labels = (names[label] for label in example[BOX_LABEL])
        boxes = [LabelledBox(box, label) for box, label in zip(edges, labels, strict=True)]
        content = count_boxes(len(boxes))
    else:
        content = names[example[LABEL][0]]
    size = f"{image.width}x{image.height}, " if image else ""
    key = example[KEY][0].decode("utf-8", "backslashreplace")
    return draw_cell(image, boxes, key, f"{size}{content}", side=LARGE_CELL_PIXELS)
