"""The quarantine: all rejected records of a job, with their bytes, checked against the budget.

A worker writes the bad records of a shard into a file of their own next to it. The driver writes
another one, with the records that no worker has read. A later data set references the file of an
older shard while one of its records is still bad. Such a file may also hold records that are no
longer bad: the list of bad records decides.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from beam_jobs.io.example import pack
from beam_jobs.io.raw import Raw, find_raw_file, read_beginning, read_raw
from beam_jobs.io.tfrecord_files import OptionalTFRecordWriter
from beam_jobs.planning.duplicates import CollectionDecision, is_removed_copy
from beam_jobs.sources import SourceData
from beam_jobs.stages import BoundStage, map_class_names
from beam_jobs.statistics.summary import BadRecord, ShardSummary
from pipeline_ops.config.preprocess import Rejects
from pipeline_ops.contract import dataset as shards
from pipeline_ops.contract.dataset import RejectedRecord
from pipeline_ops.errors import DataError
from pipeline_ops.job.runner import Job
from pipeline_ops.job.workspace import ArtifactDraft
from pipeline_ops.raw_data.raw_file import RawFile
from pipeline_ops.storage.local_files import write_atomically
from pipeline_ops.storage.store_path import StorePath

_MAX_NAMED = 10
_SHOWN_PER_REASON, _MAX_SHOWN_REASONS = 3, 12


def collect_rejected(
    source: SourceData,
    decision: CollectionDecision,
    summaries: Iterable[ShardSummary],
    draft: ArtifactDraft,
) -> list[RejectedRecord]:
    """Returns all rejected records by key. Writes their list, and those that no worker has read.

    A copy of a record that a stage has rejected is as bad as that record.
    """
    processed = [record for summary in summaries for record in summary.rejected]
    copies = _reject_copies(decision, {record.key: record for record in processed})
    unread = [*source.found.rejected, *copies]
    with QuarantineWriter(draft.target, "source.tfrecord") as quarantine:
        rejected = [
            quarantine.add(bad) if bad else record
            for record, bad in zip(unread, read_bad_records(unread, source), strict=True)
        ]
    draft.stored += filter(None, [quarantine.file])
    rejected = sorted([*rejected, *processed], key=lambda record: record.key)
    _write_list(draft.folder / shards.QUARANTINE, rejected)
    return rejected


def _reject_copies(
    decision: CollectionDecision, processed: Mapping[str, RejectedRecord]
) -> Iterator[RejectedRecord]:
    """The rejected records of a decision, each copy of a bad record for the reason of that one."""
    bad = {
        record.file.digest: processed[record.key]
        for record in itertools.chain.from_iterable(decision.by_split.values())
        if record.key in processed
    }
    for record, rejected in zip(decision.quarantined, decision.rejected, strict=True):
        original = bad.get(record.file.digest)
        if original and is_removed_copy(rejected):
            detail = f"equal to {original.key}: {original.detail}"
            yield original.model_copy(update={"key": record.key, "detail": detail, "file": ""})
        else:
            yield rejected


def read_bad_records(
    rejected: Sequence[RejectedRecord], source: SourceData
) -> Iterator[BadRecord | None]:
    """Yields each rejected record with its bytes, None for a copy, a box or a missing file."""
    raws: dict[str, Raw] = {}
    if rejected:
        raws |= {file.key: file for file in source.listing.files}
        raws |= {record.key: record.file for record in source.found.records}
    for record in rejected:
        raw = raws.get(record.key)
        if raw is None or is_removed_copy(record):
            yield None
            continue
        if isinstance(raw, RawFile):
            content = read_beginning(raw, source.folder, MAX_BYTES)
        else:
            content = read_raw(raw, source.folder)
        yield BadRecord(record, find_raw_file(raw).key, content, raw.num_bytes)


def choose_shown(rejected: Iterable[RejectedRecord]) -> list[RejectedRecord]:
    """The first records of each reason for the page, of the most frequent reasons.

    Removed copies have no bytes, and come last.
    """
    by_reason: dict[str, list[RejectedRecord]] = defaultdict(list)
    for record in rejected:
        by_reason[record.reason].append(record)
    most = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        record
        for _, found in most[:_MAX_SHOWN_REASONS]
        for record in heapq.nsmallest(_SHOWN_PER_REASON, found, key=is_removed_copy)
    ]


def check_rejects(
    rejected: Sequence[RejectedRecord],
    source: SourceData,
    decision: CollectionDecision,
    rejects: Rejects,
    job: Job,
) -> None:
    """Raises DataError if bad records exceed the budget, or are a whole class."""
    bad = [record for record in rejected if not is_removed_copy(record)]
    num_records = len(source.found.records) + len(source.found.rejected)
    copies = {record.key for record in decision.rejected if is_removed_copy(record)}
    read = ((one.key, one.labels) for one in source.found.records if one.key not in copies)
    labels = itertools.chain(read, source.found.rejected_labels.items())
    budget = rejects.compute_budget(num_records)
    lost = find_lost_classes(labels, bad, source.stages) if bad else []
    if len(bad) <= budget and not lost:
        return
    full_list = job.attempt.folder / shards.REFUSED
    _write_list(full_list, bad)
    named = [f"  {one.key}: {one.reason} ({one.stage}: {one.detail})" for one in bad[:_MAX_NAMED]]
    named += [f"  and {len(bad) - _MAX_NAMED} more"] * (len(bad) > _MAX_NAMED)
    if lost:
        fault = f"every record of {', '.join(lost)} is unusable, and no budget covers a whole class"
        cure = "correct preprocess.stages"
    else:
        fault = f"{len(bad)} of {num_records} raw files are unusable, and the budget is {budget}"
        cure = "raise preprocess.rejects"
    cure = f"Correct or remove them, or {cure} in {job.request.config_file}."
    raise DataError("\n".join([f"{fault}:", *named, f"{full_list} lists all of them"]), cure)


def find_lost_classes(
    labels: Iterable[tuple[str, Iterable[str]]],
    rejected: Iterable[RejectedRecord],
    stages: Sequence[BoundStage] = (),
) -> list[str]:
    """The classes, as named after the stages, all of whose records were rejected."""
    bad = {record.key for record in rejected}
    planned, lost = Counter[str](), Counter[str]()
    for key, names_before in labels:
        names = map_class_names(stages, dict.fromkeys(names_before))
        planned.update(names)
        if key in bad:
            lost.update(names)
    return sorted(name for name, count in lost.items() if count == planned[name])


MAX_BYTES = 1 << 20
"""The maximum number of bytes of a record's content. A longer content is cut off there."""


class QuarantineWriter(OptionalTFRecordWriter):
    """Writes the bad records of one shard. It makes a file only if there is a bad record."""

    def __init__(self, folder: StorePath, shard: str):
        super().__init__(folder / f"{shards.QUARANTINE_PREFIX}{shard}")

    def add(self, record: BadRecord) -> RejectedRecord:
        """Adds a bad record. Returns its line of the list, which names the file."""
        rejected = record.rejected
        features: dict[str, bytes | int | Sequence[bytes]] = {
            shards.QUARANTINE_KEY: rejected.key.encode(),
            shards.QUARANTINE_STAGE: rejected.stage.encode(),
            shards.QUARANTINE_REASON: rejected.reason.encode(),
            shards.QUARANTINE_DETAIL: rejected.detail.encode(),
            shards.QUARANTINE_SOURCE: record.source.encode(),
            shards.QUARANTINE_NUM_BYTES: record.num_bytes,
            shards.QUARANTINE_CONTENT: record.content[:MAX_BYTES],
        }
        self.write(pack(features))
        return rejected.model_copy(update={"file": self._path.name})


def _write_list(file: Path, rejected: Iterable[RejectedRecord]) -> None:
    write_atomically(file, "".join(record.model_dump_json() + "\n" for record in rejected).encode())
