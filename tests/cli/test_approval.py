"""The approval of a person before publishing, in a real Airflow.

The run waits, later runs do not, and every answer has its outcome.
"""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from cli.places_of_outcomes import check_all_places, look
from config_files import write_config
from held_airflow import run_airflow
from processes import wait_until

from pipeline_ops.cli.airflow_access import USER
from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.run_summary import read_summary
from pipeline_ops.contract.task_record import read_record
from pipeline_ops.storage.open_store import open_root

_DAG = """
import datetime as dt, json
from airflow.sdk import DAG, task
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.orchestration.approval import ApproveOperator
from pipeline_ops.orchestration.tasks import ExportOperator

CONFIG, MADE = {config!r}, json.loads({made!r})
REF = PipelineRef.from_config(load_config(CONFIG)).to_json()

def leave(task, number, dag_run):
    manifest = MADE[str(dag_run.conf["evaluate.batch_size"])][number]
    write_record(Layout(load_config(CONFIG).root, "digits").task_record(dag_run.run_id, task), TaskRecord(state="success", manifest=manifest))
    return manifest

with DAG("digits", schedule=None, start_date=dt.datetime(2024, 1, 1), max_active_runs=16, tags=["trainyard"]):
    @task
    def train(dag_run=None):
        return leave("train", 0, dag_run)
    @task
    def evaluate(dag_run=None):
        return leave("evaluate", 1, dag_run)
    approve = ApproveOperator(config_file=CONFIG, approval=load_config(CONFIG).evaluate.approval)
    train() >> evaluate() >> approve >> ExportOperator(config_file=CONFIG, pipeline_ref=REF)
"""  # noqa: E501


@pytest.fixture
def airflow(sandbox, tmp_path, survivors):
    """An Airflow with one DAG whose first tasks return prepared artifacts.

    The batch size selects them: a model that passes the gate, one that does not, and another.
    """
    made = {}
    for batch, model in (("5", "good"), ("4", "poor"), ("3", "nearly")):
        train = sandbox.train(model)
        made[batch] = (train, sandbox.evaluate(train))
    home, root = tmp_path / "home", str(sandbox.root)
    approval = {"timeout_seconds": 600}
    config = write_config(home, {"storage.root": root, "evaluate.approval": approval})
    (home / "dag.py").write_text(_DAG.format(config=str(config), made=json.dumps(made)))
    with run_airflow(home, config, ["digits"], survivors.environment) as api:
        yield api


def states(api: AirflowApi, run_id: str) -> dict[str, str]:
    return {task["task_id"]: task["state"] for task in api.tasks("digits", run_id)}


def answer(api: AirflowApi, run_id: str, option: str, reason: str | None = None) -> None:
    """Answers as the UI does when a person clicks."""
    task = f"/api/v2/dags/digits/dagRuns/{quote(run_id, safe='')}/taskInstances/approve"
    said = {} if reason is None else {"reason": reason}
    chosen = {"chosen_options": [option], "params_input": said}
    api._call("PATCH", f"{task}/-1/hitlDetails", chosen)


@pytest.mark.airflow
def test_a_run_waits_for_a_person_and_holds_up_no_other(airflow, sandbox, tmp_path):
    layout, api = Layout(open_root(sandbox.root), "digits"), airflow

    def reason(run_id: str) -> str:
        return read_record(layout.task_record(run_id, "export")).reason

    waiting = api.trigger("digits", {"evaluate.batch_size": 5})
    wait_until(lambda: states(api, waiting).get("approve") == "awaiting_input")
    rejected = api.trigger("digits", {"evaluate.batch_size": 5})
    not_passed = api.trigger("digits", {"evaluate.batch_size": 4})
    soon = {"evaluate.batch_size": 3, "evaluate.approval.timeout_seconds": 1}
    forgotten = api.trigger("digits", soon)
    wait_until(lambda: states(api, rejected).get("approve") == "awaiting_input")
    for run_id in (not_passed, forgotten, rejected):
        # The last: an answer within the second in which it was asked for takes Airflow by surprise,
        # and it fails the task.
        if run_id == rejected:
            answer(api, rejected, "Reject")
        wait_until(lambda run_id=run_id: api.run("digits", run_id)["state"] == "success")
        assert states(api, run_id)["export"] == "skipped"
    assert reason(rejected) == f"trained, not published: rejected by {USER}"
    assert reason(not_passed) == "trained, not published: accuracy 0.4700 is below 0.7000"
    assert reason(forgotten) == "trained, not published: no answer in time"
    assert states(api, waiting)["approve"] == "awaiting_input"
    assert sandbox.registry.list_versions() == []
    answer(api, waiting, "Approve")
    wait_until(lambda: api.run("digits", waiting)["state"] == "success")
    assert states(api, waiting)["export"] == "success"
    assert sandbox.registry.find_champion().number == 1
    again = api.trigger("digits", {"evaluate.batch_size": 5})
    wait_until(lambda: api.run("digits", again)["state"] == "success")
    tasks = ("train", "evaluate", "approve", "export")
    assert states(api, again) == dict.fromkeys(tasks, "success")


@pytest.mark.airflow
def test_every_place_says_the_same_of_each_run(airflow, sandbox, tmp_path, capsys):
    """The note of Airflow's run, the head of both tabs, the table, its page, and the summary."""
    api, layout = airflow, Layout(open_root(sandbox.root), "digits")

    def begin(batch: int, **more) -> str:
        return api.trigger("digits", {"evaluate.batch_size": batch} | more)

    def wait_for_question(run_id: str) -> None:
        wait_until(lambda: states(api, run_id).get("approve") == "awaiting_input")

    late, published, rejected, cancelled = begin(3), begin(5), begin(5), begin(5)
    refused = begin(4)
    unanswered = begin(3, **{"evaluate.approval.timeout_seconds": 1})
    for run_id in (late, published, rejected, cancelled):
        wait_for_question(run_id)
    time.sleep(1)  # Airflow takes no answer within the second of the question.
    waits = look(api, "progress", late)
    assert "Waits for your decision until" in waits and "publish this model" in waits
    answer(api, rejected, "Reject", "too slow\non <phones>")
    api.fail_run("digits", cancelled)
    answer(api, published, "Approve")
    wait_until(lambda: api.run("digits", published)["state"] == "success")
    answer(api, late, "Approve")
    accuracy = read_summary(layout, published).metrics["accuracy"].value
    expected = {
        published: f"Published as version 1 of digits, in service (accuracy {accuracy:.4f}, and "
        "there was no version to compare it with).",
        refused: "Refused by the gate: accuracy 0.4700 is below 0.7000. Nothing was published.",
        rejected: f'Rejected by {USER}: "too slow on <phones>". Nothing was published.',
        unanswered: "Not published, because nobody answered in time. Nothing was published.",
        cancelled: f"Cancelled by {USER} in approve. Nothing was published.",
        late: "Out of date: version 1 is in service now, and version 2 was compared with no "
        "version. Trigger a new run, which compares them.",
    }
    config = tmp_path / "home" / "digits.yaml"
    check_all_places(api, layout, config, expected, capsys, without_summary=cancelled)
