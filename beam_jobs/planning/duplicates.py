"""Decides which of several equal or nearly equal images stays. Pure: no Beam, no files, no clock.

Of equal images, the one in the test split stays, before the one in validation and the one in train.
Within a split, the first by key stays. So no image that a model is tested on is in its training
data. Equal images that the source labels differently are all rejected, because the right label is
unknown.

Images are nearly equal if their perceptual hashes differ in few bits. They are visited in the same
order, and an image is removed if it is near one that stays. So no two images that stay are near
each other, and each removed image is near one that stays. Near images with different labels both
stay: a hash of 64 bits does not prove that either label is wrong.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from beam_jobs.planning.plan import Record
from beam_jobs.planning.splits import split_records
from beam_jobs.statistics.summary import RejectedRecord
from pipeline_ops.artifacts.dataset import SPLITS
from pipeline_ops.config.preprocess import Preprocess

_STAGE, _DUPLICATE = "duplicates", "duplicate"
_HASH_BITS = 64


@dataclasses.dataclass(frozen=True)
class Decision:
    """The records that stay, by split, the records that are kept out, and the reasons."""

    by_split: Mapping[str, list[Record]]
    kept_out: tuple[Record, ...] = ()
    rejected: tuple[RejectedRecord, ...] = ()
    """One entry for each record in `kept_out`, in the same order."""

    @property
    def without_copies(self) -> Iterator[Record]:
        """All records except the removed copies.

        These are the records that stay, and those that are rejected because they contradict one
        another.
        """
        yield from itertools.chain.from_iterable(self.by_split.values())
        yield from (
            record
            for record, rejected in zip(self.kept_out, self.rejected, strict=True)
            if not is_removed_copy(rejected)
        )


def decide_collection(
    config: Preprocess, records: Sequence[Record], pictures: Mapping[str, str]
) -> Decision:
    """Decides the split of each record, and which records are kept out because of others."""
    by_split = split_records(records, config.split)
    if config.duplicates == "keep":
        return Decision(by_split)
    return remove_duplicates(
        by_split, pictures, config.near_bits if config.duplicates == "remove_near" else None
    )


def remove_duplicates(
    by_split: Mapping[str, Sequence[Record]], pictures: Mapping[str, str], max_bits: int | None
) -> Decision:
    """Removes the duplicates from a collection.

    Args:
      by_split: the records of each split.
      pictures: the perceptual hashes by content, 16 hex digits each. An image without a hash is
        near no other.
      max_bits: the largest number of bits in which near images differ. None looks for equal images
        only.
    """
    reasons = _conflicts(by_split)
    kept: dict[str, list[Record]] = {split: [] for split in by_split}
    first: dict[str, Record] = {}
    near = _Near(max_bits)
    for split in sorted(by_split, key=SPLITS.index, reverse=True):
        for record in sorted(by_split[split], key=lambda record: record.key):
            if record.key in reasons:
                continue
            picture = _as_number(pictures.get(record.file.digest, ""))
            if equal := first.get(record.file.digest):
                reasons[record.key] = RejectedRecord(
                    key=record.key, stage=_STAGE, reason=_DUPLICATE, detail=f"equal to {equal.key}"
                )
            elif (
                max_bits is not None
                and picture is not None
                and (like := near.find(picture, meaning_of(record)))
            ):
                reasons[record.key] = RejectedRecord(
                    key=record.key, stage=_STAGE, reason=_DUPLICATE, detail=f"near {like}"
                )
            else:
                first[record.file.digest] = record
                kept[split].append(record)
                if max_bits is not None and picture is not None:
                    near.add(picture, meaning_of(record), record.key)
    kept_out = sorted(
        (record for records in by_split.values() for record in records if record.key in reasons),
        key=lambda record: record.key,
    )
    return Decision(kept, tuple(kept_out), tuple(reasons[record.key] for record in kept_out))


def is_removed_copy(record: RejectedRecord) -> bool:
    """Returns whether a line of the quarantine is a removed copy.

    Such an image is not bad, so it is no reason to fail.
    """
    return (record.stage, record.reason) == (_STAGE, _DUPLICATE)


def meaning_of(record: Record) -> tuple:
    """The annotation of an image, for comparison: its label, or the labels of its boxes."""
    return (
        (record.label,)
        if record.boxes is None
        else tuple(sorted(box.label for box in record.boxes))
    )


def _conflicts(by_split: Mapping[str, Iterable[Record]]) -> dict[str, RejectedRecord]:
    equal: dict[str, list[Record]] = defaultdict(list)
    for records in by_split.values():
        for record in records:
            equal[record.file.digest].append(record)
    reasons = {}
    for members in equal.values():
        if len({meaning_of(record) for record in members}) > 1:
            members.sort(key=lambda record: record.key)
            for record in members:
                other = next(
                    member for member in members if meaning_of(member) != meaning_of(record)
                )
                detail = (
                    f"equal to {other.key}, which is {_in_words(other)}, "
                    f"while this is {_in_words(record)}"
                )
                reasons[record.key] = RejectedRecord(
                    key=record.key, stage=_STAGE, reason="conflicting_labels", detail=detail
                )
    return reasons


def _in_words(record: Record) -> str:
    return (
        record.label
        if record.boxes is None
        else (
            f"{len(record.boxes)} boxes of "
            f"{', '.join(sorted(set(meaning_of(record)))) or 'nothing'}"
        )
    )


def _as_number(picture: str) -> int | None:
    return int(picture, 16) if len(picture) == _HASH_BITS // 4 else None


class _Near:
    """The hashes of the images that stay.

    Two hashes that differ in at most n bits are equal in at least one of n + 1 bands. So only
    hashes with an equal band are compared.
    """

    def __init__(self, max_bits: int | None):
        self._max_bits = max_bits or 0
        edges = [index * _HASH_BITS // (self._max_bits + 1) for index in range(self._max_bits + 2)]
        self._bands = [
            (start, (1 << (end - start)) - 1) for start, end in zip(edges, edges[1:], strict=False)
        ]
        self._kept: dict[tuple, list[tuple[int, str]]] = defaultdict(list)

    def find(self, picture: int, meaning: tuple) -> str | None:
        """The key of an image that is near and has the same annotation."""
        for place in self._places(picture, meaning):
            for other, key in self._kept.get(place, ()):
                if (picture ^ other).bit_count() <= self._max_bits:
                    return key
        return None

    def add(self, picture: int, meaning: tuple, key: str) -> None:
        for place in self._places(picture, meaning):
            self._kept[place].append((picture, key))

    def _places(self, picture: int, meaning: tuple) -> list[tuple]:
        return [
            (meaning, band, picture >> start & mask)
            for band, (start, mask) in enumerate(self._bands)
        ]
