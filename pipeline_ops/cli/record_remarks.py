"""Remarks of `init` and `validate` on the annotations of a source, before any image is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from beam_jobs.planning.plan import Record, count_planned_labels
from pipeline_ops.artifacts import remarks


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
        *remarks.describe_empty_images(empty, {name: len(each) for name, each in boxed.items()}),
    ]
    numbers = {each.key: len(each.boxes or ()) for found in boxed.values() for each in found}
    if numbers:
        fullest = min(numbers, key=lambda key: (-numbers[key], key))
        sentences += remarks.describe_most_boxes(fullest, numbers[fullest], max_detections)
    return sentences
