"""Continues the previous data set: reads it, references the shards that stay, makes index entries.

A shard that stays is referenced where it lies. A disk fault in a shard, or its removal, affects
every data set that references it. The sizes and checksums in the manifests detect it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from beam_jobs.planning.delta import BaseDataset, Delta
from beam_jobs.planning.index import IndexEntry, compute_annotation_digest, read_index
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.statistics.measure import MeasurementAccumulator, decode_measurements
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary
from pipeline_ops.artifacts.dataset import (
    INDEX,
    QUARANTINE,
    SPLITS,
    DatasetFigures,
    parse_generation,
)
from pipeline_ops.artifacts.input_names import BASE
from pipeline_ops.artifacts.manifest import Manifest, read_input
from pipeline_ops.artifacts.record_lengths import (
    RECORD_LENGTHS,
    format_record_lengths,
    parse_record_lengths,
)
from pipeline_ops.jobs.artifact_writer import ArtifactDraft
from pipeline_ops.jobs.local_inputs import fetch_input
from pipeline_ops.jobs.request import Request
from pipeline_ops.raw_data.raw_file import format_digest
from pipeline_ops.storage.atomic import write_atomically
from pipeline_ops.storage.read_errors import make_read_error

_DESCRIPTION = (INDEX, QUARANTINE, RECORD_LENGTHS)


@dataclasses.dataclass(frozen=True)
class PreviousDataset:
    """The data set that a request continues, and the entries of its index by key.

    `name` is its folder in the store. `folder` is on this host, and may have no shards.
    """

    name: str
    folder: Path
    manifest: Manifest
    figures: DatasetFigures
    entries: Mapping[str, IndexEntry]

    @property
    def base(self) -> BaseDataset:
        newest = max(parse_generation(file.path) for file in self.manifest.files)
        return BaseDataset(self.entries, self.figures.removed, self.figures.class_names, newest)


def read_previous_dataset(request: Request) -> PreviousDataset | None:
    """Returns the data set that the request names. Raises DataError if it is gone or replaced."""
    if (entry := request.inputs.get(BASE)) is None:
        return None
    manifest, artifact = read_input(entry), Path(entry.uri).parent
    folder = Path(fetch_input(entry, _DESCRIPTION.__contains__).uri).parent
    return PreviousDataset(
        artifact.name,
        folder,
        manifest,
        DatasetFigures.model_validate(manifest.figures),
        read_index(folder / INDEX),
    )


def take_over(
    delta: Delta, previous: PreviousDataset | None, draft: ArtifactDraft
) -> list[ShardSummary]:
    """References the shards that stay in the new data set, and the files of their bad records.

    Returns a summary of everything that is taken over, for each split. It looks like the summary of
    one shard that was just built, so that the figures count it.
    """
    if previous is None or not delta.kept:
        return []
    splits = {entry.key: entry.split for entry in delta.unchanged}
    rejected = _read_rejected(previous, splits.keys())
    kept = [*delta.kept, *{record.file for record in rejected if record.file}]
    files = {file.path: file for file in previous.manifest.files}
    draft.references = [files[path].reference(Path(previous.name)) for path in kept]
    return [
        _summarize_split(
            split,
            [entry for entry in delta.unchanged if entry.split == split],
            [record for record in rejected if splits[record.key] == split],
            previous.figures,
        )
        for split in SPLITS
    ]


def _summarize_split(
    split: str,
    entries: Sequence[IndexEntry],
    rejected: list[RejectedRecord],
    figures: DatasetFigures,
) -> ShardSummary:
    labels: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    accumulator = MeasurementAccumulator()
    for entry in entries:
        labels.update(entry.labels)
        skipped.update(entry.skipped)
        for measurements in decode_measurements(entry.measurements):
            accumulator.add(measurements)
    first = min((entry.key for entry in entries if entry.num_examples), default=None)
    return ShardSummary(
        split=split,
        name=f"{split} (unchanged)",
        num_examples=sum(entry.num_examples for entry in entries),
        labels=labels,
        shapes=[] if first is None else [(figures.image_shape, first)],
        rejected=rejected,
        skipped=skipped,
        nanoseconds={},
        measurements=accumulator.to_measurements(),
    )


def _read_rejected(previous: PreviousDataset, keys: Collection[str]) -> list[RejectedRecord]:
    file = previous.folder / QUARANTINE
    try:
        records = map(RejectedRecord.model_validate_json, file.read_bytes().splitlines())
        return [record for record in records if record.key in keys]
    except (OSError, ValidationError) as error:
        raise make_read_error(
            f"cannot read {file}", error, ". Remove its data set, and start a new run."
        ) from error


def collect_known_hashes(previous: PreviousDataset | None) -> dict[int, str]:
    """The perceptual hashes, by content, of all images in the previous data set's index."""
    entries = previous.entries.values() if previous else ()
    return {int(one.content, 16): one.perceptual_hash for one in entries if one.perceptual_hash}


def build_index_entries(
    plans: Iterable[ShardPlan],
    summaries: Iterable[ShardSummary],
    quarantined: Iterable[Record],
    perceptual_hashes: Mapping[int, str],
) -> Iterator[IndexEntry]:
    """The index entries of shards that were just built, and of records that duplicates keep out.

    The latter are in no split, so that they are built as soon as nothing keeps them out.
    """
    for plan, summary in zip(plans, summaries, strict=True):
        position = 0
        for record, outcome in zip(plan.records, summary.outcomes, strict=True):
            has_examples = outcome.num_examples > 0
            yield _make_entry(record, plan.split, perceptual_hashes)._replace(
                shard=plan.name if has_examples else "",
                position=position if has_examples else 0,
                **outcome._asdict(),
            )
            position += outcome.num_examples
    for record in quarantined:
        yield _make_entry(record, "", perceptual_hashes)


def _make_entry(record: Record, split: str, perceptual_hashes: Mapping[int, str]) -> IndexEntry:
    return IndexEntry(
        record.key,
        format_digest(record.file.digest),
        compute_annotation_digest(record),
        split,
        perceptual_hash=perceptual_hashes.get(record.file.digest, ""),
    )


def write_record_lengths(
    folder: Path, built: Iterable[ShardSummary], kept: Iterable[str], previous: Path | None
) -> None:
    """Writes the lengths of the shards that were built, and of those that were `kept`.

    The data set in `previous`, which had them, may be too old to have their lengths.
    """
    known: dict[str, Sequence[int]] = {}
    if previous and (file := previous / RECORD_LENGTHS).exists():
        known = parse_record_lengths(file.read_bytes(), str(file))
    lengths = {path: known[path] for path in kept if path in known}
    lengths |= {summary.name: summary.lengths for summary in built}
    write_atomically(folder / RECORD_LENGTHS, format_record_lengths(lengths))
