"""A real Airflow whose programs are started one by one, and killed one by one;
and the runs of a pipeline in it.

The embedded Airflow's supervisor would end all when one has died.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import yaml
from processes import at_work_on, below, command_line, left_below

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, new_run_id
from pipeline_ops.cli.local_airflow.author_overrides import keep_overrides
from pipeline_ops.cli.local_airflow.embedded import (
    MIGRATE,
    PROGRAMS,
    USER,
    Home,
    Secrets,
    airflow_command,
    airflow_environment,
)
from pipeline_ops.cli.local_airflow.ports import free_port

DIGITS = CODE_ROOT / "configs" / "digits.yaml"
SOON = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}
"""Minutes in seconds. Not fewer: the programs of a busy machine are silent for ten,
and are then taken for dead."""
_CELERY_WORKER = {
    "worker": ("celery", "worker", "--skip-serve-logs", "--without-mingle", "--without-gossip")
}
_ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")
_ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
_UP_SECONDS = 240
_STOP_SECONDS = 60


class Programs:
    """The programs of one Airflow,
    each with a tree of processes that can be killed and started again.

    Args:
      folder: holds all that this Airflow and its jobs write.
      home: Airflow's own folder, below it.
      commands: the arguments of `airflow` for each program, by name.
      environment: of every program; from `airflow_environment`.
    """

    def __init__(
        self,
        folder: Path,
        home: Home,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
    ):
        self.folder, self.home, self.commands, self._environment = (
            folder,
            home,
            commands,
            dict(environment),
        )
        self.url = self._environment["AIRFLOW__API__BASE_URL"]
        self._programs: dict[str, psutil.Popen] = {}

    def begin(self) -> None:
        """Starts all programs on an empty database, and waits until Airflow is whole."""
        self.command(*MIGRATE)
        self.start(*self.commands)
        wait_until(self.is_healthy, _UP_SECONDS)

    def command(self, *arguments: str) -> str:
        """Runs a command of `airflow` to its end; its output."""
        return subprocess.run(
            airflow_command(arguments),
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def python(self, program: str, *arguments: str) -> None:
        """Runs a program in the environment of this Airflow to its end."""
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=self._environment,
            check=True,
            capture_output=True,
        )

    def start(self, *names: str, wrapper: Sequence[str] = ()) -> None:
        for name in names:
            with open(self.home.log(name), "ab") as log:
                self._programs[name] = psutil.Popen(
                    [*wrapper, *airflow_command(self.commands[name])],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    cwd=self.home.folder,
                    start_new_session=True,
                )

    @contextlib.contextmanager
    def elsewhere(self, name: str) -> Iterator[None]:
        """As if a program's host were lost: it is killed,
        and runs on one of another name for as long as the block does."""
        self.kill(name)
        self.start(name, wrapper=_ELSEWHERE)
        try:
            yield
        finally:
            self.kill(name)

    def kill(self, *names: str) -> None:
        """By signal 9, with every process below them; a job is not below them any more, or is
        spared, as by the crash of one of them."""
        self.send(signal.SIGKILL, *names)
        for name in names:
            self._programs.pop(name).wait()

    def end(self) -> None:
        """Kills all programs, and what may be left of those that were killed before."""
        self.kill(*list(self._programs))
        for process in at_work_on(self.folder):
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(30)
        assert not (left := left_below(self.folder)), left

    def stop(self, *names: str) -> None:
        """As a deployment does: SIGTERM, and signal 9 to what has not heard of it. Now and then
        Airflow's scheduler has not: it raises SystemExit where it stands, and where that is in a
        weak reference's callback, Python prints it and goes on."""
        for name in names:
            self._programs[name].terminate()
        psutil.wait_procs([self._programs[name] for name in names], timeout=_STOP_SECONDS)
        self.kill(*names)

    def send(self, number: signal.Signals, *names: str) -> None:
        """To every process of theirs, but for jobs."""
        for process in [
            process
            for name in names
            for process in (self._programs[name], *below(self._programs[name]))
        ]:
            if not is_of_a_job(process):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def restart(self, *names: str) -> None:
        """Starts those of them again that don't run, wakes those that a signal has stopped,
        and waits until Airflow is whole."""
        self.send(signal.SIGCONT, *self._programs)
        self.start(*(name for name in names if name not in self._programs))
        wait_until(self.is_healthy, _UP_SECONDS)

    def is_healthy(self) -> bool:
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=60).json()
        except (httpx.HTTPError, ValueError):  # an error of the server is no JSON
            return False
        return all(part["status"] == "healthy" for part in health.values())


class Airflow(Programs):
    """An Airflow with the pipeline `digits`.

    Args:
      folder: holds `digits.yaml`.
      environment: of every program.
      executor: the settings of Celery; none for LocalExecutor on SQLite,
        whose workers are below the scheduler.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], executor: Mapping[str, str]):
        home, self.layout = Home(folder / "airflow"), Layout(folder / "storage", "digits")
        home.make()
        own, port = Secrets.of(home), free_port()
        settings = airflow_environment(
            environment, home, CODE_ROOT / "dags", [str(folder / "digits.yaml")], port, own, True
        )
        super().__init__(
            folder,
            home,
            {**PROGRAMS, **(_CELERY_WORKER if executor else {})},
            settings | SOON | dict(executor),
        )
        self.worker = "worker" if executor else "scheduler"
        self.password = own.password
        self.api = AirflowApi(self.url, USER, self.password)

    def begin(self) -> None:
        """Also waits until Airflow has the pipeline."""
        super().begin()
        self.api.log_in()
        wait_until(lambda: self.api.dag("digits") is not None, _UP_SECONDS)
        self.api.pause("digits", paused=False)

    def trigger(self, task: str = "train", author: Mapping[str, Any] | None = None, **conf) -> Run:
        """A run, looked at through one of its tasks; `train__epochs=3` overrides a key. What
        `author` has, only the command line may set."""
        run_id = new_run_id()
        keep_overrides(self.home, self.folder / "digits.yaml", run_id, author or {})
        return Run(
            self,
            self.api.trigger(
                "digits", {key.replace("__", "."): value for key, value in conf.items()}, run_id
            ),
            task,
        )

    def call(self, method: str, path: str, body: dict | None = None) -> httpx.Response:
        """As a person does it, who presses the button again after an error of the server: Airflow's
        transactions can meet in a deadlock."""
        answers: list[httpx.Response] = []
        wait_until(
            lambda: (
                answers.append(self._call_once(method, path, body))
                or not answers[-1].is_server_error
            ),
            60,
        )
        return answers[-1]

    def _call_once(self, method: str, path: str, body: dict | None) -> httpx.Response:
        login = httpx.post(
            f"{self.url}/auth/token", json={"username": USER, "password": self.password}, timeout=60
        )
        if login.is_server_error:
            return login
        headers = {"Authorization": f"Bearer {login.json()['access_token']}"}
        return httpx.request(
            method, f"{self.url}/api/v2/dags/digits/{path}", json=body, headers=headers, timeout=60
        )


class Run:
    """One run, and the job of one of its tasks."""

    def __init__(self, airflow: Airflow, run_id: str, task: str):
        self._airflow, self.run_id, self.name = airflow, run_id, task
        self.path = f"dagRuns/{quote(run_id, safe='')}"

    def task(self, name: str | None = None) -> dict:
        tasks = {task["task_id"]: task for task in self._airflow.api.tasks("digits", self.run_id)}
        return tasks.get(name or self.name, {"state": None, "try_number": 0})

    @property
    def state(self) -> str:
        return self._airflow.api.run("digits", self.run_id)["state"]

    @property
    def attempts(self) -> list[Attempt]:
        """In the order in which they were started."""
        requests = self._airflow.layout.attempts(self.run_id, self.name).glob(
            "attempt-*/request.json"
        )  # a folder is there a moment before it
        return [
            Attempt(request.parent)
            for request in sorted(requests, key=lambda request: request.stat().st_ctime)
        ]

    def processes(self, attempt: Attempt | None = None) -> list[psutil.Process]:
        """Those of all jobs of the run, or of one of them, that live now: all that names its
        folder, works in it, or is below one that does."""
        return at_work_on(attempt.folder if attempt else self._airflow.layout.run(self.run_id))

    def wait_for_job(self) -> Attempt:
        """The last job, once its process is there; usually it is the first."""
        return self._wait_for_last(lambda attempt: bool(self.processes(attempt)))

    def wait_for_steps(self) -> Attempt:
        """The last job, once it trains."""
        return self._wait_for_last(
            lambda attempt: attempt.progress.exists() and '"train"' in attempt.progress.read_text()
        )

    def _wait_for_last(self, is_so: Callable[[Attempt], bool]) -> Attempt:
        """Of several: a busy Airflow that takes its own task for dead starts another."""
        found: list[Attempt] = []
        wait_until(
            lambda: (
                found.extend(attempt for attempt in self.attempts[-1:] if is_so(attempt)) or found
            ),
            180,
        )
        return found[-1]

    def wait_for_end_of(self, attempt: Attempt, seconds: float) -> None:
        """Until no process of a job is left; the log says how long that took."""
        begin = time.monotonic()
        wait_until(lambda: not self.processes(attempt), seconds)
        logging.getLogger(__name__).info(
            "%s ended within %.1f s", attempt.folder.name, time.monotonic() - begin
        )

    def wait_for(self, state: str, task: str | None = None, seconds: float = 180) -> None:
        """Fails at once if the task has ended in another one."""

        def is_so() -> bool:
            found = self.task(task)["state"]
            assert found == state or found not in _ENDED, (
                f"{task or self.name} is {found}, and will not be {state}"
            )
            return found == state

        wait_until(is_so, seconds)


def is_of_a_job(process: psutil.Process) -> bool:
    return any(
        "--request" in word or "pipeline_ops.launch" in word or "pipeline_ops.training" in word
        for word in command_line(process)
    )


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.1)


def make_pipeline(folder: Path) -> None:
    """`digits.yaml` in a folder, with the raw files beside it: two workers,
    and a training as long as the run asks for."""
    values = yaml.safe_load(DIGITS.read_text())
    values["storage"]["root"], values["preprocess"]["source"]["path"] = "storage", "raw"
    values["train"] |= {
        "global_batch": 64,
        "workers": 2,
        "checkpoint_every_steps": 20,
        "early_stopping": None,
        "retries": 5,
    }  # a busy Airflow loses some to itself, before a line of ours runs
    values["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.5}]
    (folder / "digits.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    subprocess.run(
        [sys.executable, "-m", "beam_jobs.sources.digits", folder / "raw"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
