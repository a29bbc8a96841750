"""The results of train jobs that were interrupted, compared with those of undisturbed ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from launch.running import RunningJob

from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.contract.results import WEIGHTS
from pipeline_ops.errors import ExitCode
from pipeline_ops.training.weight_files import read_arrays


def assert_same(job: RunningJob, undisturbed: RunningJob) -> None:
    """Asserts that both trainings ended with the same weights and the same loss."""
    mine, theirs = (
        read_arrays(running.job.folder.local / WEIGHTS) for running in (job, undisturbed)
    )
    assert max(float(np.abs(a - b).max()) for a, b in zip(mine, theirs, strict=True)) <= 1e-6
    mine, theirs = (running.figures().history[-1].metrics["loss"] for running in (job, undisturbed))
    assert abs(mine - theirs) <= 1e-6


def assert_went_on(
    undisturbed: RunningJob,
    *tries: RunningJob,
    chief: str = "worker 0",
    survive_seconds: float = 5.0,
) -> None:
    """Asserts that the last try has the result of an undisturbed one.

    Each interruption repeats at most one checkpoint interval. No process and no temporary file of
    any try is left on any host. The hosts share the processes and disks of this machine.
    """
    last = tries[-1]
    assert last.end() == ExitCode.SUCCESS, last.message()
    assert_same(last, undisturbed)
    repeated = repeated_steps([event for one in tries for event in one.read_events(chief)])
    assert repeated, "the training was not interrupted"
    assert max(repeated) <= last.job.request.config["checkpoint_every_steps"], (
        f"repeated steps: {repeated}"
    )
    assert [survivor for one in tries for survivor in one.survivors(survive_seconds)] == []
    assert [file for one in tries for file in one.temporary.rglob("*")] == []


def repeated_steps(chief_events: Sequence[ProgressEvent]) -> list[int]:
    """Returns the number of repeated steps of each incarnation but the first.

    They are computed from the reports of all chiefs. A chief reports a few times a second and at
    the end of each epoch, so the numbers are exact for a training that was held.
    """
    reached, begun = 0, []
    for event in chief_events:
        match event.phase:
            case "building":
                begun.append([reached, 0])  # from step 0 unless a `restored` follows
            case "restored":
                begun[-1][1] = event.done
            case "train" | "preempted":
                reached = event.done
    return [reached - start for reached, start in begun[1:]]
