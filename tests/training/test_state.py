from __future__ import annotations

import numpy as np

from pipeline_ops.training.weight_files import compute_weights_digest, read_arrays, write_arrays

WEIGHTS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([7])]


def test_the_digest_sees_values_shapes_types_and_order():
    digests = {
        compute_weights_digest(w)
        for w in (
            WEIGHTS,
            WEIGHTS[::-1],
            [WEIGHTS[0].T, WEIGHTS[1]],
            [WEIGHTS[0].astype(np.float64), WEIGHTS[1]],
            [WEIGHTS[0] + 1, WEIGHTS[1]],
        )
    }
    assert len(digests) == 5
    assert compute_weights_digest([w.copy() for w in WEIGHTS]) == compute_weights_digest(WEIGHTS)


def test_a_single_number_has_a_digest():
    assert compute_weights_digest([np.array(3.0)]) != compute_weights_digest([np.array(4.0)])


def test_weights_are_read_as_they_were_written(tmp_path):
    many = [np.float32([i]) for i in range(12)]
    write_arrays(tmp_path / "w.npz", many)
    assert [float(a[0]) for a in read_arrays(tmp_path / "w.npz")] == list(range(12))
