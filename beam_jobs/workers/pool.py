"""Worker processes of the embedded runner, so that no two images wait for one Python process.

Beam's threads hand them tasks. Beam's own worker processes import Beam, which takes
longer than a small job. These processes do not, and they start while the driver imports Beam. Each
takes a task and returns two counts. No image passes through the driver.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from beam_jobs.exchange import Exchange, ShardTask
from beam_jobs.planning.plan import ShardPlan
from beam_jobs.statistics.summary import PlanSummary
from beam_jobs.workers.plan_builder import BuildSpec, PlanCounts
from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import MachineError
from pipeline_ops.system.cores import count_cores

_EXIT_TIMEOUT_SECONDS = 5.0
_BYTES_PER_WORKER, _BYTES_PER_RECORD = 20e6, 10e3
"""The work that justifies one process, if the config leaves the number of processes open.

With less work, starting a process costs more than it saves. Each record counts as work in addition
to its bytes.
"""
_MALLOC_SETTINGS = {
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""Lets glibc keep the memory of an image for the next one, instead of returning it to the kernel.

This saves a quarter of the time of an image that is only passed through.
"""
_Worker = tuple[subprocess.Popen[bytes], Connection]
_pools: dict[Exchange, WorkerPool] = {}
"""The pools by exchange. A DoFn cannot hold a process, because Beam pickles it."""


class WorkerPool:
    """Processes that all work for one spec.

    As many threads as there are processes may call `build` at the same time.
    """

    def __init__(
        self, count: int, spec: BuildSpec[PlanSummary], exchange: Exchange, fragments: Path
    ):
        self._exchange = exchange
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        initial_message = pickle.dumps((spec, exchange, fragments))
        environment = _MALLOC_SETTINGS | os.environ
        for _ in range(count):
            driver_end, worker_end = Pipe()
            with worker_end:
                argv = [sys.executable, "-m", "beam_jobs.workers.worker", str(worker_end.fileno())]
                process = subprocess.Popen(
                    argv,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[worker_end.fileno()],
                )
            self._workers.append((process, driver_end))
            driver_end.send_bytes(initial_message)
            self._idle.put((process, driver_end))

    def build(self, task: ShardTask) -> PlanCounts | None:
        """Runs `PlanBuilder.build` in a free process."""
        process, connection = worker = self._idle.get()
        try:
            connection.send(task)
            counts: PlanCounts | None = connection.recv()
            return counts
        except (EOFError, OSError):
            error = MachineError(
                f"a worker process died ({_describe_exit(process)}). "
                "The usual cause is lack of memory. Lower preprocess.runner.workers."
            )
            self._exchange.write_error(task.name, error)
            return None
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Lets every process finish its record. Kills those that take longer than 5 seconds."""
        for _, connection in self._workers:
            connection.close()
        for process, _ in self._workers:
            try:
                process.wait(_EXIT_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _describe_exit(process: subprocess.Popen[bytes]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_TIMEOUT_SECONDS)
    return f"exit status {process.returncode}"


@contextlib.contextmanager
def run_worker_processes(
    runner: BeamRunner,
    plans: Sequence[ShardPlan],
    spec: BuildSpec[PlanSummary],
    exchange: Exchange,
    fragments: Path,
) -> Iterator[None]:
    """Runs worker processes during the block, if the runner asks for them and the work is worth it.

    `find_worker_pool` finds them.
    """
    if (count := compute_num_processes(runner, plans)) == 0:
        yield
        return
    workers = _pools[exchange] = WorkerPool(count, spec, exchange, fragments)
    try:
        yield
    finally:
        del _pools[exchange]
        workers.close()


def find_worker_pool(exchange: Exchange) -> WorkerPool | None:
    """The worker processes that this process has started.

    None if there are none, or in a worker on another host.
    """
    return _pools.get(exchange)


def compute_num_processes(runner: BeamRunner, plans: Sequence[ShardPlan]) -> int:
    """The number of worker processes. 0 if threads of the driver do the work."""
    if (runner.name, runner.mode) != ("embedded", "multi_processing"):
        return 0
    if runner.workers:
        return min(runner.workers, len(plans))
    size = sum(
        record.file.num_bytes + _BYTES_PER_RECORD for plan in plans for record in plan.records
    )
    count = min(count_cores(), len(plans), math.ceil(size / _BYTES_PER_WORKER))
    return count if count > 1 else 0
