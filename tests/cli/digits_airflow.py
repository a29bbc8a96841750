"""A real Airflow with the pipeline `digits`, and runs of it that are observed from outside."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
from cli.programs import ENDED, UP_SECONDS, Account, Programs
from config_files import write_config, write_digits
from processes import find_processes_using, wait_until

from pipeline_ops.cli.airflow_access import USER
from pipeline_ops.cli.airflow_api import AirflowApi, make_run_id
from pipeline_ops.cli.embedded_airflow import PROGRAMS
from pipeline_ops.contract.layout import Attempt, Layout
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

_CELERY_WORKER = {
    "worker": ("celery", "worker", "--skip-serve-logs", "--without-mingle", "--without-gossip")
}


class Airflow(Programs):
    """An Airflow with the pipeline `digits`.

    Args:
      folder: holds `digits.yaml`.
      environment: the environment to inherit.
      executor: the settings of Celery. Empty for LocalExecutor on SQLite, whose workers are
        children of the scheduler.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], executor: Mapping[str, str]):
        self.layout = Layout(open_root(folder / "storage"), "digits")
        commands = {**PROGRAMS, **(_CELERY_WORKER if executor else {})}
        super().__init__(folder, environment, [str(folder / "digits.yaml")], commands, executor)
        self.worker = "worker" if executor else "scheduler"
        self.api = AirflowApi(self.url, USER, self.password)
        self.account = Account(self.url, USER, self.password)

    def begin(self) -> None:
        """Starts Airflow, and waits until it has the pipeline."""
        super().begin()
        self.api.log_in()
        wait_until(lambda: self.api.dag("digits") is not None, UP_SECONDS)
        self.api.pause("digits", paused=False)

    def end(self) -> None:
        super().end()
        self.api.close()

    def trigger(self, task: str = "train", author: Mapping[str, Any] | None = None, **conf) -> Run:
        """Triggers a run, of which one task is observed.

        Args:
          task: the observed task.
          author: overrides of any key, as the command line may set them.
          conf: overrides of the run: `train__epochs=3`.
        """
        run_id = make_run_id()
        conf = {key.replace("__", "."): value for key, value in conf.items()} | dict(author or {})
        return Run(self, self.api.trigger("digits", conf, run_id), task)

    def call(self, method: str, path: str, body: dict | None = None) -> httpx.Response:
        """Calls the API of the pipeline, as a person does in the UI."""
        return self.account.call(method, f"/api/v2/dags/digits/{path}", body)


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
    def attempts(self) -> list[Attempt[StorePath]]:
        """The attempts in the order of their starts."""
        # The request is written a moment after the folder.
        folder = self._airflow.layout.attempts(self.run_id, self.name)
        requests = folder.local.glob("attempt-*/request.json")
        return [
            Attempt(folder / request.parent.name)
            for request in sorted(requests, key=lambda request: request.stat().st_ctime)
        ]

    def processes(self, attempt: Attempt[StorePath] | None = None) -> list[psutil.Process]:
        """The living processes of all jobs of the run, or of one attempt, found by its folder."""
        return find_processes_using(
            attempt.folder if attempt else self._airflow.layout.run_folder(self.run_id)
        )

    def wait_for_job(self) -> Attempt[StorePath]:
        """Waits for the process of the last attempt, which usually is the first."""
        return self._wait_for_last(lambda attempt: bool(self.processes(attempt)))

    def wait_for_steps(self) -> Attempt[StorePath]:
        """Waits until the last attempt trains."""
        return self._wait_for_last(
            lambda attempt: attempt.progress.exists() and b'"train"' in attempt.progress.read()
        )

    def _wait_for_last(self, is_so: Callable[[Attempt[StorePath]], bool]) -> Attempt[StorePath]:
        """Waits until the newest attempt meets a condition.

        There may be several, because a busy Airflow that considers its task dead starts another.
        """
        return wait_until(lambda: next(filter(is_so, self.attempts[-1:]), None), 180)

    def wait_for_end(self, attempt: Attempt[StorePath], seconds: float) -> None:
        """Waits until no process of an attempt is left, and logs the time."""
        begin = time.monotonic()
        wait_until(lambda: not self.processes(attempt), seconds)
        logging.getLogger(__name__).info(
            "%s ended within %.1f s", attempt.folder.name, time.monotonic() - begin
        )

    def wait_for(self, state: str, task: str | None = None, seconds: float = 180) -> None:
        """Waits for the state of a task. Fails at once if the task has ended in another one."""

        def is_so() -> bool:
            found = self.task(task)["state"]
            assert found == state or found not in ENDED, (
                f"{task or self.name} is {found}, and will not be {state}"
            )
            return found == state

        wait_until(is_so, seconds)


def make_pipeline(folder: Path) -> None:
    """Writes `digits.yaml` and its raw files: two workers, and as many epochs as the run sets."""
    changes = {
        "storage.root": "storage",
        "preprocess.source.path": "raw",
        "train.global_batch_size": 64,
        "train.workers": 2,
        "train.checkpoint_every_steps": 20,
        "train.early_stopping": None,
        "train.retries": 5,  # a busy Airflow loses some tries before our code runs
        "evaluate.gate": [{"metric": "accuracy", "at_least": 0.5}],
    }
    write_config(folder, changes)
    write_digits(folder / "raw")
