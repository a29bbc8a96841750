"""Worker processes of the embedded runner, so that no two images wait for one Python process.

Beam's threads hand them the names of plans. Beam's own worker processes import Beam, which takes
longer than a small job. These processes do not, and they start while the driver imports Beam. Each
takes a name and returns two counts. No image passes through the driver.
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
from typing import Any

from beam_jobs.planning.plan import ShardPlan
from beam_jobs.work import Done, give_up
from pipeline_ops.config.preprocess import BeamRunner
from pipeline_ops.errors import MachineError

_END_SECONDS = 5.0
_BYTES_PER_WORKER, _BYTES_PER_RECORD = 20e6, 10e3
"""The work that justifies one process, if the config leaves the number of processes open.

With less work, starting a process costs more than it saves. Each record counts as work in addition
to its bytes.
"""
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Lets glibc keep the memory of an image for the next one, instead of returning it to the kernel.

This saves a quarter of the time of an image that is only passed through.
"""
_pools: dict[Path, Workers] = {}
"""The pools by scratch folder. A DoFn can't hold a process, because Beam pickles it."""


class Workers:
    """Processes that all work for one order.

    As many threads as there are processes may call `do` at the same time.
    """

    def __init__(self, count: int, order: Any, scratch: Path):
        self._scratch, self._free = scratch, queue.SimpleQueue()
        self._all: list[tuple[subprocess.Popen, Connection]] = []
        hello, environment = pickle.dumps((order, scratch)), _MALLOC | os.environ
        for _ in range(count):
            ours, theirs = Pipe()
            with theirs:
                argv = [sys.executable, "-m", "beam_jobs.worker", str(theirs.fileno())]
                self._all.append(
                    (
                        subprocess.Popen(
                            argv,
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            pass_fds=[theirs.fileno()],
                        ),
                        ours,
                    )
                )
            ours.send_bytes(hello)
            self._free.put(self._all[-1])

    def do(self, name: str) -> Done | None:
        """Runs `Work.do` in a free process."""
        process, connection = worker = self._free.get()
        try:
            connection.send(name)
            return connection.recv()
        except (EOFError, OSError):
            error = MachineError(
                f"a worker process died ({_end_of(process)}); "
                "out of memory is the usual cause: lower preprocess.runner.workers"
            )
            give_up(name, error, self._scratch)
            return None
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """Lets every process finish its record. Kills those that take longer than 5 seconds."""
        for _, connection in self._all:
            connection.close()
        for process, _ in self._all:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _end_of(process: subprocess.Popen) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    return f"exit status {process.returncode}"


@contextlib.contextmanager
def worker_processes(
    runner: BeamRunner, plans: Sequence[ShardPlan], order: Any, scratch: Path
) -> Iterator[None]:
    """Runs worker processes during the block, if the runner asks for them and the work is worth it.

    `workers_for` finds them.
    """
    if (count := num_processes(runner, plans)) == 0:
        yield
        return
    workers = _pools[scratch] = Workers(count, order, scratch)
    try:
        yield
    finally:
        del _pools[scratch]
        workers.close()


def workers_for(scratch: Path) -> Workers | None:
    """The worker processes that this process has started.

    None if there are none, or in a worker on another host.
    """
    return _pools.get(scratch)


def num_processes(runner: BeamRunner, plans: Sequence[ShardPlan]) -> int:
    """The number of worker processes. 0 if threads of the driver do the work."""
    if (runner.name, runner.mode) != ("embedded", "multi_processing"):
        return 0
    if runner.workers:
        return min(runner.workers, len(plans))
    size = sum(
        record.file.num_bytes + _BYTES_PER_RECORD for plan in plans for record in plan.records
    )
    count = min(len(os.sched_getaffinity(0)), len(plans), math.ceil(size / _BYTES_PER_WORKER))
    return count if count > 1 else 0
