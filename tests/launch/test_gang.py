"""The restarts of a gang."""

from __future__ import annotations

import pytest

from pipeline_ops.launch.gang import RestartPolicy


@pytest.mark.parametrize(
    ("restarts", "start_step", "waits"),
    [
        (0, [0], [None]),
        (2, [0, 0, 0], [0.0, 1.0, None]),
        (
            1,
            [0, 200, 400, 600, 600],
            [0.0, 0.0, 0.0, 0.0, None],
        ),  # months of dead machines, then an error that comes back
        (3, [0, 0, 200, 200, 200, 200], [0.0, 1.0, 0.0, 1.0, 2.0, None]),
        (9, [0] * 9, [0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 60.0, 60.0]),
    ],
)
def test_failures_are_forgiven_once_the_training_has_got_ahead(restarts, start_step, waits):
    policy = RestartPolicy(restarts)
    assert [policy.record_failure(step) for step in start_step] == waits
