"""When a job whose place does not answer counts as lost."""

from __future__ import annotations

import pytest

from pipeline_ops.orchestration.job_handle import SilenceClock


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([(5, 10)], [0]),
        ([(5, 10), (8, 10), (9, 10)], [0, 3, 4]),
        ([(5, 10), (8, 11), (9, 11)], [0, 0, 1]),
        ([(5, 10), None, (8, 10), (9, 10)], [0, 0, 1]),
        ([None, (5, 0), (6, 0)], [0, 1]),
    ],
    ids=["first", "silent", "grown", "answered", "before"],
)
def test_silence_is_measured_from_the_last_answer_or_progress(looks, seconds):
    """A look is None for an answer, or the time and the length of the progress file."""
    clock, measured = SilenceClock(), []
    for look in looks:
        if look is None:
            clock.reset()
        else:
            measured.append(clock.measure(*look))
    assert measured == seconds
