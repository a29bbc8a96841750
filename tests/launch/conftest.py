"""Fixtures that start train jobs on this machine.

Tests of other launchers override them.
"""

from __future__ import annotations

import pytest
from launch.running import starting

from pipeline_ops.errors import ExitCode


@pytest.fixture(scope="module")
def here() -> dict:
    """The content of the hosts file for this machine."""
    return {"launcher": "local"}


@pytest.fixture(scope="module")
def overrides() -> dict:
    """The changes of the config for all jobs."""
    return {}


@pytest.fixture
def start(dataset, make_job_in, tmp_path, here, overrides):
    with starting(make_job_in, dataset, tmp_path, here, **overrides) as start_job:
        yield start_job


@pytest.fixture(scope="module")
def undisturbed(dataset, make_job_in, tmp_path_factory, here, overrides):
    """An undisturbed run on this machine."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with starting(make_job_in, dataset, folder, here, **overrides) as start_job:
        job = start_job()
        assert job.end() == ExitCode.SUCCESS, job.job.attempt.log.read_text()
        assert job.figures().restarts == 0
        yield job
