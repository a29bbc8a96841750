"""Continues the previous data set: reads it, links the shards that stay, makes index entries.

Shards are taken over as hard links, so each data set is complete, and the older one may be removed.
A disk fault in a shard affects every data set that contains the shard. The checksums in the
manifests detect it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from beam_jobs.output.quarantine import carry_over
from beam_jobs.planning.delta import Base, Delta
from beam_jobs.planning.index import IndexEntry, annotation_digest, read_index
from beam_jobs.planning.plan import Record, ShardPlan
from beam_jobs.statistics.measure import Ruler, numbers_from_text
from beam_jobs.statistics.summary import RejectedRecord, ShardSummary
from pipeline_ops.artifacts.dataset import (
    INDEX,
    QUARANTINE,
    QUARANTINE_SHARD,
    SPLITS,
    DatasetFigures,
)
from pipeline_ops.artifacts.input_names import BASE
from pipeline_ops.artifacts.manifest import Manifest, read_input
from pipeline_ops.jobs.request import Request
from pipeline_ops.jobs.runner import ArtifactDraft
from pipeline_ops.storage.atomic import link_file
from pipeline_ops.storage.read_errors import unreadable


@dataclasses.dataclass(frozen=True)
class DataSetBefore:
    """The data set that a request continues."""

    folder: Path
    manifest: Manifest
    figures: DatasetFigures
    entries: Mapping[str, IndexEntry]

    @property
    def base(self) -> Base:
        return Base(self.entries, self.figures.removed, self.figures.class_names)


def read_base(request: Request) -> DataSetBefore | None:
    """Returns the data set that the request names, or None.

    Raises:
      DataError: the data set is gone, or has been replaced by another one.
    """
    if (entry := request.inputs.get(BASE)) is None:
        return None
    manifest, folder = read_input(entry), Path(entry.uri).parent
    return DataSetBefore(
        folder,
        manifest,
        DatasetFigures.model_validate(manifest.figures),
        read_index(folder / INDEX),
    )


def link_shards(delta: Delta, before: DataSetBefore, draft: ArtifactDraft) -> None:
    """Links the shards that stay into the new data set. Raises MachineError if the disk refuses."""
    for shard in delta.linked:
        link_file(before.folder / shard, draft.folder / shard)
        draft.linked[shard] = before.manifest.file(shard)


def summaries_of_unchanged(delta: Delta, before: DataSetBefore) -> list[ShardSummary]:
    """The summary of everything that is taken over, for each split.

    It looks like the summary of one shard that was just built, so that the figures count it.
    """
    rejected = _rejected_before(before, {entry.key for entry in delta.unchanged})
    splits = {entry.key: entry.split for entry in delta.unchanged}
    return [
        _summary_of(
            split,
            [entry for entry in delta.unchanged if entry.split == split],
            [record for record in rejected if splits[record.key] == split],
            before.figures,
        )
        for split in SPLITS
    ]


def _summary_of(
    split: str,
    entries: Sequence[IndexEntry],
    rejected: list[RejectedRecord],
    figures: DatasetFigures,
) -> ShardSummary:
    labels: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    ruler = Ruler()
    for entry in entries:
        labels.update(entry.labels)
        skipped.update(entry.skipped)
        for numbers in numbers_from_text(entry.numbers):
            ruler.add_numbers(numbers)
    first = min((entry.key for entry in entries if entry.num_examples), default=None)
    return ShardSummary(
        split=split,
        name=f"{split} as before",
        num_examples=sum(entry.num_examples for entry in entries),
        labels=labels,
        shapes=[] if first is None else [(figures.image_shape, first)],
        rejected=rejected,
        skipped=skipped,
        nanoseconds={},
        measured=ruler.measured(),
    )


def _rejected_before(before: DataSetBefore, keys: set[str]) -> list[RejectedRecord]:
    file = before.folder / QUARANTINE
    try:
        records = map(RejectedRecord.model_validate_json, file.read_bytes().splitlines())
        return [record for record in records if record.key in keys]
    except (OSError, ValidationError) as error:
        raise unreadable(
            f"{file}: can't be read",
            error,
            "; remove the data set that it is in, and start a new run",
        ) from error


def keep_rejected(
    before: DataSetBefore, unchanged: Iterable[ShardSummary], fragments: Path
) -> None:
    """Copies the bytes of records that are rejected as before to the fragments.

    Raises:
      DataError: the bytes cannot be read.
    """
    carry_over(
        before.folder / QUARANTINE_SHARD,
        {record.key for summary in unchanged for record in summary.rejected},
        fragments,
    )


def known_pictures(before: DataSetBefore | None) -> dict[str, str]:
    """The perceptual hashes, by content, of all images in the previous data set's index."""
    return (
        {entry.content: entry.picture for entry in before.entries.values() if entry.picture}
        if before
        else {}
    )


def entries_of(
    plans: Iterable[ShardPlan], summaries: Iterable[ShardSummary], pictures: Mapping[str, str]
) -> Iterator[IndexEntry]:
    """The index entries of shards that were just built.

    `pictures` are perceptual hashes by content.
    """
    for plan, summary in zip(plans, summaries, strict=True):
        position = 0
        for record, outcome in zip(plan.records, summary.outcomes, strict=True):
            place = (plan.name, position) if outcome.num_examples else ("", 0)
            yield IndexEntry(
                record.key,
                record.file.digest,
                annotation_digest(record),
                plan.split,
                *place,
                outcome.num_examples,
                outcome.labels,
                pictures.get(record.file.digest, ""),
                outcome.skipped,
                outcome.numbers,
            )
            position += outcome.num_examples


def entries_of_kept_out(
    records: Iterable[Record], pictures: Mapping[str, str]
) -> Iterator[IndexEntry]:
    """The index entries of records that the collection kept out.

    They are in no split, so that they are built as soon as the collection includes them.
    """
    for record in records:
        yield IndexEntry(
            record.key,
            record.file.digest,
            annotation_digest(record),
            "",
            picture=pictures.get(record.file.digest, ""),
        )
