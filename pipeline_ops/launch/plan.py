"""Decide first: which worker runs where, with what address and how many cores. Pure and printable."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.gang import Fork, WorkerSpec
from pipeline_ops.contracts.layout import Attempt


class LaunchPlan(BaseModel):
    """One incarnation of a gang. Every incarnation has addresses of its own, so that it never meets its predecessor's peers."""

    model_config = ConfigDict(frozen=True)

    incarnation: int
    workers: list[WorkerSpec]

    def fork(self, worker: WorkerSpec, attempt: Attempt) -> Fork:
        """What the preloaded process is told."""
        return Fork(name=worker_name(worker.worker), entry="worker", argument=str(spec_file(attempt, worker.worker)),
                    status=str(status_file(attempt, worker.worker)), log=str(attempt.worker_log(worker.worker)))


def build_launch_plan(config: Train, ports: Sequence[int], attempt: Attempt, work: Path, incarnation: int, cores: int,
                      steps_limit: int | None = None) -> LaunchPlan:
    """Plans a gang on this host.

    Args:
      config: the training section.
      ports: free ports, one for each worker.
      attempt: the train job's folder: request, logs and progress.
      work: the folder of checkpoints.
      incarnation: 0 for the first gang, one more for every restart.
      cores: of this host; its workers share them evenly.
      steps_limit: stop after so many steps.
    """
    addresses = [f"127.0.0.1:{port}" for port in ports]
    workers = [
        WorkerSpec(request=str(attempt.request), worker=index, addresses=addresses, work=str(work), progress=str(attempt.worker_progress(index)),
                   threads=max(1, cores // config.workers), steps_limit=steps_limit)
        for index in range(config.workers)
    ]
    return LaunchPlan(incarnation=incarnation, workers=workers)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. All are held at once, so no two are the same."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()


def worker_name(worker: int) -> str:
    return f"worker {worker}"


def spec_file(attempt: Attempt, worker: int) -> Path:
    return attempt.folder / f"worker-{worker}.spec.json"


def status_file(attempt: Attempt, worker: int) -> Path:
    return attempt.folder / f"worker-{worker}.status.json"
