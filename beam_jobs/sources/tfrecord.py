"""Existing TFRecords: shards of ours, and files of the TensorFlow Object Detection API's scripts.

The features are those of `pipeline_ops/artifacts/dataset.py`, which are the API's, and
`image/class/text`, `image/object/class/text`. A class is named by its text, by its number in the
label map, or, in shards of ours, by its index in `class_names` of the manifest.json next to them.
The key of a record is its `image/key`, `image/filename` or `image/source_id`, the first that
exists, and otherwise its place: `<file>#<index>`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.io.raw import read_raw
from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, ListedFiles, SourceRecords
from beam_jobs.sources.label_map import LabelMap, parse_label_map
from beam_jobs.sources.packed import PackedExample, add_examples, find_containers
from beam_jobs.stages.boxes import FRACTIONS, Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.artifacts import dataset as shards
from pipeline_ops.artifacts import manifest
from pipeline_ops.config.packed_sources import TfrecordSource
from pipeline_ops.raw_data.listing import Listing

_KEYS = (shards.KEY, "image/filename", "image/source_id")
_TEXT, _BOX_TEXT = "image/class/text", "image/object/class/text"


def read_records(source: TfrecordSource, listing: Listing) -> SourceRecords:
    """Raises DataError: a pattern matches no file, or the label map is not valid."""
    collector = Collector(source.class_names)
    names = _read_class_names(source, listing)
    for container, split in find_containers(source, listing):
        make_record = functools.partial(_make_record, task=source.task, split=split, names=names)
        add_examples(container, listing.folder, collector, make_record)
    return collector.to_source_records()


def _read_class_names(source: TfrecordSource, listing: Listing) -> LabelMap:
    files = ListedFiles(listing)
    if source.label_map is not None:
        return parse_label_map(files.read(source.label_map, "label_map"), source.label_map)
    if (file := files.get(manifest.NAME)) is None:
        return LabelMap({}, {})
    try:
        figures = shards.DatasetFigures.model_validate(
            json.loads(read_raw(file, listing.folder))["figures"]
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        # A manifest of another tool does not define the numbers.
        return LabelMap({}, {})
    return LabelMap(dict(enumerate(figures.class_names)), {})


def _make_record(example: PackedExample, task: str, split: str | None, names: LabelMap) -> Record:
    image = example.make_image(shards.ENCODED, _read_key(example.features) or example.place)
    if task == "classification":
        return Record(image, _read_labels(example, _TEXT, shards.LABEL, 1, names)[0], split=split)
    count = len(example.features.get(shards.BOX_YMIN, []))
    height, width = frame = _read_frame(example)
    scales = (height, width, height, width)
    edges = [
        [value * scale for value in example.read_floats(name, count)]
        for name, scale in zip(shards.BOX_EDGES, scales, strict=True)
    ]
    labels = _read_labels(example, _BOX_TEXT, shards.BOX_LABEL, count, names)
    corners = zip(*edges, strict=True)
    boxes = example.read_boxes(corners, labels, shards.BOX_IS_DIFFICULT, shards.BOX_IS_CROWD)
    return Record(image, boxes=boxes, split=split, frame=frame)


def _read_key(features: Mapping[str, list[Any]]) -> str | None:
    for name in _KEYS:
        if (values := features.get(name)) and isinstance(values[0], bytes) and values[0]:
            return _decode_text(values[0], name)
    return None


def _read_frame(example: PackedExample) -> Size:
    """The size of the image that the boxes are given for, or FRACTIONS if the record has none."""
    if not example.features.get(shards.HEIGHT) or not example.features.get(shards.WIDTH):
        return FRACTIONS
    [height], [width] = (example.read_integers(name, 1) for name in (shards.HEIGHT, shards.WIDTH))
    return (float(height), float(width)) if height > 0 and width > 0 else FRACTIONS


def _read_labels(
    example: PackedExample, text: str, number: str, count: int, classes: LabelMap
) -> Sequence[str]:
    """Raises Reject: malformed, unknown_class."""
    if texts := example.features.get(text):
        if len(texts) != count or not all(isinstance(value, bytes) for value in texts):
            raise Reject(
                "malformed",
                f"the feature {text} must hold {count} texts, got {len(texts)} values",
            )
        found = [_decode_text(value, text) for value in texts]
        return [classes.aliases.get(label, label) for label in found]
    numbers = example.read_integers(number, count)
    if unknown := [value for value in numbers if value not in classes.names]:
        raise Reject(
            "unknown_class",
            f"the class {unknown[0]} has no name: "
            f"not in {text}, and not in preprocess.source.label_map",
        )
    return [classes.names[value] for value in numbers]


def _decode_text(value: bytes, feature: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Reject("malformed", f"the feature {feature} is not UTF-8: {value[:40]!r}") from None
