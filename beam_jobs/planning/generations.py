"""Generations of a data set: which shards of the previous one stay, and which are built.

A data set is a list of generations. Each has shards that never change, and positions in them that
readers skip. A record goes into a shard of the next generation if it is new, or if its content,
label, boxes or split changed. The examples that a changed or vanished record has in an older shard
are skipped. When too many examples are skipped or there are too many generations, everything is
rebuilt. The result is then the same as that of a first run on these files.

The index has one line for each record, from which the next generation finds changes. It holds
everything that is needed for counting and skipping a record without opening its shard.

A shard that stays is referenced where it lies. A disk fault in a shard, or its removal, affects
every data set that references it. The sizes and checksums in the manifests detect it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from beam_jobs.planning.plan import Record, ShardPlan, compute_num_shards, plan_dataset, plan_shards
from beam_jobs.statistics.summary import ShardSummary
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.contract import dataset
from pipeline_ops.contract.dataset import IndexEntry, RejectedRecord
from pipeline_ops.contract.manifest import BASE, ManifestFile, read_input
from pipeline_ops.contract.request import Request
from pipeline_ops.errors import DataError
from pipeline_ops.job.local_inputs import fetch_input
from pipeline_ops.job.workspace import ArtifactDraft
from pipeline_ops.raw_data.raw_file import format_digest
from pipeline_ops.storage.read_errors import make_read_error

MAX_GENERATIONS = 8
"""With more, the whole data set is made again: each generation adds small shards."""
_RECORDS_PER_SHARD = 32  # worth a file, and a hundred records still spread over the workers
_DESCRIPTION = (dataset.INDEX, dataset.QUARANTINE, dataset.RECORD_LENGTHS)


def compute_annotation_digest(record: Record) -> str:
    """A digest, as 16 hex digits, of what the shard holds of a record's annotation."""
    return _digest_annotation((record.label, record.boxes, record.frame))


@functools.lru_cache(maxsize=4096)
def _digest_annotation(annotation: tuple[object, ...]) -> str:
    text = repr(annotation).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def read_index(file: Path) -> dict[str, IndexEntry]:
    """Reads the entries of an index by key. Raises DataError if the file is not an index."""
    found: dict[str, IndexEntry] = {}
    shared: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
    for entry in dataset.iterate_index(file):
        # Equal counts are shared, which saves the memory of a million entries.
        labels = shared.setdefault(tuple(entry.labels.items()), entry.labels)
        found[entry.key] = entry._replace(labels=labels)
    if not found:
        raise DataError(f"{file}: the index is empty. Remove its data set, and start a new run.")
    return found


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
            "generation": max(map(dataset.parse_generation, names), default=1),
            "removed": {shard: list(found) for shard, found in self.kept.items() if found},
        }


def plan_delta(
    by_split: Mapping[str, Sequence[Record]],
    base: BaseDataset | None,
    config: Preprocess,
    class_names: Sequence[str],
) -> Delta:
    """Plans the shards to take over and to build, without files and without a clock."""
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
            if entry and entry[:4] == _make_entry(record, split, {})[:4]:  # up to its split
                unchanged.append(entry)
            else:
                changed[split].append(record)
    return changed, tuple(unchanged)


def _find_kept_shards(
    base: BaseDataset, unchanged: Iterable[IndexEntry]
) -> dict[str, tuple[int, ...]]:
    """The shards that still have a record, each with all positions to skip in it."""
    alive = {entry.key for entry in unchanged}
    kept = sorted({entry.shard for entry in unchanged if entry.num_examples})
    removed = {shard: set(base.removed.get(shard, ())) for shard in kept}
    for entry in base.entries.values():
        if entry.key not in alive and entry.shard in removed:
            removed[entry.shard].update(entry.positions)
    return {shard: tuple(sorted(found)) for shard, found in removed.items()}


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
    later = (entry.num_examples for entry in unchanged if dataset.parse_generation(entry.shard) > 1)
    loose = num_changed + sum(later)
    total = num_changed + sum(entry.num_examples for entry in unchanged)
    if loose > config.incremental.max_fraction * total:
        share = f"{loose} of {total} examples are new, removed or of later generations"
        return f"{share}, more than preprocess.incremental.max_fraction allows"
    num_generations = len(set(map(dataset.parse_generation, kept))) + any(changed.values())
    if num_generations > MAX_GENERATIONS:
        return f"it would have {num_generations} generations, more than {MAX_GENERATIONS}"
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
    before = {entry.key for entry in base.entries.values() if entry.split}
    num_changed, num_same = len(keys & before), len(unchanged)
    num_gone = len(before) - num_same - num_changed
    new = len(keys - before)
    return f"{new} new, {num_changed} changed, {num_gone} gone, {num_same} unchanged"


@dataclasses.dataclass(frozen=True)
class PreviousDataset(BaseDataset):
    """A data set in the store, in the folder `name`. `folder`, on this host, may lack shards."""

    name: str
    folder: Path
    files: Sequence[ManifestFile]
    image_shape: tuple[int, int, int]
    labels: Mapping[str, Mapping[str, int]]
    """Its examples, or boxes, by split and class."""


def read_previous_dataset(request: Request) -> PreviousDataset | None:
    """Returns the data set that the request names. Raises DataError if it is gone or replaced."""
    if (entry := request.inputs.get(BASE)) is None:
        return None
    manifest, artifact = read_input(entry), Path(entry.uri).parent
    folder = Path(fetch_input(entry, _DESCRIPTION.__contains__).uri).parent
    figures = dataset.DatasetFigures.model_validate(manifest.figures)
    return PreviousDataset(
        read_index(folder / dataset.INDEX),
        figures.removed,
        figures.class_names,
        max(dataset.parse_generation(file.path) for file in manifest.files),
        artifact.name,
        folder,
        manifest.files,
        figures.image_shape,
        figures.labels,
    )


def take_over(
    delta: Delta, previous: PreviousDataset | None, draft: ArtifactDraft
) -> list[ShardSummary]:
    """References the shards that stay, with their bad records and raw test records.

    Returns a summary for each split.
    """
    if previous is None or not delta.kept:
        return []
    splits = {entry.key: entry.split for entry in delta.unchanged}
    rejected = _read_rejected(previous, splits.keys())
    files = {file.path: file for file in previous.files}
    raw_test = (f"{dataset.RAW_TEST_PREFIX}{shard}" for shard in delta.kept)
    kept = [*delta.kept, *{record.file for record in rejected if record.file}]
    kept += [path for path in raw_test if path in files]
    draft.references = [files[path].reference(Path(previous.name)) for path in kept]
    summaries = []
    for split in dataset.SPLITS:
        entries = [entry for entry in delta.unchanged if entry.split == split]
        keys = [entry.key for entry in entries if entry.num_examples]
        summary = ShardSummary.count(
            entries,
            split=split,
            name=f"{split} (unchanged)",
            shapes=[(previous.image_shape, min(keys))] if keys else [],
            rejected=[record for record in rejected if splits[record.key] == split],
        )
        summaries.append(summary)
    return summaries


def _read_rejected(previous: PreviousDataset, keys: Collection[str]) -> list[RejectedRecord]:
    file = previous.folder / dataset.QUARANTINE
    try:
        records = map(RejectedRecord.model_validate_json, file.read_bytes().splitlines())
        return [record for record in records if record.key in keys]
    except (OSError, ValidationError) as error:
        remedy = ". Remove its data set, and start a new run."
        raise make_read_error(f"cannot read {file}", error, remedy) from error


def collect_known_hashes(previous: PreviousDataset | None) -> dict[int, str]:
    """The perceptual hashes, by content, of all images in the previous data set's index."""
    entries = previous.entries.values() if previous else ()
    return {int(one.content, 16): one.perceptual_hash for one in entries if one.perceptual_hash}


def build_index_entries(
    delta: Delta,
    built: Iterable[ShardSummary],
    quarantined: Iterable[Record],
    perceptual_hashes: Mapping[int, str],
) -> Iterator[IndexEntry]:
    """The entries of unchanged and of built records, and of those that duplicates keep out."""
    yield from delta.unchanged
    for plan, summary in zip(delta.shards, built, strict=True):
        position = 0
        for record, outcome in zip(plan.records, summary.outcomes, strict=True):
            place = (plan.name, position) if outcome.num_examples else ()
            entry = _make_entry(record, plan.split, perceptual_hashes, *place)
            yield entry._replace(**outcome._asdict())
            position += outcome.num_examples
    for record in quarantined:
        yield _make_entry(record, "", perceptual_hashes)


def _make_entry(
    record: Record, split: str, hashes: Mapping[int, str], shard: str = "", position: int = 0
) -> IndexEntry:
    digest, annotation = record.file.digest, compute_annotation_digest(record)
    found = IndexEntry(record.key, format_digest(digest), annotation, split, shard, position)
    return found._replace(perceptual_hash=hashes.get(digest, ""))


def count_changes(
    entries: Iterable[IndexEntry], previous: PreviousDataset | None
) -> dict[str, int | None]:
    """The figures `came` and `left`: by content, so that a renamed image does neither."""
    if previous is None:
        return {"came": None, "left": None}
    ours, theirs = (
        Counter(entry.content for entry in each if entry.num_examples)
        for each in (entries, previous.entries.values())
    )
    return {"came": (ours - theirs).total(), "left": (theirs - ours).total()}


def collect_record_lengths(
    built: Iterable[ShardSummary], kept: Iterable[str], previous: PreviousDataset | None
) -> dict[str, Sequence[int]]:
    """The lengths of the shards that were built or kept. An old data set has none."""
    lengths: dict[str, Sequence[int]] = {}
    if previous and (file := previous.folder / dataset.RECORD_LENGTHS).exists():
        known = dataset.parse_record_lengths(file.read_bytes(), str(file))
        lengths = {path: known[path] for path in kept if path in known}
    return lengths | {summary.name: summary.lengths for summary in built}
