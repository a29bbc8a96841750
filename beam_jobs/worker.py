"""A worker's share of the job: the work on one plan after another.

It runs in the process of a Beam worker, or in the processes that the embedded runner has on this
host. It does not depend on Beam, whose import takes longer than a small job.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import multiprocessing
import os
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple, Protocol, TypeVar

from beam_jobs.exchange import Exchange, ShardTask, StoppedByDriver
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.statistics.summary import PlanSummary
from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.contract.manifest import ManifestFile
from pipeline_ops.storage.read_errors import to_exit_code
from pipeline_ops.system.host import count_cores
from pipeline_ops.user_code.planned_imports import (
    PlannedCode,
    get_planned_code,
    import_as_planned,
)

_BYTES_PER_PROCESS, _BYTES_PER_RECORD = 20e6, 10e3
"""With less work, starting a process costs more than it saves. Each record counts as work, too."""
SummaryT = TypeVar("SummaryT", bound=PlanSummary, covariant=True)


class BuildSpec(Protocol[SummaryT]):
    """The kind of work, and the common properties of its plans."""

    @property
    def summary(self) -> type[SummaryT]:
        """The type of summary that a builder returns for each plan."""

    def create_builder(self, exchange: Exchange) -> Callable[[ShardPlan], SummaryT]: ...

    def is_stored(self, file: ManifestFile) -> bool:
        """Returns whether a file of an earlier result is still there."""


class PlanCounts(NamedTuple):
    """Counts for Beam's metrics. The keys of the counters are a stage and a name."""

    counters: dict[tuple[str, str], int]
    microseconds: dict[str, int]


class PlanWorker:
    """Works on the plans of a spec. `is_repeated`: the engine repeats a task after MachineError."""

    def __init__(self, spec: BuildSpec[PlanSummary], exchange: Exchange, is_repeated: bool = False):
        self._spec, self._exchange, self._is_repeated = spec, exchange, is_repeated
        self._build_plan: Callable[[ShardPlan], PlanSummary] | None = None
        import cv2

        cv2.setNumThreads(1)  # its threads would compete with the workers for the same cores
        # A broken image is rejected with a reason, without a line on stderr.
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

    def work(self, task: ShardTask) -> PlanCounts | None:
        """Builds a plan, unless its result is there. Returns None if it was stopped or has failed.

        The error is left for the driver, because Beam would print it four times.
        """
        try:
            summary = self._exchange.find_result(task.name, self._spec.summary)
            if summary is None or not all(map(self._spec.is_stored, summary.files)):
                plan = self._exchange.read_plan(task)
                self._build_plan = self._build_plan or self._spec.create_builder(self._exchange)
                summary = self._build_plan(plan)
                self._exchange.write_result(task.name, summary)
        except StoppedByDriver:
            return None
        except Exception as error:
            # A worker whose engine has gone ends while threads still work, with errors of any kind.
            is_ending = not threading.main_thread().is_alive()
            if self._is_repeated and (is_ending or to_exit_code(error).is_retried):
                raise
            self._exchange.write_error(task.name, error)
            return None
        return _count(summary)


def _count(summary: PlanSummary) -> PlanCounts:
    counters = Counter({(stage, "examples"): count for stage, count in summary.passed.items()})
    counters.update((rejected.stage, "rejected") for rejected in summary.rejected)
    for reason, count in summary.skipped.items():
        counters[reason.partition(":")[0], "skipped"] += count
    microseconds = {stage: spent // 1000 for stage, spent in summary.nanoseconds.items()}
    return PlanCounts(dict(counters), microseconds)


def compute_num_processes(runner: BeamRunner, plans: Sequence[ShardPlan]) -> int:
    """The number of processes of the embedded runner. 1 is the process of the job itself."""
    if runner.name != "embedded":
        return 1
    if runner.workers:
        return min(runner.workers, len(plans))
    sizes = (one.file.num_bytes + _BYTES_PER_RECORD for plan in plans for one in plan.records)
    return min(count_cores(), len(plans), math.ceil(sum(sizes) / _BYTES_PER_PROCESS))


_MALLOC_SETTINGS = {
    "MALLOC_TRIM_THRESHOLD_": f"{64 << 20}",
    "MALLOC_MMAP_THRESHOLD_": f"{32 << 20}",
}
"""Lets glibc keep the memory of an image for the next one. This saves a quarter of the time of an
image that is only passed through."""
_pool: ProcessPoolExecutor
"""The worker processes of this host. They cannot be part of a Beam step, which is copied."""
_worker: PlanWorker
"""The worker of a process of the pool."""
_until_exit = contextlib.ExitStack()


@contextlib.contextmanager
def open_pool(
    spec: BuildSpec[PlanSummary], exchange: Exchange, num_processes: int
) -> Iterator[None]:
    """Starts the worker processes for the tasks of a block, unless one process is enough.

    They are for the embedded runner, which opens no port while Beam itself has one worker. They
    start at once, while the block imports Beam.
    """
    if num_processes == 1:
        yield
        return
    global _pool
    os.environ.update(_MALLOC_SETTINGS | os.environ)
    context = multiprocessing.get_context("spawn")
    start = (spec, exchange, get_planned_code())
    _pool = ProcessPoolExecutor(num_processes, context, _start_process, start)
    with contextlib.suppress(BrokenProcessPool):  # `work_in_pool` finds it out, too
        for _ in range(num_processes):  # a process starts with a task that finds no other one free
            _pool.submit(os.getpid)
    try:
        yield
    except BaseException:
        _pool.shutdown(wait=False, cancel_futures=True)  # a worker may hang
        raise
    _pool.shutdown()


def work_in_pool(tasks: Iterable[ShardTask]) -> Iterator[PlanCounts | None]:
    """Works on tasks in the pool. Raises BrokenProcessPool if one of its processes has died."""
    return _pool.map(_work_in_process, tasks)


def _start_process(
    spec: BuildSpec[PlanSummary], exchange: Exchange, code: PlannedCode | None
) -> None:
    global _worker
    if code:
        _until_exit.enter_context(import_as_planned(code))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _worker = PlanWorker(spec, exchange)
    gc.freeze()  # what is imported stays, so it need not be searched for garbage


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _work_in_process(task: ShardTask) -> PlanCounts | None:
    return _worker.work(task)
