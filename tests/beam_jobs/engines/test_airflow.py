"""A person clears a task, or ends a run, whose data set a real Airflow builds on Flink."""

from __future__ import annotations

import os

import pytest
from config_files import write_config
from engines.workplace import find_jobs, is_empty
from held_airflow import run_airflow
from processes import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
HEARTBEAT_SECONDS = 15
"""After it, a task of Airflow knows that it was cleared."""
_DAGS = """
from beam_jobs.stages import check_stages
from pipeline_ops.operators.dags import make_dags

globals().update(make_dags([{config!r}], check_stages))
"""


@pytest.mark.parametrize("engine", ["flink"], indirect=True)
def test_a_cleared_task_and_a_failed_run_leave_nothing_on_the_engine(
    digits, runner, cluster, tmp_path
):
    folder = tmp_path / "airflow"
    config = write_config(folder, digits.build_values(runner))
    (folder / "dag.py").write_text(_DAGS.format(config=str(config)))

    def find_running() -> list[str]:
        return [job.id for job in find_jobs(cluster) if job.state == "RUNNING"]

    with run_airflow(folder, config, ["digits"], dict(os.environ)) as api:
        run = api.trigger("digits", {})
        [first] = wait_until(find_running, 120)
        cleared = {"dag_run_id": run, "task_ids": ["preprocess"], "only_failed": False}
        api._call("POST", "/api/v2/dags/digits/clearTaskInstances", {"dry_run": False, **cleared})
        wait_until(lambda: first not in find_running(), HEARTBEAT_SECONDS + 10)
        [second] = wait_until(find_running, 120)
        assert first != second
        api.fail_run("digits", run)
        wait_until(lambda: is_empty(cluster), HEARTBEAT_SECONDS + 10)
    ended = {job.id: job.state for job in find_jobs(cluster)}
    assert ended[first] == ended[second] == "CANCELED"
