"""Runs that events start in a real Airflow, and notifications: failures, files, backfills."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from config_files import write_config
from held_airflow import run_airflow
from processes import wait_until

_DAGS = """
from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags  # an Airflow of Trainyard's

globals().update(make_dags([{configs!r}], check_stages))
"""


def pipeline(folder: Path, name: str, waits: bool = False, **more) -> None:
    notifier, mail = "acme_notifier.Mailbox", {"folder": str(folder / "mail")}
    changes = {
        "pipeline": name,
        "storage.root": str(folder / "root"),
        "preprocess.source.path": more.pop("path", str(folder / "no such folder")),
        "notify": [{"notifier": notifier, "arguments": mail, "events": ["failed"]}],
    }
    if waits:
        changes["preprocess.pool"] = "nowhere"  # a pool that does not exist: the task never starts
    write_config(folder, changes | more, name=f"{name}.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three pipelines. A run of the first fails. The others start no task, or find no file."""
    folder = tmp_path_factory.mktemp("events")
    for name in ("mail", "raw"):
        (folder / name).mkdir()
    pipeline(folder, "failing")
    pipeline(
        folder, "watching", waits=True, path=str(folder / "raw"), schedule={"watch_seconds": 1}
    )
    pipeline(folder, "daily", path=str(folder / "days" / "{start:%Y-%m-%d}"), schedule="@daily")
    (folder / "dag.py").write_text(_DAGS.format(configs=str(folder)))
    return folder


@pytest.fixture(scope="module")
def airflow(folder, whole_module_survivors, user_package):
    environment = {**whole_module_survivors.environment, "PYTHONPATH": os.environ["PYTHONPATH"]}
    dags = ("failing", "watching", "daily")
    config = folder / "failing.yaml"
    with run_airflow(folder, config, dags, environment, "--schedules") as api:
        yield api


def letters(folder: Path, pipeline: str) -> list[dict]:
    found = [json.loads(file.read_text()) for file in (folder / "mail").glob("*.json")]
    own = [letter for letter in found if letter["pipeline"] == pipeline]
    return sorted(own, key=lambda letter: letter["verdict"])


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_run_that_failed_is_told_once(airflow, folder):
    failed = airflow.trigger("failing", {"preprocess.dataset": "000000"})
    [letter] = wait_until(lambda: letters(folder, "failing"), 150)
    assert (letter["event"], letter["run_id"]) == ("failed", failed)
    assert "no data set of failing has a version that begins with 000000" in letter["verdict"]
    assert letter["link"].startswith("http://127.0.0.1:")
    assert "/trainyard/pipelines/failing/report?run_id=" in letter["link"]
    wait_until(lambda: airflow.run("failing", failed)["state"] == "failed")
    assert len(letters(folder, "failing")) == 1


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_files_that_arrive_start_one_run_for_each_change_and_their_watcher_holds_no_slot(
    airflow, folder
):
    def runs() -> list[str]:
        found = airflow._call("GET", "/api/v2/dags/watching/dagRuns?order_by=id")["dag_runs"]
        return [run["dag_run_id"] for run in found]

    wait_until((folder / "root" / "watched" / "watching.json").exists)
    for count in (1, 2):
        (folder / "raw" / f"{count}.png").write_bytes(b"an image")
        wait_until(lambda count=count: len(runs()) == count)
        # Airflow makes no run for an asset while a pipeline has as many as it may have.
        airflow.fail_run("watching", runs()[-1])
    time.sleep(5)  # five more looks, and nothing new
    assert [run.partition("__")[0] for run in runs()] == ["asset_triggered"] * 2
    assert airflow._call("GET", "/api/v2/pools/default_pool")["occupied_slots"] == 0


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_backfill_makes_a_run_for_each_day_and_each_looks_into_its_own_folder(airflow, folder):
    days = {"from_date": "2026-01-05T00:00:00Z", "to_date": "2026-01-06T00:00:00Z"}
    days |= {"dag_id": "daily", "max_active_runs": 2}
    # Airflow deletes the runs of a backfill again when SQLite is locked (503, and the client tries
    # again). Its scheduler dies if it is examining one of them: it examines none while paused.
    airflow.pause("daily", paused=True)
    airflow._call("POST", "/api/v2/backfills", days)
    airflow.pause("daily", paused=False)

    def looked() -> list[str]:
        found = letters(folder, "daily")
        verdicts = [each["verdict"] for each in found if each["run_id"].startswith("backfill__")]
        return [verdict.partition(f"{folder}/days/")[2][:10] for verdict in verdicts]

    wait_until(lambda: len(looked()) == 2, seconds=240)
    assert looked() == ["2026-01-05", "2026-01-06"]
