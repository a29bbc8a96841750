"""People are told by a real Airflow: of a run that failed, once, though task and run both tell it, and of a run that is late."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded import USER, Home, Server
from pipeline_ops.cli.ready import wait_for_dag, wait_until_healthy

ROOT = Path(__file__).resolve().parents[2]
_DAGS = """
from beam_jobs.stages import check_stages
from pipeline_ops.operators.dags import make_dags  # an Airflow of Trainyard's

globals().update(make_dags([{configs!r}], check_stages))
"""


def pipeline(folder: Path, name: str, **more) -> None:
    values = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text()) | {"pipeline": name} | more
    values["storage"]["root"], values["preprocess"]["source"]["path"] = str(folder / "root"), str(folder / "no such folder")
    events = ["failed", "late"] if "deadline_seconds" in more else ["failed"]
    values["notify"] = [{"notifier": "acme_notifier.Mailbox", "arguments": {"folder": str(folder / "mail")}, "events": events}]
    if "deadline_seconds" in more:
        values["preprocess"]["pool"] = "nowhere"  # there is no such pool, so the task waits for ever
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))


@pytest.fixture
def airflow(tmp_path, survivors, own_package):
    (tmp_path / "mail").mkdir()
    pipeline(tmp_path, "failing")
    pipeline(tmp_path, "waiting", deadline_seconds=1)
    (tmp_path / "dag.py").write_text(_DAGS.format(configs=str(tmp_path)))
    argv = [sys.executable, str(Path(__file__).parent / "holder.py"), str(tmp_path), str(tmp_path / "failing.yaml")]
    environment = {**survivors.environment, "PYTHONPATH": os.environ["PYTHONPATH"]}
    holder = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert [holder.stdout.readline() for _ in range(2)][1].startswith("up ")
    home = Home(tmp_path)
    server = Server.alive(home)
    with AirflowApi(server.url, USER, server.password) as api:
        wait_until_healthy(api, home, server)
        for dag in ("failing", "waiting"):
            wait_for_dag(api, home, server, dag, since=0.0)
            api.pause(dag, paused=False)
        yield api
    holder.communicate(timeout=20)


def wait_for(condition, seconds: float = 150.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_failed_and_a_run_that_is_late_are_told_once_each(airflow, tmp_path):
    def letters(pipeline: str) -> list[dict]:
        found = [json.loads(file.read_text()) for file in (tmp_path / "mail").glob("*.json")]
        return [letter for letter in found if letter["pipeline"] == pipeline]

    late, failed = airflow.trigger("waiting", {}), airflow.trigger("failing", {"train.epocs": 3})
    [letter] = wait_for(lambda: letters("failing"))
    assert (letter["event"], letter["run_id"]) == ("failed", failed)
    assert "override train.epocs: train.epocs: unknown key; the nearest valid name is 'epochs'" in letter["verdict"]
    assert letter["link"].startswith("http://127.0.0.1:") and letter["link"].endswith("/plugin/trainyard_report")
    [letter] = wait_for(lambda: letters("waiting"))
    assert (letter["event"], letter["run_id"]) == ("late", late)
    assert letter["verdict"] == "has not ended 1 s after it was queued, and goes on; done: nothing yet"
    log = tmp_path / "logs" / "dag_processor"  # the run tells its failure, too: Airflow's DAG processor does that, a little later
    wait_for(lambda: any("failed of this run has been told before" in file.read_text() for file in log.rglob("*.log")))
    assert len(letters("failing")) == len(letters("waiting")) == 1
