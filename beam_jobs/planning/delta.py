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
from typing import Any

from beam_jobs.planning.index import IndexEntry, compute_annotation_digest
from beam_jobs.planning.plan import Record, ShardPlan, compute_num_shards, plan_dataset, plan_shards
from pipeline_ops.artifacts.dataset import parse_generation
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.raw_data.raw_file import format_digest

_RECORDS_PER_SHARD = 32  # worth a file, and a hundred records still spread over the workers


@dataclasses.dataclass(frozen=True)
class BaseDataset:
    """The previous data set. `removed` holds positions by shard, `generation` is the newest."""

    entries: Mapping[str, IndexEntry]
    removed: Mapping[str, Sequence[int]]
    class_names: Sequence[str]
    generation: int


@dataclasses.dataclass(frozen=True)
class Delta:
    """The shards to build, and the shards to take over.

    `kept` names the shards of the base that stay, with the positions to skip in each. `unchanged`
    are the records in them, and those that are rejected again. `reason` counts the changes, or
    is the cause of a rebuild.
    """

    shards: tuple[ShardPlan, ...]
    kept: Mapping[str, tuple[int, ...]]
    unchanged: tuple[IndexEntry, ...]
    reason: str

    @property
    def figures(self) -> dict[str, Any]:
        """The figures of the data set that follow from the plan."""
        names = [*self.kept, *(shard.name for shard in self.shards)]
        return {
            "generation": max(map(parse_generation, names), default=1),
            "removed": {shard: list(found) for shard, found in self.kept.items() if found},
        }


def plan_delta(
    by_split: Mapping[str, Sequence[Record]],
    base: BaseDataset | None,
    config: Preprocess,
    class_names: Sequence[str],
) -> Delta:
    """Plans the shards to take over and to build, for records that have been split."""
    if base is None:
        reason: str | None = "there is no data set to continue"
    elif list(class_names) != list(base.class_names):
        before, after = ", ".join(base.class_names), ", ".join(class_names)
        reason = f"the classes changed from {before} to {after}"
    else:
        changed, unchanged = _find_changes(by_split, base)
        kept = _find_kept_shards(base, unchanged)
        reason = _explain_rebuild(changed, kept, unchanged, config)
        if reason is None:
            shards = tuple(_plan_generation(changed, base.generation + 1, config))
            return Delta(shards, kept, unchanged, _summarize_changes(changed, unchanged, base))
    return Delta(tuple(plan_dataset(by_split, config)), {}, (), f"rebuilds everything: {reason}")


def _find_changes(
    by_split: Mapping[str, Sequence[Record]], base: BaseDataset
) -> tuple[dict[str, list[Record]], tuple[IndexEntry, ...]]:
    changed: dict[str, list[Record]] = {split: [] for split in by_split}
    unchanged = []
    for split, records in by_split.items():
        for record in records:
            entry = base.entries.get(record.key)
            if entry and (entry.content, entry.split, entry.annotation) == (
                format_digest(record.file.digest),
                split,
                compute_annotation_digest(record),
            ):
                unchanged.append(entry)
            else:
                changed[split].append(record)
    return changed, tuple(unchanged)


def _find_kept_shards(
    base: BaseDataset, unchanged: Iterable[IndexEntry]
) -> dict[str, tuple[int, ...]]:
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


def _explain_rebuild(
    changed: Mapping[str, Sequence[Record]],
    kept: Mapping[str, Sequence[int]],
    unchanged: Sequence[IndexEntry],
    config: Preprocess,
) -> str | None:
    """The reason against a further generation, or None if it pays off."""
    if not kept:
        return "nothing is left of the previous data set"
    num_changed = sum(map(len, [*changed.values(), *kept.values()]))
    later = (entry.num_examples for entry in unchanged if parse_generation(entry.shard) > 1)
    loose = num_changed + sum(later)
    total = num_changed + sum(entry.num_examples for entry in unchanged)
    if loose > config.incremental.max_fraction * total:
        return (
            f"{loose} of {total} examples are new, removed or of later generations, "
            "more than preprocess.incremental.max_fraction allows"
        )
    num_generations = len(set(map(parse_generation, kept))) + any(changed.values())
    if num_generations > config.incremental.max_generations:
        return (
            f"it would have {num_generations} generations, "
            "more than preprocess.incremental.max_generations allows"
        )
    return None


def _plan_generation(
    changed: Mapping[str, Sequence[Record]], generation: int, config: Preprocess
) -> list[ShardPlan]:
    shards = []
    for split, records in changed.items():
        max_shards = math.ceil(len(records) / _RECORDS_PER_SHARD)
        num_shards = min(compute_num_shards(records, config), max_shards)
        shards += plan_shards(split, records, config.split.seed, num_shards, generation)
    return shards


def _summarize_changes(
    changed: Mapping[str, Sequence[Record]], unchanged: Sequence[IndexEntry], base: BaseDataset
) -> str:
    keys = {record.key for records in changed.values() for record in records}
    num_known = sum(key in base.entries and base.entries[key].split != "" for key in keys)
    num_gone = (
        sum(entry.split != "" for entry in base.entries.values()) - len(unchanged) - num_known
    )
    return (
        f"{len(keys) - num_known} new, {num_known} changed, {num_gone} gone, "
        f"{len(unchanged)} unchanged"
    )
