"""Decides which split each record is in. Pure: no Beam, no files, no clock.

Plain: the split follows from a hash of the record's key alone. A record never moves when others are
added or removed.

By group: the split follows from a hash of the record's group. A group is never divided, and never
moves either.

Stratified: the groups of each class are ordered by that hash and cut according to the shares. A
record without a group is a group by itself. The shares hold for the data set, and per class to
within one group: the classes with the largest remainders get the test and validation groups that
rounding down leaves over. The first group that shows a class stays in train. The cuts shift as the
class grows, and a remainder that becomes larger takes a group from the next one. A group moves only
if a cut passes over it. Each added or removed group moves a few others, about five at most, however
many there are.

Given: a record that brings its own split is always in that split, and takes the rest of its group
along. If the source gives every record a split, but none of them validation (or test), that split
is cut out of the records for train, by the ratio of the two shares.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from beam_jobs.planning.plan import Record, hash_key, shuffle
from beam_jobs.statistics.summary import ShardSummary
from pipeline_ops.config.preprocess import Split
from pipeline_ops.contract.dataset import SPLITS, RejectedRecord
from pipeline_ops.errors import DataError


class _Group(NamedTuple):
    """Records that are never divided. Its key ends with NUL, as no key of a file does."""

    key: str
    members: list[Record]


_Unit = Record | _Group
_ROUNDING = 1e-9
"""0.7 of 10 is 7.000000000000001, or 6.999999999999999 of another share."""


def split_records(records: Iterable[Record], split: Split) -> dict[str, list[Record]]:
    """The records of each split, in no particular order."""
    found: dict[str, list[Record]] = {name: [] for name in SPLITS}
    free: list[_Unit] = []
    for unit in _find_units(records, split):
        if name := _read_given_split(unit):
            found[name] += _get_members(unit)
        else:
            free.append(unit)
    if not free:
        free, split = _cut_out_of_train(found, split)
    for name, unit in _divide(free, split):
        found[name] += _get_members(unit)
    return found


def _find_units(records: Iterable[Record], split: Split) -> Iterator[_Unit]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        group = _find_group(record, split)
        if group is None:
            yield record
        else:
            groups[group].append(record)
    yield from (_Group(f"{group}\0", members) for group, members in groups.items())


def _get_members(unit: _Unit) -> Sequence[Record]:
    return unit.members if isinstance(unit, _Group) else (unit,)


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
        key = f"{record.key}: preprocess.split.group_regex ({split.group_regex!r})"
        cure = "Correct it: a record without a group could leak from train to test."
        raise DataError(f"{key} finds no group in this key", cure)
    return found.group(1)


def _cut_out_of_train(found: dict[str, list[Record]], split: Split) -> tuple[list[_Unit], Split]:
    """Takes the units out of train, with new shares, if a split with a share has no records."""
    empty = {name: getattr(split, name) for name in ("validation", "test") if not found[name]}
    if not any(empty.values()):
        return [], split
    units, found["train"] = list(_find_units(found["train"], split)), []
    total = split.train + sum(empty.values())
    rescaled = {name: empty.get(name, 0.0) / total for name in SPLITS}
    return units, split.model_copy(update=rescaled | {"train": split.train / total})


def _divide(units: Iterable[_Unit], split: Split) -> Iterator[tuple[str, _Unit]]:
    if not split.stratify:
        for unit in units:
            yield assign_split(unit.key, split), unit
        return
    first: dict[str, str] = {}  # the key of the unit that keeps each class in train
    strata: dict[str, list[_Unit]] = defaultdict(list)
    for unit in shuffle(units, b"split", split.seed):
        strata[_find_main_class(_get_members(unit))].append(unit)
        for label in {label for record in _get_members(unit) for label in record.labels}:
            first.setdefault(label, unit.key)
    kept = set(first.values())
    free = {name: sum(unit.key not in kept for unit in units) for name, units in strata.items()}
    quotas = {name: split.test * len(units) for name, units in strata.items()}
    test = _apportion(quotas, free, split.seed, dict.fromkeys(strata, 0.0))
    owed = {name: quotas[name] - test[name] for name in strata}
    free = {name: free[name] - test[name] for name in strata}
    quotas = {name: split.validation * len(units) for name, units in strata.items()}
    validation = _apportion(quotas, free, split.seed, owed)
    for name, stratum in strata.items():
        ordered = sorted(stratum, key=lambda unit: unit.key not in kept)
        end = len(ordered) - test[name]
        cuts = itertools.pairwise((0, end - validation[name], end, len(ordered)))
        for part, (start, end) in zip(SPLITS, cuts, strict=True):
            yield from zip(itertools.repeat(part), ordered[start:end])


def _apportion(
    quotas: Mapping[str, float], limits: Mapping[str, int], seed: int, owed: Mapping[str, float]
) -> dict[str, int]:
    """Rounds the quotas of the classes to whole numbers that add up to the rounded sum.

    Each is rounded down, and those with the largest remainders get the rest, one each (Hamilton's
    method). `owed` adds to the remainders. No class gets more than its limit.
    """
    found = {name: min(limits[name], math.floor(quotas[name] + _ROUNDING)) for name in quotas}
    missing = math.floor(sum(quotas.values()) + 0.5 + _ROUNDING) - sum(found.values())
    ranked = sorted(
        (round(found[name] - quotas[name] - owed[name], 9), hash_key(b"class", seed, name), name)
        for name in quotas
        if found[name] < min(limits[name], quotas[name])
    )
    return found | {name: found[name] + 1 for *_, name in ranked[: max(0, missing)]}


def _read_given_split(unit: _Unit) -> str | None:
    given = {one.split: one.key for one in _get_members(unit) if one.split is not None}
    if unknown := given.keys() - SPLITS:
        name = min(unknown)
        fault = f"the source gives it the split {name!r}, splits are {', '.join(SPLITS)}"
        raise DataError(f"{given[name]}: {fault}")
    if len(given) > 1:
        (one, one_key), (other, other_key), *_ = sorted(given.items())
        fault = f"{one_key} is given the split {one} and {other_key} the split {other}"
        cure = "Correct the given splits, or the groups."
        raise DataError(f"{fault}, but both are of the group {unit.key[:-1]}", cure)
    return next(iter(given), None)


def _find_main_class(records: Sequence[Record]) -> str:
    """The most frequent class, or the first of these by name. "" if no image has a box."""
    counts = Counter(label for record in records for label in record.labels)
    return min(counts, key=lambda label: (-counts[label], label), default="")


def explain_from_plan(
    records: Sequence[Record], kept: Mapping[str, Sequence[Record]], split: Split, name: str
) -> str:
    """Explains why a split is empty before any image is read. `kept` lacks duplicates."""
    share, count = getattr(split, name), len(split_records(records, split)[name])
    key, given = f"preprocess.split.{name}", {record.split or "" for record in records}
    if kept[name]:
        fault = f"none of its {len(kept[name])} images has a label or a box that the stages keep"
        cure = "Correct the annotations or the stages"
    elif count:
        fault = f"all of its {count} images are equal to others or contradict them"
        cure = "Add other images, or set preprocess.duplicates: keep"
    elif given and all(given):
        splits = ", ".join(sorted(given))
        fault = f"the source gives every image a split ({splits}), none of them {name}, and {key}"
        fault += f" is {share:g}"
        cure = f"Give some images to it in the source, or raise {key}, which takes them from train"
    elif not share:
        fault, cure = f"{key} is 0, and the source gives no image to it", "Raise it"
    else:
        fault, cure = _explain_share(key, share, len(records), split)
    return f"{fault}. {cure}."


def _explain_share(key: str, share: float, count: int, split: Split) -> tuple[str, str]:
    rule = f"{key} is {share:g} of {count} images"
    if split.group_by:
        group = f"groups (preprocess.split.group_by: {split.group_by}) are never divided"
        return f"{rule}, and {group}", "Add images of other groups, or raise it"
    if split.stratify and share * count >= 1:
        return f"{rule}, and the first image of each class stays in train", "Add images"
    cure = f"Add images, or raise {key}"
    if split.stratify or share * count < 1:
        return f"{rule}, which rounds to none", cure
    exact = "set preprocess.split.stratify: true, which keeps to the shares exactly"
    return rule, f"{cure}, or {exact}"


def explain_from_shards(
    kept: Mapping[str, Sequence[Record]],
    rejected: Iterable[RejectedRecord],
    summaries: Iterable[ShardSummary],
    name: str,
) -> str:
    """Explains why a split is empty, after all stages have run."""
    keys = {record.key for record in kept[name]}
    reasons = Counter(f"{each.stage}: {each.reason}" for each in rejected if each.key in keys)
    for summary in summaries:
        reasons.update(summary.skipped if summary.split == name else {})
    if not reasons:
        fault = f"the stages keep no box of its {len(keys)} images"
        return f"{fault}. Correct the annotations or the stages."
    rejects = ", ".join(f"{count} by {reason}" for reason, count in sorted(reasons.items()))
    fault = f"all of its {len(keys)} images were rejected or skipped ({rejects})"
    return f"{fault}. Correct them, or the stages."
