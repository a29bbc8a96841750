"""Remarks of `init` and `validate` on the annotations of a source, before any image is read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from beam_jobs.planning.plan import Record, count_planned_labels
from beam_jobs.stages.stage import Box
from pipeline_ops.contract import remarks

_DOUBLE_IOU = 0.9
"""The intersection over union of two boxes from which on they are told as one that is twice."""


def describe_records(
    by_split: Mapping[str, Sequence[Record]], max_detections: int | None = None
) -> list[str]:
    """Returns sentences. `max_detections` is that of `train.model_parameters`."""
    boxed = {
        split: [each for each in records if each.boxes is not None]
        for split, records in by_split.items()
    }
    empty = {split: sum(not each.boxes for each in records) for split, records in boxed.items()}
    all_boxes = {
        split: sum(len(each.boxes or ()) for each in records) for split, records in boxed.items()
    }
    sentences = [
        *remarks.describe_counts(count_planned_labels(by_split), all_boxes),
        *remarks.describe_doubles(
            {split: sum(map(_count_doubles, records)) for split, records in boxed.items()},
            all_boxes,
        ),
        *remarks.describe_empty_images(empty, {name: len(each) for name, each in boxed.items()}),
    ]
    numbers = {each.key: len(each.boxes or ()) for found in boxed.values() for each in found}
    if numbers:
        fullest = min(numbers, key=lambda key: (-numbers[key], key))
        sentences += remarks.describe_most_boxes(fullest, numbers[fullest], max_detections)
    return sentences


def _count_doubles(record: Record) -> int:
    """The boxes that nearly equal the one before, in the order of their classes and places."""
    ordered = sorted(record.boxes or (), key=lambda box: (box.label, box.xmin, box.ymin))
    return sum(itertools.starmap(_is_double, itertools.pairwise(ordered)))


def _is_double(box: Box, other: Box) -> bool:
    height = min(box.ymax, other.ymax) - max(box.ymin, other.ymin)
    width = min(box.xmax, other.xmax) - max(box.xmin, other.xmin)
    shared = max(0, height) * max(0, width)
    is_crowd = box.is_crowd or other.is_crowd
    union = box.area + other.area - shared
    return box.label == other.label and not is_crowd and shared > _DOUBLE_IOU * union
