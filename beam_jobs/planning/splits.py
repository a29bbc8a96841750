"""Decides which split each record is in. Pure: no Beam, no files, no clock.

Plain: the split follows from a hash of the record's key alone. A record never moves when others are
added or removed.

By group: the split follows from a hash of the record's group. A group is never divided, and never
moves either.

Stratified: the groups of each class are ordered by that hash and cut according to the shares. A
record without a group is a group by itself. The shares hold per class to within one group. The cuts
shift as the class grows. A group moves only if a cut passes over it. Each added or removed group
moves at most one group at each of the two cuts.

Given: a record that brings its own split is always in that split, and takes the rest of its group
along. If the source gives every record a split, but none of them validation (or test), that split
is cut out of the records for train, by the ratio of the two shares.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from beam_jobs.planning.plan import Record, hash_key
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary
from pipeline_ops.artifacts.dataset import SPLITS
from pipeline_ops.config.preprocess import Split
from pipeline_ops.errors import DataError

_GROUP_SUFFIX = "\0"
"""Ends the name of a group, so that no group is mistaken for the key of a file."""


def split_records(records: Iterable[Record], split: Split) -> dict[str, list[Record]]:
    """The records of each split, in no particular order."""
    members: dict[str, list[Record]] = defaultdict(list)  # by group, which is never divided
    for record in records:
        group = _find_group(record, split)
        members[record.key if group is None else group + _GROUP_SUFFIX].append(record)
    splits = _read_given_splits(members)
    if len(splits) == len(members):
        splits |= _cut_out_of_train(splits, members, split)
    free = [unit for unit in members if unit not in splits]
    splits |= _divide(free, members, split)
    found: dict[str, list[Record]] = {name: [] for name in SPLITS}
    for unit, name in splits.items():
        found[name].extend(members[unit])
    return found


def assign_split(key: str, split: Split) -> str:
    """The split of a record with this key, or of a group with this name."""
    position = hash_key(b"split", split.seed, key) / 2**64
    if position < split.train:
        return "train"
    # The sum of all shares may be a little below 1.
    is_validation = position < split.train + split.validation or not split.test
    return "validation" if is_validation else "test"


def _find_group(record: Record, split: Split) -> str | None:
    """A group that the source gives has priority."""
    if record.group is not None or split.group_by is None:
        return record.group
    if split.group_by == "parent_folder":
        return record.key.rpartition("/")[0]
    found = re.search(split.group_regex or "", record.key)
    if not found or found.group(1) is None:
        raise DataError(
            f"{record.key}: preprocess.split.group_regex ({split.group_regex!r}) finds no group in "
            "this key. Correct it: a record without a group could leak from train to test."
        )
    return found.group(1)


def _cut_out_of_train(
    given: Mapping[str, str], members: Mapping[str, Sequence[Record]], split: Split
) -> dict[str, str]:
    """The splits of the records for train, if a split that has a share is given no records."""
    shares = {"train": split.train} | {
        name: getattr(split, name) for name in ("validation", "test") if name not in given.values()
    }
    units = [unit for unit, name in given.items() if name == "train"]
    if not units or not any(share for name, share in shares.items() if name != "train"):
        return {}
    total = sum(shares.values())
    rescaled = {name: shares.get(name, 0.0) / total for name in SPLITS}
    return _divide(units, members, split.model_copy(update=rescaled))


def _divide(
    units: Iterable[str], members: Mapping[str, Sequence[Record]], split: Split
) -> dict[str, str]:
    if not split.stratify:
        return {unit: assign_split(unit, split) for unit in units}
    strata: dict[str, list[str]] = defaultdict(list)
    for unit in units:
        strata[_find_main_class(members[unit])].append(unit)
    found: dict[str, str] = {}
    for stratum in strata.values():
        stratum.sort(key=lambda unit: (hash_key(b"split", split.seed, unit), unit))
        first = round(split.train * len(stratum))
        second = round((split.train + split.validation) * len(stratum))
        found |= dict.fromkeys(stratum[:first], "train")
        found |= dict.fromkeys(stratum[first:second], "validation")
        found |= dict.fromkeys(stratum[second:], "test")
    return found


def _read_given_splits(members: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    given: dict[str, str] = {}
    for unit, records in members.items():
        by_split = {record.split: record.key for record in records if record.split is not None}
        if unknown := set(by_split) - set(SPLITS):
            name = min(unknown)
            raise DataError(
                f"{by_split[name]}: the source gives it the split {name!r}, "
                f"splits are {', '.join(SPLITS)}"
            )
        if len(by_split) > 1:
            (one, one_key), (other, other_key), *_ = sorted(by_split.items())
            raise DataError(
                f"{one_key} is given the split {one} and {other_key} the split {other}, "
                f"but both are of the group {unit.rstrip(_GROUP_SUFFIX)}. "
                "Correct the given splits, or the groups."
            )
        for name in by_split:
            given[unit] = name
    return given


def _find_main_class(records: Sequence[Record]) -> str:
    """The most frequent class, or the first of these by name. "" if no image has a box."""
    counts = Counter(label for record in records for label in record.labels)
    return min(counts, key=lambda label: (-counts[label], label), default="")


def explain_from_plan(
    records: Sequence[Record], kept: Mapping[str, Sequence[Record]], split: Split
) -> Callable[[str], str]:
    """Explains why a split is empty, before any image is read.

    `records` are those of the source, and `kept` those that stay when duplicates are removed.
    """

    def explain(name: str) -> str:
        share, count = getattr(split, name), len(split_records(records, split)[name])
        if kept[name]:
            return (
                f"none of its {len(kept[name])} images has a label or a box that the stages keep. "
                "Correct the annotations or the stages."
            )
        if count:
            return (
                f"all of its {count} images are equal to others or contradict them. Add other "
                "images, or set preprocess.duplicates: keep."
            )
        given = {record.split or "" for record in records}
        if given and all(given):
            return (
                f"the source gives every image a split ({', '.join(sorted(given))}), none of them "
                f"{name}, and preprocess.split.{name} is {share:g}. Give some images to it in the "
                f"source, or raise preprocess.split.{name}, which takes them from train."
            )
        if not share:
            return f"preprocess.split.{name} is 0, and the source gives no image to it. Raise it."
        return _explain_share(name, share, records, split)

    return explain


def _explain_share(name: str, share: float, records: Sequence[Record], split: Split) -> str:
    rule = f"preprocess.split.{name} is {share:g} of {len(records)} images"
    if split.group_by:
        return (
            f"{rule}, and groups (preprocess.split.group_by: {split.group_by}) are never divided. "
            "Add images of other groups, or raise it."
        )
    if split.stratify or share * len(records) < 1:
        return f"{rule}, which rounds to none. Add images, or raise preprocess.split.{name}."
    return (
        f"{rule}. Add images, or raise preprocess.split.{name}, or set preprocess.split.stratify: "
        "true, which keeps to the shares exactly."
    )


def explain_from_shards(
    kept: Mapping[str, Sequence[Record]],
    rejected: Iterable[RejectedRecord],
    summaries: Iterable[ShardSummary],
) -> Callable[[str], str]:
    """Explains why a split is empty, after all stages have run."""
    rejected, summaries = list(rejected), list(summaries)

    def explain(name: str) -> str:
        keys = {record.key for record in kept[name]}
        reasons = Counter(
            f"{record.stage}: {record.reason}" for record in rejected if record.key in keys
        )
        for summary in summaries:
            reasons.update(summary.skipped if summary.split == name else {})
        if not reasons:
            return (
                f"the stages keep no box of its {len(keys)} images. Correct the annotations or the "
                "stages."
            )
        rejects = ", ".join(f"{count} by {reason}" for reason, count in sorted(reasons.items()))
        return (
            f"all of its {len(keys)} images were rejected or skipped ({rejects}). Correct them, or "
            "the stages."
        )

    return explain
