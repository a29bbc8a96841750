"""Decides which record goes into which shard, before any file is read.

Pure: no Beam, no files, no clock. Inside a split, the records are ordered by a hash of their keys
and cut into blocks of about equal size. `splits.py` has chosen the split of each record before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

import numpy as np

from beam_jobs.io.raw import Raw
from beam_jobs.stages.stage import Box, BoxFrame, Example
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.model_data_rules import check_shards
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.contract.dataset import SPLITS, build_shard_name
from pipeline_ops.contract.remarks import explain_crowds
from pipeline_ops.errors import DataError

_Item = TypeVar("_Item")
_get_key = attrgetter("key")
_MAX_SIZE_RATIO = 1.1
"""Shards count as equally large up to this ratio."""
_RECORD_BYTES = 128
"""The approximate size of a record without its image."""
_CURE = (
    "Add images of it, or change preprocess.split: another seed, stratify: true, or no group_by."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A raw image and its annotation: its class or its boxes, and its own split if one is given.

    `frame` describes what the boxes refer to. `group` names a unit that the split must not divide,
    such as the patient that several pictures show.
    """

    file: Raw
    label: str = ""
    boxes: tuple[Box, ...] | None = None
    split: str | None = None
    group: str | None = None
    frame: BoxFrame | None = None

    @property
    def labels(self) -> list[str]:
        """The label of the image, or the labels of its boxes."""
        return [self.label] if self.boxes is None else [box.label for box in self.boxes]

    @property
    def learned_labels(self) -> list[str]:
        """The label of the image, or the labels of its boxes without crowds."""
        boxes = self.boxes
        return [self.label] if boxes is None else [one.label for one in boxes if not one.is_crowd]

    @property
    def key(self) -> str:
        return self.file.key

    def to_example(self, encoded: bytes, split: str = "train") -> Example:
        """The example for the stages. `encoded` is the image file."""
        return Example(
            self.key, self.label, encoded, boxes=self.boxes, frame=self.frame, split=split
        )


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """One shard: its file name, and the records that go into it, in order."""

    split: str
    name: str
    records: tuple[Record, ...]


def plan_shards(
    split: str, records: Sequence[Record], seed: int, num_shards: int, generation: int = 1
) -> list[ShardPlan]:
    """The shards of a split, of about equal size in raw bytes, each with a record or more."""
    ordered, count = shuffle(records, b"order", seed), min(num_shards, len(records))
    blocks = _cut_evenly(np.fromiter(map(_compute_size, ordered), np.int64), count)
    names = (build_shard_name(split, index, count, generation) for index in range(count))
    members = (tuple([ordered[position] for position in block]) for block in blocks)
    return [ShardPlan(split, *each) for each in zip(names, members, strict=True)]


def plan_dataset(by_split: Mapping[str, Sequence[Record]], config: Preprocess) -> list[ShardPlan]:
    """The shards of a data set that is built as a whole."""
    check_shards(len(by_split["train"]), config.shards)
    plans = []
    for split, records in by_split.items():
        num_shards = compute_num_shards(records, config)
        plans += plan_shards(split, records, config.split.seed, num_shards)
    return plans


def compute_num_shards(records: Iterable[Record], config: Preprocess) -> int:
    """The number of shards of a split that has enough records."""
    if config.shard_megabytes is None:
        return config.shards
    num_megabytes = sum(map(_compute_size, records)) / 1e6
    return max(config.shards, math.ceil(num_megabytes / config.shard_megabytes))


def _cut_evenly(sizes: np.ndarray, count: int) -> list[np.ndarray]:
    """The positions in each block. A record belongs to the block that its middle byte falls into.

    If single large records prevent even blocks, the records are dealt out by size.
    """
    if not count:
        return []

    def compute_size_ratio(blocks: np.ndarray) -> float:
        """The ratio of the largest block to the smallest one, which may be empty."""
        totals = np.bincount(blocks, sizes, minlength=count)
        return float(totals.max() / totals.min()) if totals.min() else math.inf

    total = int(sizes.sum())
    doubled_edges = [-(-2 * total * index // count) for index in range(1, count)]
    blocks = np.searchsorted(doubled_edges, 2 * sizes.cumsum() - sizes, side="right")
    if compute_size_ratio(blocks) > _MAX_SIZE_RATIO:
        blocks = min(blocks, _deal_out(sizes, count), key=compute_size_ratio)
    ends = np.bincount(blocks, minlength=count).cumsum()
    return np.split(blocks.argsort(kind="stable"), ends[:-1])


def _deal_out(sizes: np.ndarray, count: int) -> np.ndarray:
    """The block of each record: the largest record first, to the block smallest at that point."""
    blocks = np.empty(len(sizes), np.int64)
    smallest = [(0, index) for index in range(count)]
    for position in np.argsort(-sizes, kind="stable"):
        size, index = smallest[0]
        blocks[position] = index
        heapq.heapreplace(smallest, (size + int(sizes[position]), index))
    return blocks


def _compute_size(record: Record) -> int:
    return record.file.num_bytes + _RECORD_BYTES


def shuffle(items: Iterable[_Item], purpose: bytes, seed: int) -> list[_Item]:
    """The items in the order of the hashes of their keys, or of the keys where those are equal."""
    by_key = sorted(items, key=_get_key)
    hashes = (hash_key(purpose, seed, key) for key in map(_get_key, by_key))
    order = np.fromiter(hashes, np.uint64, len(by_key)).argsort(kind="stable")
    return [by_key[position] for position in order]


def hash_key(purpose: bytes, seed: int, key: str) -> int:
    """A hash from 0 to 2**64 - 1, independent for each purpose."""
    hashed = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8, person=purpose)
    return int.from_bytes(hashed.digest(), "big")


def collect_class_names(records: Iterable[Record]) -> list[str]:
    """The sorted class names. The index of a label in the shards is its place in this list."""
    return sorted({label for record in records for label in record.labels})


def infer_task(records: Iterable[Record]) -> Task:
    """Either all records of a source have boxes, or none of them has."""
    return "detection" if any(record.boxes is not None for record in records) else "classification"


def count_planned_labels(by_split: Mapping[str, Iterable[Record]]) -> dict[str, Counter[str]]:
    """The number of records, or of boxes for detection, by split and label. Crowds do not count."""
    return {
        split: Counter(label for record in records for label in record.learned_labels)
        for split, records in by_split.items()
    }


def count_planned_crowds(by_split: Mapping[str, Iterable[Record]]) -> dict[str, Counter[str]]:
    """The number of crowds by split and label."""
    return {
        split: Counter(box.label for each in records for box in each.boxes or () if box.is_crowd)
        for split, records in by_split.items()
    }


def check_labels(
    labels: Mapping[str, Mapping[str, int]],
    class_names: Sequence[str],
    source: str,
    task: Task,
    explain_empty: Callable[[str], str],
    cure: str = _CURE,
    crowds: Mapping[str, Mapping[str, int]] | None = None,
    splits: Sequence[str] = SPLITS,
) -> None:
    """Checks that there are enough examples to train, validate and test a model.

    `labels` counts examples, or boxes without crowds, by split and class, and `crowds` the crowds.
    `explain_empty` is for a split's name, and `cure` for a class that only the other splits have.
    `splits` must have examples.
    """
    crowds = crowds or {}
    num_crowds = sum(sum(each.values()) for each in crowds.values())
    if num_crowds and not any(sum(each.values()) for each in labels.values()):
        raise DataError(f"{source}: {explain_crowds(num_crowds)}")
    if task == "detection" and not class_names:
        fault = f"{source}: a detector needs boxes, found none: no annotation has one"
        raise DataError(fault, "Correct the annotations, or preprocess.source.")
    if task == "classification" and len(class_names) < 2:
        found = f"only {class_names[0]}" if class_names else "none"
        fault = f"{source}: a classifier needs two classes or more, found {found}"
        cure = "Add images of another class, or correct preprocess.source or preprocess.stages."
        raise DataError(fault, cure)
    missing = [name for name in class_names if not labels["train"].get(name)]
    if len(class_names) - len(missing) < (1 if task == "detection" else 2):
        name = missing[0]
        number = crowds.get("train", {}).get(name)
        what = f" of {name} in train"
        why = explain_crowds(number, what) if number else _explain(name, labels, cure)
        raise DataError(f"{source}: no training example of {', '.join(missing)}: {why}")
    for split in splits:
        if not sum(labels[split].values()):
            number = sum(crowds.get(split, {}).values())
            why = explain_crowds(number) if number else explain_empty(split)
            raise DataError(f"{source}: the {split} split has no example: {why}")


def _explain(class_name: str, labels: Mapping[str, Mapping[str, int]], cure: str) -> str:
    others = [f"{count} in {split}" for split in SPLITS if (count := labels[split].get(class_name))]
    if others:
        return f"{class_name} has only {' and '.join(others)}. {cure}"
    return (
        f"no image of {class_name} is left after preprocess.duplicates and preprocess.stages. Add "
        "images of it, correct the stages, or remove the class from the source."
    )
