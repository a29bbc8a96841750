"""A schedule starts a run of `trainyard ui`, and nobody else does."""

from __future__ import annotations

import pytest
from cli.trainyard_command import Trainyard
from processes import wait_until

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.registry.registry import Registry


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_schedule_starts_a_run_that_publishes_a_model(tmp_path, survivors):
    small = {"train__strategy": "one_device", "train__workers": 1, "train__epochs": 2}
    trainyard = Trainyard(tmp_path, schedule="* * * * *", train__global_batch_size=32, **small)
    with trainyard.ui(environment=survivors.environment) as login, AirflowApi(*login) as airflow:
        airflow.log_in()

        def first_run() -> dict | None:
            found = airflow._call("GET", "/api/v2/dags/digits/dagRuns?order_by=id")["dag_runs"]
            return found[0] if found and found[0]["state"] in ("success", "failed") else None

        run = wait_until(first_run, 300)
        assert (run["run_type"], run["state"]) == ("scheduled", "success")
        assert survivors.look()
    survivors.wait_for_none(0.0)
    registry = Registry(str(tmp_path / "storage" / "models" / "digits"))
    assert registry.find_champion().number == 1
