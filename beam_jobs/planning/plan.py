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

from beam_jobs.io.raw import Raw
from beam_jobs.stages.stage import Box
from pipeline_ops.artifacts.dataset import SPLITS, shard_name
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.errors import DataError

_EVEN = 1.1
"""Shards count as equally large up to this ratio."""
_RECORD_BYTES = 128
"""The approximate size of a record without its image."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A raw image and its annotation: its class or its boxes, and its own split if one is given.

    `frame` is the height and width of the image that the boxes refer to: (1, 1) for fractions, None
    for the pixels of the file as it is stored. `group` names a unit that the split must not divide,
    such as the patient that several pictures show.
    """

    file: Raw
    label: str = ""
    boxes: tuple[Box, ...] | None = None
    split: str | None = None
    group: str | None = None
    frame: tuple[float, float] | None = None

    @property
    def labels(self) -> list[str]:
        """The label of the image, or the labels of its boxes."""
        return [self.label] if self.boxes is None else [box.label for box in self.boxes]

    @property
    def key(self) -> str:
        return self.file.key

    def __reduce__(self) -> tuple:
        """Pickles the record as if the class had no slots.

        This takes a fifth of the time, which matters for millions of records.
        """
        return Record, (self.file, self.label, self.boxes, self.split, self.group, self.frame)


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """One shard: its file name, and the records that go into it, in order."""

    split: str
    name: str
    records: tuple[Record, ...]


def plan_shards(
    by_split: Mapping[str, Sequence[Record]], seed: int, num_shards: int, generation: int = 1
) -> list[ShardPlan]:
    """The shards of some splits, of about equal size in raw bytes.

    A split with fewer records than `num_shards` gets one shard for each record. Inside a split, the
    records are ordered by a hash of their keys, a shuffle that depends on the seed.
    """
    plans = []
    for split, records in by_split.items():
        blocks = _even_blocks(_in_order(records, seed), min(num_shards, len(records)))
        plans += [
            ShardPlan(split, shard_name(split, index, len(blocks), generation), block)
            for index, block in enumerate(blocks)
        ]
    return plans


def plan_data_set(by_split: Mapping[str, Sequence[Record]], config: Preprocess) -> list[ShardPlan]:
    """The shards of a data set that is built as a whole.

    Raises:
      DataError: the train split has fewer records than the required number of shards.
    """
    if (
        0 < len(by_split["train"]) < config.shards
    ):  # each worker needs a shard to read; an empty split has its own message
        raise DataError(
            f"the train split has {len(by_split['train'])} records, "
            f"too few for {config.shards} shards; "
            "add images, or lower preprocess.shards (and train.workers with it)"
        )
    return [
        plan
        for split, records in by_split.items()
        for plan in plan_shards({split: records}, config.split.seed, num_shards_of(records, config))
    ]


def num_shards_of(records: Iterable[Record], config: Preprocess) -> int:
    """The number of shards of a split that has enough records."""
    if config.shard_megabytes is None:
        return config.shards
    return max(config.shards, math.ceil(sum(map(_size, records)) / (config.shard_megabytes * 1e6)))


def _in_order(records: Iterable[Record], seed: int) -> list[Record]:
    return sorted(records, key=lambda record: (hash_of(b"order", seed, record.key), record.key))


def _even_blocks(records: Sequence[Record], count: int) -> list[tuple[Record, ...]]:
    """Cuts the sequence into even blocks.

    If single large records prevent that, the records are dealt out by size.
    """
    cut = _cut(records, count)
    return cut if _is_even(cut) else min(cut, _dealt(records, count), key=_spread)


def _cut(records: Sequence[Record], count: int) -> list[tuple[Record, ...]]:
    """Cuts the sequence. A record belongs to the block that its middle byte falls into."""
    total, before = sum(map(_size, records)), 0
    blocks: list[list[Record]] = [[] for _ in range(count)]
    for record in records:
        blocks[(2 * before + _size(record)) * count // (2 * total)].append(record)
        before += _size(record)
    return [tuple(block) for block in blocks]


def _dealt(records: Sequence[Record], count: int) -> list[tuple[Record, ...]]:
    """Deals out the records, the largest first, each to the block that is smallest at that point.

    The order inside a block stays.
    """
    places = {record.key: place for place, record in enumerate(records)}
    smallest = [(0, index, []) for index in range(count)]
    for record in sorted(records, key=lambda record: (-_size(record), places[record.key])):
        size, index, block = heapq.heappop(smallest)
        block.append(record)
        heapq.heappush(smallest, (size + _size(record), index, block))
    by_index = sorted(smallest, key=lambda entry: entry[1])
    return [tuple(sorted(block, key=lambda record: places[record.key])) for _, _, block in by_index]


def _is_even(blocks: Sequence[Sequence[Record]]) -> bool:
    return _spread(blocks) <= _EVEN


def _spread(blocks: Sequence[Sequence[Record]]) -> float:
    """The ratio of the largest block to the smallest one. It is infinite if a block is empty."""
    sizes = [sum(map(_size, block)) for block in blocks]
    return max(sizes, default=1) / smallest if (smallest := min(sizes, default=1)) else math.inf


def _size(record: Record) -> int:
    return record.file.num_bytes + _RECORD_BYTES


def hash_of(purpose: bytes, seed: int, key: str) -> int:
    """A hash from 0 to 2**64 - 1, independent for each purpose."""
    return int.from_bytes(
        hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8, person=purpose).digest(), "big"
    )


def class_names_of(records: Iterable[Record]) -> list[str]:
    """The sorted class names. The index of a label in the shards is its place in this list."""
    return sorted({label for record in records for label in record.labels})


def task_of(records: Iterable[Record]) -> Task:
    """The task that the records are for.

    Either all records of a source have boxes, or none of them has.
    """
    return "detection" if any(record.boxes is not None for record in records) else "classification"


def planned_labels(by_split: Mapping[str, Iterable[Record]]) -> dict[str, Counter[str]]:
    """The number of records, or of boxes for detection, by split and label."""
    return {
        split: Counter(label for record in records for label in record.labels)
        for split, records in by_split.items()
    }


def check_labels(
    labels: Mapping[str, Mapping[str, int]],
    class_names: Sequence[str],
    source: str,
    task: Task = "classification",
    why_empty: Callable[[str], str] | None = None,
) -> None:
    """Checks that there are enough examples to train, validate and test a model.

    Args:
      labels: the number of examples, or boxes, by split and class.
      class_names: all classes.
      source: the folder, for messages.
      task: the task of the examples.
      why_empty: explains why a split is empty and how to fix it.

    Raises:
      DataError: there are fewer than two classes (one for detection), a split is empty, or the
        train split has no example of a class.
    """
    if task == "detection" and not class_names:
        raise DataError(
            f"{source}: a detector needs boxes, found none; "
            "correct the annotations, or preprocess.source"
        )
    if task == "classification" and len(class_names) < 2:
        raise DataError(
            f"{source}: a classifier needs two classes or more, "
            f"found {', '.join(class_names) or 'none'}; "
            "put the images of each class into a folder of its own"
        )
    if missing := [name for name in class_names if not labels["train"].get(name)]:
        raise DataError(
            f"{source}: no training example of {', '.join(missing)}; "
            "add images of it, or remove the folder"
        )
    for split in SPLITS:
        if not sum(labels[split].values()):
            cause = (
                why_empty(split) if why_empty else f"add images, or raise preprocess.split.{split}"
            )
            raise DataError(f"{source}: the {split} split has no example; {cause}")
