"""A person is asked before publishing, in a real Airflow: the run waits, later runs do not,
and every answer has its outcome."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from airflow_ui import running_airflow, wait_for

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, new_run_id
from pipeline_ops.cli.local_airflow.author_overrides import keep_overrides
from pipeline_ops.cli.local_airflow.embedded import USER, Home
from pipeline_ops.jobs.task_record import read_record

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
_DAG = """
import datetime as dt, json
from pathlib import Path
from airflow.sdk import DAG, task
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.jobs.task_record import TaskRecord, write_record
from pipeline_ops.operators.approval import ApproveOperator
from pipeline_ops.operators.chain import ExportOperator

CONFIG, MADE = {config!r}, json.loads({made!r})

def leave(task, number, dag_run):
    manifest = MADE[str(dag_run.conf["evaluate.batch"])][number]
    write_record(Layout(Path({root!r}), "digits").task_record(dag_run.run_id, task), TaskRecord(state="success", manifest=manifest))
    return manifest

with DAG("digits", schedule=None, start_date=dt.datetime(2024, 1, 1), max_active_runs=16):
    @task
    def train(dag_run=None):
        return leave("train", 0, dag_run)
    @task
    def evaluate(dag_run=None):
        return leave("evaluate", 1, dag_run)
    approve = ApproveOperator(config_file=CONFIG, approval=load_config(CONFIG).evaluate.approval)
    train() >> evaluate() >> approve >> ExportOperator(config_file=CONFIG)
"""  # noqa: E501


@pytest.fixture
def airflow(workshop, tmp_path, survivors):
    """An Airflow with one DAG that takes what earlier tasks would have made: by the batch, a model
    that passes, one that does not, another."""
    made = {}
    for batch, model in (("5", "good"), ("4", "poor"), ("3", "nearly")):
        train = workshop.train(model)
        made[batch] = (train, workshop.evaluate(train))
    values = yaml.safe_load(DIGITS.read_text())
    values["storage"]["root"] = str(workshop.root)
    values["evaluate"]["approval"] = {"timeout_seconds": 600}
    home = tmp_path / "home"
    home.mkdir()
    (home / "digits.yaml").write_text(yaml.safe_dump(values))
    (home / "dag.py").write_text(
        _DAG.format(
            config=str(home / "digits.yaml"), made=json.dumps(made), root=str(workshop.root)
        )
    )
    with running_airflow(home, home / "digits.yaml", "digits", survivors.environment) as api:
        yield api


def states(api: AirflowApi, run_id: str) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in api.tasks("digits", run_id)}


def answer(api: AirflowApi, run_id: str, option: str) -> None:
    """As the UI does when a person clicks."""
    place = (
        f"/api/v2/dags/digits/dagRuns/{quote(run_id, safe='')}/taskInstances/approve/-1/hitlDetails"
    )
    api._call("PATCH", place, {"chosen_options": [option], "params_input": {}})


@pytest.mark.slow
def test_a_run_waits_for_a_person_and_holds_up_no_other(airflow, workshop, tmp_path):
    layout, api = Layout(workshop.root, "digits"), airflow

    def reason(run_id: str) -> str:
        return read_record(layout.task_record(run_id, "export")).reason

    waiting = api.trigger("digits", {"evaluate.batch": 5})
    wait_for(lambda: states(api, waiting).get("approve") == "awaiting_input")
    rejected = api.trigger("digits", {"evaluate.batch": 5})
    not_passed = api.trigger("digits", {"evaluate.batch": 4})
    forgotten = new_run_id()
    keep_overrides(
        Home(tmp_path / "home"),
        tmp_path / "home" / "digits.yaml",
        forgotten,
        {"evaluate.approval.timeout_seconds": 1},
    )
    api.trigger("digits", {"evaluate.batch": 3}, forgotten)
    wait_for(lambda: states(api, rejected).get("approve") == "awaiting_input")
    for run_id in (not_passed, forgotten, rejected):
        # The last: an answer within the second in which it was asked for takes Airflow by surprise,
        # and it fails the task.
        if run_id == rejected:
            answer(api, rejected, "Reject")
        wait_for(lambda run_id=run_id: api.run("digits", run_id)["state"] == "success")
        assert states(api, run_id)["export"] == "skipped"
    assert reason(rejected) == f"trained, not published: rejected by {USER}"
    assert reason(not_passed) == "trained, not published: accuracy 0.4700 is below 0.7000"
    assert reason(forgotten) == "trained, not published: nobody answered in time"
    assert (
        states(api, waiting)["approve"] == "awaiting_input" and workshop.registry.versions() == []
    )
    answer(api, waiting, "Approve")
    wait_for(lambda: api.run("digits", waiting)["state"] == "success")
    assert states(api, waiting)["export"] == "success" and workshop.registry.champion().number == 1
    again = api.trigger("digits", {"evaluate.batch": 5})
    wait_for(lambda: api.run("digits", again)["state"] == "success")
    assert states(api, again) == dict.fromkeys(
        ("train", "evaluate", "approve", "export"), "success"
    )
