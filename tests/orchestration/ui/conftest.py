"""A run for the pages to show."""

from __future__ import annotations

import pytest


@pytest.fixture
def whole_run(run_writer, set_states):
    """A finished run with all that it leaves."""
    set_states(
        "success", preprocess="success", train="success", evaluate="success", export="success"
    )
    run_writer.dataset()
    run_writer.report("<h1>Gate passed</h1>")
    run_writer.publish(0.9, 0.95)
    return run_writer
