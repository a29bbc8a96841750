"""A worker's share of the job: builds one plan after the other, and leaves the results in a folder.

The same code runs inside a Beam worker and in a separate process (`worker.py`). It does not depend
on Beam, and returns only two counts. No runner returns a value, so summaries, counts and errors
are files in the scratch folder. The plans are files, too, and only their names travel: Beam would
compress the plans and keep all of them in memory.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from beam_jobs.planning.plan import ShardPlan
from beam_jobs.planning.plan_file import read_plan, write_plan
from beam_jobs.statistics.summary import PlanSummary
from beam_jobs.workers.progress_counter import StoppedByDriver, stop_workers
from pipeline_ops.errors import ExitCode, MachineError, TrainyardError, make_error
from pipeline_ops.jobs.request import Status
from pipeline_ops.storage.atomic import write_atomically
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as

PROGRESS, PLAN, SUMMARY, ERROR = "progress", ".plan", ".json", ".error"
"""Names in the scratch folder. The last three are the suffixes of each plan's files."""
PlanCounts = tuple[int, int]
"""The number of examples, and the number of rejected records."""
SummaryT = TypeVar("SummaryT", bound=PlanSummary, covariant=True)
_log = logging.getLogger("beam_jobs.workers.plan_builder")


class Builder(Protocol[SummaryT]):
    """Builds one plan after another."""

    def build(self, plan: ShardPlan) -> SummaryT: ...


class BuildSpec(Protocol[SummaryT]):
    """The kind of work, and the common properties of its plans. It is pickled for the workers."""

    @property
    def summary(self) -> type[SummaryT]:
        """The type of summary that a builder returns for each plan."""

    def create_builder(self, progress_file: Path, fragments: Path) -> Builder[SummaryT]: ...


class PlanBuilder:
    """Builds the plans of one spec."""

    def __init__(self, spec: BuildSpec[PlanSummary], scratch: Path):
        import cv2

        cv2.setNumThreads(1)  # its threads would compete with the workers for the same cores
        # A broken image is rejected with a reason, without a line on stderr.
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        self._builder, self._scratch = spec.create_builder(scratch / PROGRESS, scratch), scratch

    def build(self, name: str) -> PlanCounts | None:
        """Builds the plan of this name. Returns None if the build was stopped or has failed.

        It never raises: Beam would print each error four times.
        """
        try:
            plan = read_plan(self._scratch / f"{name}{PLAN}")
            summary = self._builder.build(plan)
            write_atomically(self._scratch / f"{name}{SUMMARY}", summary.model_dump_json().encode())
        except StoppedByDriver:
            return None
        except Exception as error:
            report_failure(name, error, self._scratch)
            return None
        return summary.num_examples, len(summary.rejected)


def write_plans(plans: Iterable[ShardPlan], scratch: Path) -> None:
    for plan in plans:
        write_plan(scratch / f"{plan.name}{PLAN}", plan)


def report_failure(name: str, error: Exception, scratch: Path) -> None:
    """Leaves the error for the driver and stops all workers."""
    if isinstance(error, OSError):
        error = MachineError(f"{name}: {error}. Free disk space or repair the disk, then retry.")
    if not isinstance(error, TrainyardError):
        error = TrainyardError(f"{type(error).__name__} while building {name}: {error}")
    if error.exit_code is ExitCode.BUG:
        _log.exception("%s", error)
    status = Status(exit_code=error.exit_code, message=str(error))
    write_atomically(scratch / f"{name}{ERROR}", status.model_dump_json().encode())
    stop_workers(scratch / PROGRESS)


def raise_worker_error(scratch: Path) -> None:
    """Raises the error that a worker left, if there is one.

    Of several errors, it raises the first shard's: the others are usually the same.
    """
    for file in sorted(scratch.glob(f"*{ERROR}")):
        if status := read_json_as(Status, open_path(file)):
            raise make_error(status.exit_code, status.message)
