"""A gang with parameter servers, in which processes of each role die or hang."""

from __future__ import annotations

import os
import signal

import pytest
from launch.outcomes import assert_went_on
from launch.running import STEPS_PER_EPOCH

from pipeline_ops.errors import ExitCode

pytestmark = pytest.mark.faults

SERVERS = {
    "train__strategy": "parameter_server",
    "train__workers": 1,
    "train__parameter_servers": 2,
}
ROLES = ["chief", "worker 0", "ps 1"]


@pytest.fixture(scope="module")
def overrides():
    return SERVERS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("name", ROLES)
def test_a_lost_process_of_any_role_is_named_and_costs_a_restart_and_changes_nothing(
    start, undisturbed, name, number
):
    job = start(
        is_held=True, train__heartbeat_timeout_seconds=15 if number == signal.SIGKILL else 10
    )
    job.wait_until_held()
    os.kill(job.worker(name), number)
    assert_went_on(undisturbed, job, chief="chief")
    assert job.steps("restored", "chief") == [STEPS_PER_EPOCH]
    [message] = job.messages("restart")
    assert name in message


@pytest.mark.parametrize("name", ROLES)
def test_sigterm_to_a_process_of_any_role_saves_the_step_and_the_next_gang_goes_on_there(
    start, undisturbed, name
):
    job = start(is_held=True)
    job.wait_until_held()
    os.kill(job.worker(name), signal.SIGTERM)
    if name != "chief":  # the supervisor has to signal it
        job.wait_for(lambda moment: moment.phase == "stopping")
    job.release()
    assert_went_on(undisturbed, job, chief="chief")
    assert job.steps("restored", "chief") == job.steps("preempted", "chief"), (
        "no step is lost or repeated"
    )


def test_several_workers_share_the_steps(start):
    job = start(train__workers=2)
    assert job.end() == ExitCode.SUCCESS, job.message()
    last = job.figures().history[-1]
    assert last.step == 132, "each step is taken once, by any worker"
    assert last.metrics["validation_accuracy"] > 0.8
