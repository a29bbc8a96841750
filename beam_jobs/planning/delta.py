"""Decides which shards a data set takes over from the previous one, and which are built.

Pure: no Beam, no files, no clock.

A data set is a list of generations. Each has shards that never change, and positions in them that
readers skip. A record goes into a shard of the next generation if it is new, or if its content,
label, boxes or split changed. The examples that a changed or vanished record has in an older shard
are skipped. When too many examples are skipped or there are too many generations, everything is
rebuilt. The result is then the same as that of a first run on these files.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from beam_jobs.planning.index import IndexEntry, annotation_digest
from beam_jobs.planning.plan import Record, ShardPlan, num_shards_of, plan_data_set, plan_shards
from pipeline_ops.artifacts.dataset import generation_of
from pipeline_ops.config.preprocess import Preprocess

_RECORDS_PER_SHARD = 32
"""The number of records that justifies another shard in a later generation.

They are worth a file, and a hundred records still spread over the workers.
"""


@dataclasses.dataclass(frozen=True)
class Base:
    """The previous data set. `removed` holds positions by shard."""

    entries: Mapping[str, IndexEntry]
    removed: Mapping[str, Sequence[int]]
    class_names: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Delta:
    """The shards to build, and the shards to take over.

    `linked` names the shards of the base that stay, with the positions to skip in each. `unchanged`
    are the records in them, and those that are kept out as before. `reason` counts the changes, or
    says why everything is rebuilt.
    """

    shards: tuple[ShardPlan, ...]
    linked: Mapping[str, tuple[int, ...]]
    unchanged: tuple[IndexEntry, ...]
    reason: str

    @property
    def generation(self) -> int:
        return max(
            (
                generation_of(name)
                for name in [*self.linked, *(shard.name for shard in self.shards)]
            ),
            default=1,
        )


def plan_delta(
    by_split: Mapping[str, Sequence[Record]],
    base: Base | None,
    config: Preprocess,
    class_names: Sequence[str],
) -> Delta:
    """Plans the shards to take over and to build, for records that have been split."""
    if base is None:
        return _everything(by_split, config, "there is no data set to go on from")
    if list(class_names) != list(base.class_names):
        return _everything(
            by_split,
            config,
            f"the classes changed from {', '.join(base.class_names)} to {', '.join(class_names)}",
        )
    changed, unchanged = _compare(by_split, base)
    linked = _linked(base, unchanged)
    generation = 1 + max(map(generation_of, linked), default=0)
    if reason := _why_compact(changed, linked, unchanged, generation, config):
        return _everything(by_split, config, reason)
    return Delta(
        tuple(_shards_of_generation(changed, generation, config)),
        linked,
        unchanged,
        _describe(changed, unchanged, base),
    )


def _everything(by_split: Mapping[str, Sequence[Record]], config: Preprocess, reason: str) -> Delta:
    return Delta(tuple(plan_data_set(by_split, config)), {}, (), f"everything anew: {reason}")


def _compare(
    by_split: Mapping[str, Sequence[Record]], base: Base
) -> tuple[dict[str, list[Record]], tuple[IndexEntry, ...]]:
    changed: dict[str, list[Record]] = {split: [] for split in by_split}
    unchanged = []
    for split, records in by_split.items():
        for record in records:
            entry = base.entries.get(record.key)
            if entry and (entry.content, entry.split, entry.annotation) == (
                record.file.digest,
                split,
                annotation_digest(record),
            ):
                unchanged.append(entry)
            else:
                changed[split].append(record)
    return changed, tuple(unchanged)


def _linked(base: Base, unchanged: Iterable[IndexEntry]) -> dict[str, tuple[int, ...]]:
    """The shards that still have a record, each with all positions to skip in it."""
    alive = {entry.key for entry in unchanged}
    removed: dict[str, set[int]] = defaultdict(set)
    kept: set[str] = set()
    for entry in base.entries.values():
        if not entry.num_examples:
            continue
        if entry.key in alive:
            kept.add(entry.shard)
        else:
            removed[entry.shard].update(entry.positions)
    return {
        shard: tuple(sorted(removed[shard].union(base.removed.get(shard, ()))))
        for shard in sorted(kept)
    }


def _why_compact(
    changed: Mapping[str, Sequence[Record]],
    linked: Mapping[str, Sequence[int]],
    unchanged: Sequence[IndexEntry],
    generation: int,
    config: Preprocess,
) -> str | None:
    """The reason against a further generation, or None if it pays off."""
    num_new, num_removed = sum(map(len, changed.values())), sum(map(len, linked.values()))
    if not linked:
        return "nothing is left of the data set before"
    loose = (
        num_new
        + num_removed
        + sum(entry.num_examples for entry in unchanged if generation_of(entry.shard) > 1)
    )
    total = num_new + num_removed + sum(entry.num_examples for entry in unchanged)
    if loose > config.deltas.max_fraction * total:
        return (
            f"{loose} of {total} examples are new, removed or of later generations, "
            "more than preprocess.deltas.max_fraction allows"
        )
    generations = {generation_of(shard) for shard in linked} | ({generation} if num_new else set())
    if len(generations) > config.deltas.max_generations:
        return (
            f"it would have {len(generations)} generations, "
            "more than preprocess.deltas.max_generations allows"
        )
    return None


def _shards_of_generation(
    changed: Mapping[str, Sequence[Record]], generation: int, config: Preprocess
) -> list[ShardPlan]:
    shards = []
    for split, records in changed.items():
        num_shards = min(
            num_shards_of(records, config), math.ceil(len(records) / _RECORDS_PER_SHARD)
        )
        shards += plan_shards({split: records}, config.split.seed, num_shards, generation)
    return shards


def _describe(
    changed: Mapping[str, Sequence[Record]], unchanged: Sequence[IndexEntry], base: Base
) -> str:
    keys = {record.key for records in changed.values() for record in records}
    num_known = sum(key in base.entries and base.entries[key].split != "" for key in keys)
    num_gone = (
        sum(entry.split != "" for entry in base.entries.values()) - len(unchanged) - num_known
    )
    return (
        f"{len(keys) - num_known} new, {num_known} changed, {num_gone} gone, "
        f"{len(unchanged)} as before"
    )
