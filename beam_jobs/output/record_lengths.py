"""The file with the lengths of all records, of shards that were built or taken over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from beam_jobs.statistics.summary import ShardSummary
from pipeline_ops.artifacts.record_lengths import (
    RECORD_LENGTHS,
    format_record_lengths,
    parse_record_lengths,
)
from pipeline_ops.storage.atomic import write_atomically


def write_record_lengths(
    folder: Path,
    built: Iterable[ShardSummary],
    kept: Iterable[str],
    previous: Path | None,
) -> None:
    """Writes the lengths into a data set's folder.

    Args:
      folder: the folder of the data set.
      built: the summaries of the shards that were built.
      kept: the shards that were taken over.
      previous: the folder of the data set that had them, which may be too old to have their
        lengths.
    """
    known: dict[str, Sequence[int]] = {}
    if previous and (file := previous / RECORD_LENGTHS).exists():
        known = parse_record_lengths(file.read_bytes(), str(file))
    lengths = {path: known[path] for path in kept if path in known}
    lengths |= {summary.name: summary.lengths for summary in built}
    write_atomically(folder / RECORD_LENGTHS, format_record_lengths(lengths))
