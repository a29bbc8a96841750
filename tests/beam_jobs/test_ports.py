"""The preprocess job opens no port. Each test starts the real job and looks with `ss`."""

from __future__ import annotations

import pytest
from listeners import ListenerMonitor

from pipeline_ops.errors import ExitCode
from pipeline_ops.system.processes import find_group_members


@pytest.mark.parametrize("workers", [1, 2])
def test_the_embedded_runner_opens_no_port(animals, workers):
    """F5: Beam's gRPC servers listen on all interfaces and hand out any file."""
    plan = animals.plan(runner={"workers": workers})
    process, attempt = animals.start(plan)
    with ListenerMonitor(lambda: find_group_members(process.pid)) as watch:
        process.wait(240)
    outcome = animals.outcome(plan, attempt)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert watch.num_polls > 5
    assert watch.seen == set()
