from __future__ import annotations

import random
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.training.checkpoints import Buffers, Checkpoints
from pipeline_ops.training.training_state import TrainingState
from pipeline_ops.training.weight_files import read_arrays, write_arrays

WEIGHTS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([7])]
OPTIMIZER = [np.int64(3), np.zeros([2, 3], np.float32)]


def save(checkpoints: Checkpoints, step: int, best_epoch: int = -1, best=None, **state) -> None:
    checkpoints.save(
        TrainingState(step=step, learning_rate=0.1, best_epoch=best_epoch, **state),
        [w + step for w in WEIGHTS],
        OPTIMIZER,
        best,
    )
    checkpoints.wait()


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.iterdir())


@pytest.fixture
def warnings():
    return []


def test_a_checkpoint_gives_back_state_weights_and_optimizer(tmp_path, warnings):
    save(Checkpoints(tmp_path), 5)
    restored = Checkpoints(tmp_path).restore(warnings.append)
    assert restored.state == TrainingState(step=5, learning_rate=0.1)
    assert all((a == b + 5).all() for a, b in zip(restored.weights, WEIGHTS, strict=True))
    assert all((a == b).all() for a, b in zip(restored.optimizer, OPTIMIZER, strict=True))
    assert (restored.best, warnings) == (None, [])


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64", "int32", "bool"])
def test_weights_keep_their_type(tmp_path, warnings, kind):
    import tensorflow as tf

    weights = [tf.cast([[0, 1], [3, 5]], kind)]
    written = Checkpoints(tmp_path)
    written.save(TrainingState(step=1, learning_rate=0.1, best_epoch=0), weights, [], weights)
    written.wait()
    restored = Checkpoints(tmp_path).restore(warnings.append)
    for found in (*restored.weights, *restored.best):
        variable = tf.Variable(tf.zeros([2, 2], kind))
        variable.assign(found)
        np.testing.assert_array_equal(variable.numpy(), weights[0].numpy())


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path, warnings):
    assert Checkpoints(tmp_path).restore(warnings.append) is None


def test_what_changes_after_the_save_is_not_in_the_file(tmp_path, warnings):
    """Training continues while the file is written."""
    checkpoints, weights, state = (
        Checkpoints(tmp_path),
        [np.zeros([1000, 1000], np.float32)],
        TrainingState(step=5, learning_rate=0.1),
    )
    checkpoints.save(state, weights, OPTIMIZER)
    weights[0] += 1
    state.history.clear()
    state.step = 6
    checkpoints.wait()
    restored = checkpoints.restore(warnings.append)
    assert (float(restored.weights[0].max()), restored.state.step) == (0.0, 5)


def test_the_next_save_does_not_disturb_the_one_that_is_still_being_written(tmp_path, warnings):
    checkpoints = Checkpoints(tmp_path, keep=20)
    for step in range(1, 11):
        checkpoints.save(
            TrainingState(step=step, learning_rate=0.1),
            [np.full([300, 1000], step, np.float32)],
            [],
        )
    checkpoints.wait()
    for step in range(1, 11):
        [weights] = read_arrays(tmp_path / f"checkpoint-{step:09d}.npz")
        assert (weights == step).all()


def test_it_is_written_by_another_thread(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    before = set(
        threading.enumerate()
    )  # not their number, because one of another test may be ending
    checkpoints.save(TrainingState(step=1, learning_rate=0.1), WEIGHTS, OPTIMIZER)
    assert len(set(threading.enumerate()) - before) == 1
    checkpoints.wait()
    assert names(tmp_path) == ["checkpoint-000000001"]


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_named(tmp_path, warnings):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 5)
    save(checkpoints, 10)
    newest = tmp_path / "checkpoint-000000010.npz"
    data = bytearray(newest.read_bytes())
    data[data.index(np.float32(10).tobytes() + np.float32(11).tobytes())] ^= 1
    newest.write_bytes(data)
    assert checkpoints.restore(warnings.append).state.step == 5
    newest.write_bytes(data[: len(data) // 2])
    assert checkpoints.restore(warnings.append).state.step == 5
    assert len(warnings) == 2
    assert all(f"the checkpoint {newest} is damaged" in warning for warning in warnings)


def test_no_flipped_bits_and_no_cut_can_be_taken_for_a_whole_file(tmp_path, warnings):
    """A damaged file may raise any error of numpy, zipfile or pydantic. The previous checkpoint is
    used, unless the damage changes nothing."""
    checkpoints, rng = Checkpoints(tmp_path), random.Random(3)
    save(checkpoints, 5)
    save(checkpoints, 10)
    newest = tmp_path / "checkpoint-000000010.npz"
    whole = newest.read_bytes()
    expected = checkpoints.restore(warnings.append)
    for _ in range(300):
        data = bytearray(whole)
        for position in rng.sample(range(len(data)), rng.choice([1, 1, 3])):
            data[position] ^= 1 << rng.randrange(8)
        newest.write_bytes(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])
        restored = checkpoints.restore(warnings.append)
        if restored.state.step == 10:
            assert restored.state == expected.state
            assert all(
                (a == b).all()
                for a, b in zip(
                    restored.weights + restored.optimizer,
                    expected.weights + expected.optimizer,
                    strict=True,
                )
            )


def test_a_damaged_one_does_not_push_a_whole_one_out(tmp_path, warnings):
    """Checkpoints that are newer than the restored step are deleted. The two newest others stay."""
    for step in (5, 10, 15):
        save(Checkpoints(tmp_path), step)
    (tmp_path / "checkpoint-000000015.npz").write_bytes(b"damaged")
    again = Checkpoints(tmp_path)
    assert again.restore(warnings.append).state.step == 10
    save(again, 12)
    assert names(tmp_path) == ["checkpoint-000000010", "checkpoint-000000012"]


@pytest.mark.parametrize("keep", [2, 3])
def test_only_the_newest_are_kept(tmp_path, keep):
    for step in (5, 10, 15, 20):
        save(Checkpoints(tmp_path, keep=keep), step)
    assert names(tmp_path) == [f"checkpoint-{step:09d}" for step in (5, 10, 15, 20)[-keep:]]


@pytest.mark.parametrize("first", [0, 99_997, 99_998])
def test_the_best_weights_stay_as_long_as_a_checkpoint_refers_to_them(tmp_path, warnings, first):
    checkpoints = Checkpoints(tmp_path)
    for number in range(4):
        epoch = first + number
        save(checkpoints, 10 * number, best_epoch=epoch, best=[np.float32([epoch])])
    assert sorted(names(tmp_path)) == [
        *sorted([f"best-{first + 2:05d}", f"best-{first + 3:05d}"]),
        "checkpoint-000000020",
        "checkpoint-000000030",
    ]
    (tmp_path / f"best-{first + 3:05d}.npz").write_bytes(b"damaged")
    restored = Checkpoints(tmp_path).restore(warnings.append)
    assert (restored.state.step, restored.best) == (20, [np.float32([first + 2])])
    assert "checkpoint-000000030.npz is damaged" in warnings[0]


def test_a_failure_of_the_writing_thread_names_path_and_reason(tmp_path):
    """A limit on the file size simulates a full disk. No partial file is left, and the previous
    checkpoint still exists."""
    write = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
import numpy as np
from pipeline_ops.training.checkpoints import Checkpoints
from pipeline_ops.training.training_state import TrainingState
checkpoints = Checkpoints(Path({str(tmp_path)!r}))
checkpoints.save(TrainingState(step=1, learning_rate=0.1), [np.zeros(10)], [])
checkpoints.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
checkpoints.save(TrainingState(step=2, learning_rate=0.1), [np.zeros(1 << 18)], [])
for call in (
    checkpoints.wait,
    checkpoints.raise_failure,
    lambda: checkpoints.save(TrainingState(step=3, learning_rate=0.1), [], []),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""
    output = subprocess.run(
        [sys.executable, "-c", write], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(output) == 3
    problem = f"MachineError cannot write {tmp_path}/checkpoint-000000002.npz: file too large"
    assert all(f"{problem}. Free disk space" in line for line in output)
    assert names(tmp_path) == ["checkpoint-000000001"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_what_a_killed_writer_has_left_is_removed(tmp_path):
    (tmp_path / ".checkpoint-000000005.npz.123.tmp").write_bytes(b"half")
    (tmp_path / ".best-00001.npz.123.tmp").write_bytes(b"half")
    write_arrays(tmp_path / "best-00000.npz", WEIGHTS)
    Checkpoints(tmp_path)
    assert names(tmp_path) == ["best-00000"]


def test_memory_is_used_again():
    buffers = Buffers()
    first = buffers.copy([np.zeros(3), np.zeros([2, 2])])
    again = buffers.copy([np.ones(3), np.ones([2, 2])])
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert all((a == 1).all() for a in again)
    assert buffers.copy([np.zeros(4)])[0].shape == (4,)


def test_a_rollback_waits_for_a_file_that_a_share_shows_late(tmp_path):
    chief = Checkpoints(tmp_path / "here")
    other = Checkpoints(tmp_path / "there", is_chief=False)
    (tmp_path / "there").mkdir()
    for each in (chief, other):
        each.save(TrainingState(learning_rate=0.1, step=10), [np.ones(3)], [])
    chief.wait()
    [file] = (tmp_path / "here").glob("checkpoint-*")
    timer = threading.Timer(0.3, file.rename, [tmp_path / "there" / file.name])
    timer.start()
    begin = time.monotonic()
    assert other.roll_back(pytest.fail, timeout_seconds=30).state.step == 10
    assert time.monotonic() - begin < 20
    other.save(TrainingState(learning_rate=0.1, step=20), [np.ones(3)], [])
    assert other.roll_back(pytest.fail, timeout_seconds=0.1).state.step == 10
