"""The source of a config as it was read, and the stages for it, before any image is read.

The preprocess job and the dry runs begin with it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from beam_jobs.planning.plan import collect_class_names, infer_task
from beam_jobs.sources import read_records, validate_listing
from beam_jobs.sources.collect import SourceRecords
from beam_jobs.sources.user_source import read_user_records
from beam_jobs.stages import bind_stages, check_data
from beam_jobs.stages.execution import BoundStage, map_class_names
from pipeline_ops.config.model_catalogue import Task
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.user_source import UserSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing, RawFolder


@dataclasses.dataclass(frozen=True)
class SourceData:
    """All records of a source. `class_names` are the classes after the stages."""

    listing: Listing
    found: SourceRecords
    task: Task
    stages: Sequence[BoundStage]
    class_names: tuple[str, ...]

    @property
    def folder(self) -> RawFolder:
        return self.listing.folder


def read_source_data(config: Preprocess, listing: Listing, config_file: Path) -> SourceData:
    """Reads a source, and checks that the stages can work on it.

    Raises:
      ConfigError: a stage cannot work on these data, or a user source cannot be imported.
      DataError: the source as a whole cannot be read, or none of its entries is usable.
      MachineError: a file has changed since it was listed.
      SourceFailed: a user source has a bug.
    """
    validate_listing(config, listing, config_file)
    found = (
        read_user_records(config.source, listing, config_file)
        if isinstance(config.source, UserSource)
        else read_records(config.source, listing)
    )
    if not found.records and found.rejected:
        raise DataError(_describe_rejected(listing, found))
    names = getattr(config.source, "class_names", None) or collect_class_names(found.records)
    task = infer_task(found.records)
    check_data(config, task, names, config_file)
    stages = bind_stages(config.stages)
    return SourceData(listing, found, task, stages, tuple(map_class_names(stages, names)))


def _describe_rejected(listing: Listing, found: SourceRecords) -> str:
    """Names each reason for which entries are unusable, with its count and an example."""
    examples = {entry.reason: entry for entry in reversed(found.rejected)}
    counts = Counter(entry.reason for entry in found.rejected)
    reasons = "; ".join(
        f"{count} {reason}, such as {examples[reason].key}: {examples[reason].detail}"
        for reason, count in counts.most_common()
    )
    return (
        f"{listing.folder}: none of the {len(found.rejected)} entries of the source is usable: "
        f"{reasons}. Correct the annotations, or preprocess.source."
    )
