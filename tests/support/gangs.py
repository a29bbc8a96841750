"""Trainings by real gangs on this host."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pipeline_ops.config.train import Train
from pipeline_ops.jobs.gang_protocol import STATE
from pipeline_ops.jobs.progress import ProgressEvent
from pipeline_ops.launch.gang import Gang
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.training.checkpoints import TrainingState

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
