"""What starts runs of a real Airflow, and whom it tells: notices, deadlines,
files that arrive, backfills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi
from pipeline_ops.cli.local_airflow.embedded import USER, AirflowServer, Home
from pipeline_ops.cli.local_airflow.ready import wait_for_dag, wait_until_healthy

ROOT = Path(__file__).resolve().parents[2]
_DAGS = """
from beam_jobs.stages import check_stages
from pipeline_ops.operators.dags import make_dags  # an Airflow of Trainyard's

globals().update(make_dags([{configs!r}], check_stages))
"""


def pipeline(folder: Path, name: str, waits: bool = False, **more) -> None:
    values = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text()) | {"pipeline": name}
    values["storage"]["root"], values["preprocess"]["source"]["path"] = (
        str(folder / "root"),
        more.pop("path", str(folder / "no such folder")),
    )
    events = ["failed", "late"] if "deadline_seconds" in more else ["failed"]
    values["notify"] = [
        {
            "notifier": "acme_notifier.Mailbox",
            "arguments": {"folder": str(folder / "mail")},
            "events": events,
        }
    ]
    if waits:
        values["preprocess"]["pool"] = (
            "nowhere"  # there is no such pool, so the task waits for ever
        )
    values |= more
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With four pipelines: of the first a run fails,
    of the others no task ever starts or no file is found."""
    folder = tmp_path_factory.mktemp("events")
    for name in ("mail", "raw"):
        (folder / name).mkdir()
    pipeline(folder, "failing")
    pipeline(folder, "waiting", waits=True, deadline_seconds=1)
    pipeline(
        folder, "watching", waits=True, path=str(folder / "raw"), schedule={"watch_seconds": 1}
    )
    pipeline(folder, "daily", path=str(folder / "days" / "{start:%Y-%m-%d}"), schedule="@daily")
    (folder / "dag.py").write_text(_DAGS.format(configs=str(folder)))
    return folder


@pytest.fixture(scope="module")
def airflow(folder, whole_module_survivors, own_package):
    argv = [
        sys.executable,
        str(Path(__file__).parent / "holder.py"),
        "--schedules",
        str(folder),
        str(folder / "failing.yaml"),
    ]
    environment = {**whole_module_survivors.environment, "PYTHONPATH": os.environ["PYTHONPATH"]}
    holder = subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert [holder.stdout.readline() for _ in range(2)][1].startswith("up ")
    home = Home(folder)
    server = AirflowServer.alive(home)
    with AirflowApi(server.url, USER, server.password) as api:
        wait_until_healthy(api, home, server)
        for dag in ("failing", "waiting", "watching", "daily"):
            wait_for_dag(api, home, server, dag, since=0.0)
            api.pause(dag, paused=False)
        yield api
    holder.communicate(timeout=60)


def wait_for(condition, seconds: float = 150.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def letters(folder: Path, pipeline: str) -> list[dict]:
    found = [json.loads(file.read_text()) for file in (folder / "mail").glob("*.json")]
    return sorted(
        (letter for letter in found if letter["pipeline"] == pipeline),
        key=lambda letter: letter["verdict"],
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_failed_and_a_run_that_is_late_are_told_once_each(airflow, folder):
    late, failed = (
        airflow.trigger("waiting", {}),
        airflow.trigger("failing", {"preprocess.dataset": "000000"}),
    )
    [letter] = wait_for(lambda: letters(folder, "failing"))
    assert (letter["event"], letter["run_id"]) == ("failed", failed)
    assert "no data set of failing has a version that begins with 000000" in letter["verdict"]
    assert letter["link"].startswith("http://127.0.0.1:") and letter["link"].endswith(
        "/plugin/trainyard_report"
    )
    [letter] = wait_for(lambda: letters(folder, "waiting"))
    assert (letter["event"], letter["run_id"]) == ("late", late)
    assert (
        letter["verdict"] == "has not ended 1 s after it was queued, and goes on; done: nothing yet"
    )
    logs = (
        folder / "logs" / "dag_processor"
    )  # the run tells its failure, too: Airflow's DAG processor does that, a little later
    wait_for(
        lambda: any(
            "failed of this run has been told before" in file.read_text()
            for file in logs.rglob("*.log")
        )
    )
    assert len(letters(folder, "failing")) == len(letters(folder, "waiting")) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_files_that_arrive_start_one_run_for_each_change_and_their_watcher_holds_no_slot(
    airflow, folder
):
    def runs() -> list[str]:
        return [
            run["dag_run_id"]
            for run in airflow._call("GET", "/api/v2/dags/watching/dagRuns?order_by=id")["dag_runs"]
        ]

    wait_for((folder / "root" / "watched" / "watching.json").exists)
    for count in (1, 2):
        (folder / "raw" / f"{count}.png").write_bytes(b"an image")
        wait_for(lambda count=count: len(runs()) == count)
        airflow.fail_run(
            "watching", runs()[-1]
        )  # Airflow makes no run for an asset while a pipeline has as many as it may have
    time.sleep(5)  # five more looks, and nothing new
    assert [run.partition("__")[0] for run in runs()] == ["asset_triggered"] * 2
    assert airflow._call("GET", "/api/v2/pools/default_pool")["occupied_slots"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_backfill_makes_a_run_for_each_day_and_each_looks_into_its_own_folder(airflow, folder):
    days = {
        "dag_id": "daily",
        "from_date": "2026-01-05T00:00:00Z",
        "to_date": "2026-01-06T00:00:00Z",
        "max_active_runs": 2,
    }
    airflow._call("POST", "/api/v2/backfills", days)

    def looked() -> list[str]:
        told = [
            letter["verdict"]
            for letter in letters(folder, "daily")
            if letter["run_id"].startswith("backfill__")
        ]
        return [verdict.partition(f"{folder}/days/")[2][:10] for verdict in told]

    wait_for(lambda: len(looked()) == 2)
    assert looked() == ["2026-01-05", "2026-01-06"]
