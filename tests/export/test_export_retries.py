"""Two exports at once, and exports after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from export.exports import numbers, planned

from pipeline_ops.contract.manifest import NAME, find_damage, read_manifest
from pipeline_ops.contract.request import read_status
from pipeline_ops.errors import ExitCode


@pytest.mark.faults
def test_two_exporters_at_once_get_two_versions_and_one_champion(sandbox):
    plans = [planned(sandbox, "good"), planned(sandbox, "fair")]
    started = [sandbox.start(plan, attempt=f"attempt-{index}") for index, plan in enumerate(plans)]
    codes = [process.wait(240) for process, _ in started]
    statuses = [read_status(attempt) for _, attempt in started]
    assert sorted(codes) == [ExitCode.SUCCESS, ExitCode.OUT_OF_DATE], statuses
    assert numbers(sandbox) == [1, 2]
    assert all(
        find_damage(version.uri, version.read_manifest(), checksums=True) == []
        for version in sandbox.registry.list_versions()
    )
    winner, loser = statuses[codes.index(0)], statuses[codes.index(ExitCode.OUT_OF_DATE)]
    assert (
        read_manifest(winner.manifest).figures["version"] == sandbox.registry.find_champion().number
    )
    assert "was compared with no version" in loser.message


@pytest.mark.faults
def test_the_same_export_twice_at_once_publishes_once(sandbox):
    plan = planned(sandbox, "good")
    started = [sandbox.start(plan, attempt=f"attempt-{index}") for index in range(2)]
    codes = sorted(process.wait(240) for process, _ in started)
    assert codes in (
        [0, 0],
        [0, 75],
    )  # the second one met the first at work, or came after its end
    assert numbers(sandbox) == [1] and sandbox.registry.find_champion().number == 1


def kill(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.stores
def test_a_kill_between_publishing_and_promoting_leaves_a_version_that_the_next_try_promotes(
    sandbox,
):
    plan = planned(sandbox, "good")
    _, folder = sandbox.run(plan)
    shutil.rmtree(folder)
    shutil.rmtree(
        sandbox.registry.location / "aliases"
    )  # neither the move nor the artifact was written yet
    assert numbers(sandbox) == [1] and sandbox.registry.find_champion() is None
    code, folder = sandbox.run(plan)
    assert (
        code == ExitCode.SUCCESS
        and numbers(sandbox) == [1]
        and sandbox.registry.find_champion().number == 1
    )
    assert (folder / NAME).exists()


def test_a_kill_after_promoting_is_repaired_by_the_next_try(sandbox):
    plan = planned(sandbox, "good")
    _, folder = sandbox.run(plan)
    (folder / NAME).unlink()
    shutil.rmtree(folder)
    sandbox.run(plan)
    assert (
        numbers(sandbox) == [1]
        and len(sandbox.registry.read_history().moves) == 1
        and (folder / NAME).exists()
    )


@pytest.mark.faults
@pytest.mark.parametrize("after_seconds", [0.4, 1.6, 2.0])
def test_a_kill_at_any_time_is_repaired_by_the_next_try(sandbox, after_seconds):
    plan = planned(sandbox, "good")
    process, _ = sandbox.start(plan)
    time.sleep(after_seconds)
    kill(process)
    for version in sandbox.registry.list_versions():
        assert find_damage(version.uri, version.read_manifest(), checksums=True) == []
    if not Path(plan.request.artifact).exists():
        sandbox.run(plan)
    assert numbers(sandbox) == [1] and sandbox.registry.find_champion().number == 1
    assert [path.name for path in sandbox.registry.location.glob(".*.staging")] == []
