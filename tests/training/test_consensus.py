"""Workers that see different checkpoints go back to one that all can read, or name the reason why
they cannot. Each worker here has its own folder."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.errors import MachineError
from pipeline_ops.training.checkpoints import Checkpoints, Restored
from pipeline_ops.training.training_state import TrainingState


class Workers:
    """Some workers as threads that exchange messages. `warnings` has the warnings of each."""

    def __init__(self, folder: Path, count: int):
        self.folders = [folder / f"worker-{worker}" for worker in range(count)]
        self.warnings: list[list[str]] = [[] for _ in self.folders]
        self._barrier, self._rows = threading.Barrier(count, timeout=60), [b""] * count

    def save(self, worker: int, step: int, weight: float) -> Path:
        self.folders[worker].mkdir(exist_ok=True)
        checkpoints = Checkpoints(self.folders[worker], keep=9)
        checkpoints.save(TrainingState(step=step, learning_rate=0.1), [np.float32([weight])], [])
        checkpoints.wait()
        return self.folders[worker] / f"checkpoint-{step:09d}.npz"

    def restore(self) -> list[Restored | None | Exception]:
        with ThreadPoolExecutor(len(self.folders)) as pool:
            return list(pool.map(self._restore, range(len(self.folders))))

    def _restore(self, worker: int) -> Restored | None | Exception:
        def gather(message: bytes) -> list[bytes]:
            self._rows[worker] = message
            self._barrier.wait()
            rows = list(self._rows)
            self._barrier.wait()
            return rows

        try:
            checkpoints = Checkpoints(self.folders[worker], gather=gather, is_chief=False)
            return checkpoints.restore_common(self.warnings[worker].append)
        except MachineError as error:
            return error


@pytest.fixture
def workers(tmp_path):
    """Three workers, which see the same checkpoints of the steps 5, 10 and 15."""
    workers = Workers(tmp_path, 3)
    for worker in range(3):
        for step in (5, 10, 15):
            workers.save(worker, step, weight=step)
    return workers


def test_all_take_the_newest(workers):
    assert [restored.state.step for restored in workers.restore()] == [15, 15, 15]
    assert workers.warnings == [[], [], []]


def test_all_go_back_to_what_is_whole_for_everybody(workers):
    (workers.folders[1] / "checkpoint-000000015.npz").write_bytes(b"damaged")
    (workers.folders[2] / "checkpoint-000000010.npz").unlink()
    assert [
        (restored.state.step, float(restored.weights[0][0])) for restored in workers.restore()
    ] == [(5, 5.0)] * 3
    assert "worker 1 cannot read a checkpoint in" in workers.warnings[0][0]
    assert (
        "newer than step 10, but other workers read the one of step 15. "
        "All workers resume from step 10." in workers.warnings[0][0]
    )
    assert "worker 2 cannot read a checkpoint in" in workers.warnings[0][1]
    assert "checkpoint-000000015.npz is damaged" in workers.warnings[1][0]


def test_a_worker_that_sees_no_checkpoint_at_all_does_not_send_everybody_to_the_beginning(workers):
    for file in workers.folders[2].iterdir():
        file.unlink()
    errors = workers.restore()
    assert all(
        "worker 2 cannot read any checkpoint in" in str(error)
        and "but other workers read the one of step 15." in str(error)
        for error in errors
    )


def test_one_and_the_same_step_with_other_contents_is_refused(workers):
    workers.save(0, 15, weight=7)
    assert all(
        "the checkpoint of step 15 in" in str(error)
        and "is not the same for all workers" in str(error)
        for error in workers.restore()
    )


def test_where_there_is_none_all_begin(tmp_path):
    workers = Workers(tmp_path, 2)
    assert workers.restore() == [None, None]
