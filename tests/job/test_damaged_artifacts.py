"""A job that was planned because its artifact is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.request import Status, read_status
from pipeline_ops.contract.results import REPORT
from pipeline_ops.errors import ExitCode
from pipeline_ops.planning.plan import JobPlan


def run(sandbox, plan: JobPlan) -> Status:
    """The outcome of the job, in a process of its own."""
    process, attempt = sandbox.start(plan)
    process.wait()
    status = read_status(attempt)
    assert status is not None, attempt.log.local.read_text()
    return status


@pytest.mark.faults
def test_an_export_publishes_again_if_its_version_was_removed(sandbox):
    train = sandbox.publish("good")
    shutil.rmtree(sandbox.registry.location)
    plan = sandbox.plan("export", train, sandbox.evaluate(train))
    assert plan.damage == ("version 1 of the model digits is gone",)
    status = run(sandbox, plan)
    assert (status.exit_code, status.manifest) == (ExitCode.SUCCESS, str(plan.manifest))
    assert [version.number for version in sandbox.registry.list_versions()] == [1]
    assert sandbox.registry.find_champion().number == 1
    assert sandbox.plan("export", train, sandbox.evaluate(train)).is_cached


@pytest.mark.faults
def test_an_artifact_that_another_run_has_repaired_is_left_alone(sandbox):
    train = sandbox.train("good")
    evaluation = Path(sandbox.evaluate(train))
    page = evaluation.with_name(REPORT)
    content = page.read_bytes()
    page.unlink()
    plan = sandbox.plan("evaluate", train)
    assert plan.damage == (f"{page} is missing",) and plan.request.is_damaged
    page.write_bytes(content)
    before = evaluation.stat().st_ino
    assert run(sandbox, plan).message == "made by another run in the meantime"
    assert evaluation.stat().st_ino == before
    page.unlink()
    assert run(sandbox, plan).message == ""
    assert evaluation.stat().st_ino != before and page.exists()
    assert read_manifest(evaluation).get_file(page.name).num_bytes == len(content)
