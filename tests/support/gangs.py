"""Trainings by real gangs on this host."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import STATE
from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.launch.gang import Gang
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.training.training_state import TrainingState

QUICK = {
    "train__epochs": 2,
    "train__checkpoint_every_steps": 8,
    "train__steps_per_call": 5,
    "train__early_stopping": None,
}
"""A short training of two epochs."""
ALONE = {"train__strategy": "one_device", "train__workers": 1}


def run_gang(
    job: Any,
    host_pool: HostPool,
    on_event: Callable[[ProgressEvent], None] | None = None,
    **options: Any,
) -> Gang:
    """Runs the train job's gang to its end."""
    job.work.mkdir(parents=True, exist_ok=True)
    gang = Gang(
        Train.model_validate(job.request.config),
        job.attempt,
        job.work,
        host_pool,
        on_event or job.progress.forward,
        **options,
    )
    gang.run()
    return gang


def read_state(job: Any) -> TrainingState:
    """Reads the state that a training ended with."""
    return TrainingState.model_validate(json.loads((job.work / STATE).read_text()))


def train(job: Any, host_pool: HostPool, **options: Any) -> TrainingState:
    """Runs the gang and returns the state that the training ends with."""
    run_gang(job, host_pool, **options)
    return read_state(job)


def distance(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """The largest difference of two models' weights."""
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


class KillOnce:
    """Kills a worker of a job with this name once, when more steps than `after` are done."""

    def __init__(self, name: str, after: int):
        self.name, self.after, self.is_done = name, after, False

    def __call__(self, moment) -> None:
        if moment.phase == "train" and (moment.done or 0) > self.after and not self.is_done:
            self.is_done = True
            os.kill(_find_worker(self.name), signal.SIGKILL)


def _find_worker(name: str) -> int:
    """The pid of a process that writes the log of a worker."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and f"/{name}/worker" in _read_link(entry / "fd" / "1"):
            return int(entry.name)
    raise AssertionError("there is no worker")


def _read_link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
