"""A worker's share of the job: builds one plan after the other, and leaves the results in a folder.

The same code runs inside a Beam worker and in a separate process (`worker.py`). It does not depend
on Beam, and returns only two counts. No runner returns a value, so summaries, tallies and errors
are files in the scratch folder. The plans are files, too, and only their names travel: Beam would
compress the plans and keep all of them in memory.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from beam_jobs.planning.plan import ShardPlan
from beam_jobs.planning.plan_file import read_plan, write_plan
from beam_jobs.progress_counter import StoppedByDriver, stop_workers
from pipeline_ops.errors import ExitCode, MachineError, TrainyardError, error_of
from pipeline_ops.jobs.request import Status
from pipeline_ops.storage.atomic import write_whole
from pipeline_ops.storage.parsing import read_json_as

if TYPE_CHECKING:
    from beam_jobs.output.shard import ShardBuildSpec
    from beam_jobs.planning.perceptual_hash import PictureOrder

TALLY, PLAN, SUMMARY, ERROR = (
    "tally",
    ".plan",
    ".json",
    ".error",
)  # in the scratch folder, the last three for each shard
Done = tuple[int, int]
"""The number of examples, and the number of rejected records."""
_log = logging.getLogger("beam_jobs.work")


class Work:
    """Builds the plans of one order."""

    def __init__(self, order: ShardBuildSpec | PictureOrder, scratch: Path):
        import cv2

        cv2.setNumThreads(1)  # its threads would compete with the workers for the same cores
        cv2.utils.logging.setLogLevel(
            cv2.utils.logging.LOG_LEVEL_SILENT
        )  # a broken image is rejected with a reason, without a line on stderr
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        self._builder, self._scratch = order.builder(scratch / TALLY, scratch), scratch

    def do(self, name: str) -> Done | None:
        """Builds the plan of this name. Returns None if the build was stopped or has failed.

        It never raises: Beam would print each error four times.
        """
        try:
            plan = read_plan(self._scratch / f"{name}{PLAN}")
            summary = self._builder.build(plan)
            write_whole(self._scratch / f"{name}{SUMMARY}", summary.model_dump_json().encode())
        except StoppedByDriver:
            return None
        except Exception as error:
            give_up(name, error, self._scratch)
            return None
        return summary.num_examples, len(summary.rejected)


def write_plans(plans: Iterable[ShardPlan], scratch: Path) -> None:
    for plan in plans:
        write_plan(scratch / f"{plan.name}{PLAN}", plan)


def give_up(name: str, error: Exception, scratch: Path) -> None:
    """Leaves the error for the driver and stops all workers."""
    if isinstance(error, OSError):
        error = MachineError(f"{name}: {error}; make room or mend the disk, then retry")
    if not isinstance(error, TrainyardError):
        error = TrainyardError(f"{type(error).__name__} while building {name}: {error}")
    if error.exit_code is ExitCode.BUG:
        _log.exception("%s", error)
    status = Status(exit_code=error.exit_code, message=str(error))
    write_whole(scratch / f"{name}{ERROR}", status.model_dump_json().encode())
    stop_workers(scratch / TALLY)


def raise_what_workers_left(scratch: Path) -> None:
    """Raises the error that a worker left, if there is one.

    Of several errors, it raises the first shard's: the others are usually the same.
    """
    for file in sorted(scratch.glob(f"*{ERROR}")):
        status = read_json_as(Status, scratch, file.name)
        raise error_of(status.exit_code, status.message)
