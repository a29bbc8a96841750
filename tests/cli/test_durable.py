"""What becomes of a training when Airflow dies under it, and when a person ends it: real programs of a real Airflow, killed by signal 9.

The programs are started one by one, because the embedded Airflow's supervisor would end all when one has died.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest
import yaml

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded import MIGRATE, PROGRAMS, USER, Home, Secrets, airflow_command, airflow_environment
from pipeline_ops.cli.ports import free_port
from pipeline_ops.contracts.fingerprint import CODE_ROOT
from pipeline_ops.contracts.layout import Layout
from pipeline_ops.contracts.manifest import read_manifest
from pipeline_ops.contracts.records import read_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DIGITS = CODE_ROOT / "configs" / "digits.yaml"
_SOON = {"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10", "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
         "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3", "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
         "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10", "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10"}
"""Defaults of minutes, in seconds."""
_ENDED_SECONDS = 5.0


class Airflow:
    """The four programs, each with a tree of processes that can be killed and started again."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.home, self.layout = Home(folder / "airflow"), Layout(folder / "storage", "digits")
        self.home.make()
        own, port = Secrets.of(self.home), free_port()
        self._environment = airflow_environment(environment, self.home, CODE_ROOT / "dags", [str(folder / "digits.yaml")], port, own, True) | _SOON
        self._programs: dict[str, psutil.Popen] = {}
        self.url, self.password = f"http://127.0.0.1:{port}", own.password
        subprocess.run(airflow_command(MIGRATE), env=self._environment, check=True, capture_output=True)
        self.start(*PROGRAMS)
        self.api = AirflowApi(self.url, USER, self.password)
        wait_until(lambda: self._is_healthy(), 120)
        self.api.log_in()
        wait_until(lambda: self.api.dag("digits") is not None, 120)
        self.api.pause("digits", paused=False)

    def start(self, *names: str) -> None:
        for name in names:
            with open(self.home.log(name), "ab") as log:
                self._programs[name] = psutil.Popen(airflow_command(PROGRAMS[name]), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                    env=self._environment, cwd=self.home.folder, start_new_session=True)

    def kill(self, *names: str) -> None:
        """With every process below them; a job is not below them any more, or is spared, as by the crash of one of them."""
        trees = [process for name in names for process in (self._programs[name], *self._programs[name].children(recursive=True))]
        for process in trees:
            if not is_of_a_job(process):
                kill(process)
        for name in names:
            self._programs.pop(name).wait()

    def trigger(self, **conf) -> Run:
        run_id = self.api.trigger("digits", {key.replace("__", "."): value for key, value in conf.items()})
        return Run(self, run_id)

    def call(self, method: str, path: str, body: dict | None = None) -> httpx.Response:
        token = httpx.post(f"{self.url}/auth/token", json={"username": USER, "password": self.password}).json()["access_token"]
        return httpx.request(method, f"{self.url}/api/v2/dags/digits/{path}", json=body, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def _is_healthy(self) -> bool:
        return all(part["status"] == "healthy" for part in self.api.health().values())


class Run:
    """One run, and the job of its training."""

    def __init__(self, airflow: Airflow, run_id: str):
        self._airflow, self.run_id = airflow, run_id
        self.path = f"dagRuns/{quote(run_id, safe='')}"

    def task(self, name: str = "train") -> dict:
        return {task["task_id"]: task for task in self._airflow.api.tasks("digits", self.run_id)}.get(name, {"state": None, "try_number": 0})

    @property
    def state(self) -> str:
        return self._airflow.api.run("digits", self.run_id)["state"]

    @property
    def attempts(self) -> list[Path]:
        return sorted(self._airflow.layout.attempts(self.run_id, "train").glob("attempt-*"))

    def gang(self) -> list[psutil.Process]:
        """The job and all below it, that live now."""
        folder = str(self._airflow.layout.attempts(self.run_id, "train"))
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(folder in word for word in process.info["cmdline"] or ()):
                found += [process, *process.children(recursive=True)]
        return [process for process in dict.fromkeys(found) if lives(process)]

    def wait_for_steps(self) -> list[psutil.Process]:
        """The gang, once it trains."""
        wait_until(lambda: any("\"train\"" in (attempt / "progress.jsonl").read_text() for attempt in self.attempts
                               if (attempt / "progress.jsonl").exists()), 120)
        return self.gang()

    def wait_for(self, state: str, task: str = "train", seconds: float = 120) -> None:
        wait_until(lambda: self.task(task)["state"] == state, seconds)


def is_of_a_job(process: psutil.Process) -> bool:
    try:
        return any("--request" in word or "pipeline_ops.launch" in word or "pipeline_ops.training" in word for word in process.cmdline())
    except psutil.Error:
        return False


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGKILL)


def wait_until(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, whole_module_survivors):
    """With a data set that is made already."""
    folder = tmp_path_factory.mktemp("durable")
    values = yaml.safe_load(DIGITS.read_text())
    values["storage"]["root"], values["preprocess"]["source"]["path"] = "storage", "raw"
    values["train"] |= {"global_batch": 64, "workers": 2, "checkpoint_every_steps": 20, "early_stopping": None}
    values["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.5}]
    (folder / "digits.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    subprocess.run([sys.executable, "-m", "beam_jobs.sources.digits", folder / "raw"], check=True, stdout=subprocess.DEVNULL)
    airflow = Airflow(folder, whole_module_survivors.environment)
    yield airflow
    for process in whole_module_survivors.look():
        kill(process)


@pytest.fixture
def training(airflow):
    """Starts a run that trains for long; afterwards nothing of it may be left, whatever became of it."""
    runs = []

    def start(seed: int, epochs: int = 5000) -> Run:
        runs.append(airflow.trigger(train__epochs=epochs, train__seed=seed))
        return runs[-1]

    yield start
    for run in runs:
        airflow.call("PATCH", run.path, {"state": "failed"})  # which is refused where it was deleted
        wait_until(lambda run=run: not run.gang(), 60)


def test_the_same_gang_goes_on_when_scheduler_triggerer_and_all_of_airflow_are_killed(airflow, training):
    run = training(seed=1, epochs=400)
    gang = run.wait_for_steps()
    run.wait_for("deferred")
    for victims in (["scheduler"], ["triggerer"], list(PROGRAMS)):
        airflow.kill(*victims)
        time.sleep(2)
        assert all(map(lives, gang[:2])), f"the gang died with {victims}"
        airflow.start(*victims)
        wait_until(lambda: is_up(airflow), 120)
    run.wait_for("success", seconds=400)
    assert len(run.attempts) == 1
    assert run.task()["try_number"] == 1
    wait_until(lambda: run.state == "success", 120)
    assert not run.gang()


def is_up(airflow: Airflow) -> bool:
    try:
        return httpx.get(f"{airflow.url}/api/v2/monitor/health").is_success
    except httpx.HTTPError:
        return False


def test_a_killed_worker_costs_a_try_and_the_next_one_finds_the_same_gang(airflow, training):
    run = training(seed=2)
    wait_until(run.gang, 120)
    gang = run.gang()
    assert run.task()["state"] == "running", "the worker has to die before the task defers"
    airflow.kill("scheduler")  # its executor's workers are below it, and run the task
    airflow.start("scheduler")
    wait_until(lambda: run.task()["try_number"] == 2 and run.task()["state"] in ("running", "deferred"), 180)
    run.wait_for("deferred")
    assert len(run.attempts) == 1
    assert lives(gang[0])


@pytest.mark.parametrize("way", ["task failed", "task success", "run failed", "clear"])
def test_a_person_who_ends_a_training_ends_every_process_of_it(airflow, training, way):
    run = training(seed=10 + len(way))
    run.wait_for_steps()
    run.wait_for("deferred")
    gang = run.gang()
    assert len(gang) >= 4  # the launcher, the preloaded process, two workers
    refused = airflow.call("DELETE", run.path)
    assert refused.status_code == 409, "a run that is running can't be deleted"
    assert all(map(lives, gang))
    calls = {"task failed": ("PATCH", f"{run.path}/taskInstances/train", {"new_state": "failed"}),
             "task success": ("PATCH", f"{run.path}/taskInstances/train", {"new_state": "success"}),
             "run failed": ("PATCH", run.path, {"state": "failed"}),
             "clear": ("POST", "clearTaskInstances", {"dry_run": False, "dag_run_id": run.run_id, "task_ids": ["train"], "only_failed": False,
                                                      "reset_dag_runs": True})}
    assert airflow.call(*calls[way]).is_success
    wait_until(lambda: not any(map(lives, gang)), _ENDED_SECONDS)
    published = airflow.layout.root / "models" / "digits"
    assert not list(published.glob(".*")) if published.exists() else True
    artifacts = airflow.layout.artifacts("train")
    assert all(read_manifest(path / "manifest.json") for path in artifacts.iterdir() if not path.name.startswith("."))
    if way == "clear":
        wait_until(lambda: len(run.attempts) == 2 and run.gang(), 60)
    if way == "task success":  # nobody can evaluate what was not trained, and the record says so
        run.wait_for("failed", "evaluate")
        assert "train has left no manifest" in read_record(airflow.layout.task_record(run.run_id, "evaluate")).message


def test_a_deleted_run_leaves_nothing_that_runs(airflow, training):
    run = training(seed=3)
    gang = run.wait_for_steps()
    airflow.call("PATCH", run.path, {"state": "failed"})
    wait_until(lambda: not any(map(lives, gang)), _ENDED_SECONDS)
    assert airflow.call("DELETE", run.path).is_success
