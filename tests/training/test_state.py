from __future__ import annotations

import numpy as np

from pipeline_ops.training.state import Checkpoints, TrainingState, digest_of_weights, read_arrays, write_arrays

WEIGHTS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([7])]
OPTIMIZER = [np.int64(3), np.zeros([2, 3], np.float32)]


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(TrainingState(step=step, learning_rate=0.1), [w + step for w in WEIGHTS], OPTIMIZER)


def test_a_checkpoint_gives_back_state_weights_and_optimizer(tmp_path):
    save(Checkpoints(tmp_path), 5)
    state, weights, optimizer = Checkpoints(tmp_path).restore()
    assert state == TrainingState(step=5, learning_rate=0.1)
    assert all((a == b + 5).all() for a, b in zip(weights, WEIGHTS, strict=True))
    assert all((a == b).all() for a, b in zip(optimizer, OPTIMIZER, strict=True))


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path):
    assert Checkpoints(tmp_path).restore() is None


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 5)
    save(checkpoints, 10)
    newest = tmp_path / "checkpoint-000000010.npz"
    data = bytearray(newest.read_bytes())
    data[data.index(np.float32(10).tobytes() + np.float32(11).tobytes())] ^= 1
    newest.write_bytes(data)
    assert checkpoints.restore()[0].step == 5
    newest.write_bytes(data[: len(data) // 2])
    assert checkpoints.restore()[0].step == 5


def test_only_the_newest_two_are_kept(tmp_path):
    for step in (5, 10, 15):
        save(Checkpoints(tmp_path), step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-000000010.npz", "checkpoint-000000015.npz"]


def test_the_digest_sees_values_shapes_types_and_order():
    digests = {digest_of_weights(w) for w in (WEIGHTS, WEIGHTS[::-1], [WEIGHTS[0].T, WEIGHTS[1]], [WEIGHTS[0].astype(np.float64), WEIGHTS[1]],
                                              [WEIGHTS[0] + 1, WEIGHTS[1]])}
    assert len(digests) == 5
    assert digest_of_weights([w.copy() for w in WEIGHTS]) == digest_of_weights(WEIGHTS)


def test_weights_are_read_as_they_were_written(tmp_path):
    many = [np.float32([i]) for i in range(12)]
    write_arrays(tmp_path / "w.npz", many)
    assert [float(a[0]) for a in read_arrays(tmp_path / "w.npz")] == list(range(12))
