"""A worker's share of the job: takes one plan after the other, builds it, and leaves in the scratch folder what the driver asks for.

The same code runs inside a Beam worker and in a process of its own (`worker.py`). It knows nothing of Beam, and nothing is
handed back but two counts: no runner hands a value back, so summaries, tallies and errors are files. So are the plans, of which
only the names travel: Beam would compress them, and keep all of them in memory.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from beam_jobs.planning.plan import ShardPlan
from beam_jobs.planning.plan_file import read_plan, write_plan
from beam_jobs.progress_counter import Stopped, stop_workers
from pipeline_ops.errors import ExitCode, MachineError, TrainyardError, error_of
from pipeline_ops.jobs.request import Status
from pipeline_ops.storage.atomic import write_whole
from pipeline_ops.storage.parsing import read_json_as

if TYPE_CHECKING:
    from beam_jobs.output.shard import Order
    from beam_jobs.planning.perceptual_hash import PictureOrder

TALLY, PLAN, SUMMARY, ERROR = "tally", ".plan", ".json", ".error"  # in the scratch folder, the last three by shard
Done = tuple[int, int]
"""Examples, and how many records were rejected."""
_log = logging.getLogger("beam_jobs.work")


class Work:
    """What a worker does for an order."""

    def __init__(self, order: Order | PictureOrder, scratch: Path):
        import cv2

        cv2.setNumThreads(1)  # its threads would fight with the workers for the same cores
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # a broken image is a reject with a reason, not a line on stderr
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        self._builder, self._scratch = order.builder(scratch / TALLY, scratch), scratch

    def do(self, name: str) -> Done | None:
        """Builds the plan of this name; None if it was not built to its end. Never raises: Beam would print each error four times over."""
        try:
            plan = read_plan(self._scratch / f"{name}{PLAN}")
            summary = self._builder.build(plan)
            write_whole(self._scratch / f"{name}{SUMMARY}", summary.model_dump_json().encode())
        except Stopped:
            return None
        except Exception as error:
            give_up(name, error, self._scratch)
            return None
        return summary.num_examples, len(summary.rejected)


def write_plans(plans: Iterable[ShardPlan], scratch: Path) -> None:
    for plan in plans:
        write_plan(scratch / f"{plan.name}{PLAN}", plan)


def give_up(name: str, error: Exception, scratch: Path) -> None:
    """Leaves the error for the driver, and stops all workers."""
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
    """Of several errors the first shard's: the others are most often the same."""
    for file in sorted(scratch.glob(f"*{ERROR}")):
        status = read_json_as(Status, scratch, file.name)
        raise error_of(status.exit_code, status.message)
