"""Decides which record goes into which shard, before anything is read. Pure: no Beam, no files, no clock.

A record's split is the one that its source gives it, or follows from a hash of its key alone, so it never changes its
split when others come or go. Inside a split the records stand in the order of another hash of their keys, cut into
blocks that differ by at most one record.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from beam_jobs.raw import Raw
from beam_jobs.stages.stage import Box
from pipeline_ops.contracts.config import Split
from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.shards import SPLITS, Task, shard_name


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A raw image, and what is known of it: the name of its class, or the boxes in it; its own split, where one is given.

    The boxes are for an image of the height and width in `frame`: (1, 1) for fractions, None for the pixels of the file
    as it is stored. `group` is what must not be torn apart by the split, such as the patient that several pictures show.
    """

    file: Raw
    label: str = ""
    boxes: tuple[Box, ...] | None = None
    split: str | None = None
    group: str | None = None
    frame: tuple[float, float] | None = None

    @property
    def labels(self) -> list[str]:
        """That of the image, or those of its boxes."""
        return [self.label] if self.boxes is None else [box.label for box in self.boxes]

    @property
    def key(self) -> str:
        return self.file.key


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """One shard: its file name, and the records that go into it, in order."""

    split: str
    name: str
    records: tuple[Record, ...]


def plan_shards(records: Iterable[Record], split: Split, num_shards: int) -> list[ShardPlan]:
    """All shards of all splits; a split of fewer records than `num_shards` has empty shards."""
    by_split: dict[str, list[Record]] = {name: [] for name in SPLITS}
    for record in records:
        by_split[record.split or split_of(record.key, split)].append(record)
    return [ShardPlan(name, shard_name(name, index, num_shards), block)
            for name in SPLITS for index, block in enumerate(_blocks(_in_order(by_split[name], split.seed), num_shards))]


def split_of(key: str, split: Split) -> str:
    """The split that a record with this key is in."""
    position = _hash(b"split", split.seed, key) / 2**64
    if position < split.train:
        return "train"
    return "validation" if position < split.train + split.validation else "test"


def _in_order(records: Iterable[Record], seed: int) -> list[Record]:
    return sorted(records, key=lambda record: (_hash(b"order", seed, record.key), record.key))


def _blocks(records: Sequence[Record], count: int) -> list[tuple[Record, ...]]:
    return [tuple(records[index * len(records) // count : (index + 1) * len(records) // count]) for index in range(count)]


def _hash(purpose: bytes, seed: int, key: str) -> int:
    """0 to 2**64 - 1, independent for each purpose."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8, person=purpose).digest(), "big")


def class_names_of(records: Iterable[Record]) -> list[str]:
    """Sorted; a label's index in the shards is its place here."""
    return sorted({label for record in records for label in record.labels})


def task_of(records: Iterable[Record]) -> Task:
    """What the records can be learnt for. Those of one source all have boxes, or none of them has."""
    return "detection" if any(record.boxes is not None for record in records) else "classification"


def planned_labels(shards: Iterable[ShardPlan]) -> dict[str, Counter[str]]:
    """Records by split and label; boxes for detection."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in SPLITS}
    for shard in shards:
        counts[shard.split].update(label for record in shard.records for label in record.labels)
    return counts


def check_labels(labels: Mapping[str, Mapping[str, int]], class_names: Sequence[str], source: str, task: Task = "classification") -> None:
    """Checks that a model can be trained, validated and tested with so many examples, or boxes, of each class by split.

    Raises:
      DataError: fewer than two classes (one for detection), an empty split, or a class that the model would never see.
    """
    if task == "detection" and not class_names:
        raise DataError(f"{source}: a detector needs boxes, found none; correct the annotations, or preprocess.source")
    if task == "classification" and len(class_names) < 2:
        raise DataError(f"{source}: a classifier needs two classes or more, found {', '.join(class_names) or 'none'}; "
                        "put the images of each class into a folder of its own")
    if missing := [name for name in class_names if not labels["train"].get(name)]:
        raise DataError(f"{source}: no training example of {', '.join(missing)}; add images of it, or remove the folder")
    for split in SPLITS:
        if not sum(labels[split].values()):
            raise DataError(f"{source}: the {split} split has no example; add images, or raise preprocess.split.{split}")
