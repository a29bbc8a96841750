"""Train jobs on this machine alone; the tests of other launchers start theirs by fixtures of the
same names."""

from __future__ import annotations

import pytest
from launch.running import starting

from pipeline_ops.errors import ExitCode

HERE = {"launcher": "local"}


@pytest.fixture
def start(dataset, make_job_in, tmp_path):
    with starting(make_job_in, dataset, tmp_path, HERE) as start_job:
        yield start_job


@pytest.fixture(scope="module")
def undisturbed(dataset, make_job_in, tmp_path_factory):
    """A run that nobody disturbed."""
    with starting(make_job_in, dataset, tmp_path_factory.mktemp("undisturbed"), HERE) as start_job:
        job = start_job()
        assert job.end() == ExitCode.SUCCESS, job.job.attempt.log.read_text()
        assert job.figures().restarts == 0
        yield job
