"""A real Airflow whose programs are started and killed one by one, and accounts of its users.

The embedded Airflow would end all programs when one has died.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from log_tails import read_tail
from processes import (
    find_child_processes,
    find_processes_using,
    find_remaining_processes,
    read_command_line,
    wait_until,
)

from pipeline_ops.cli.embedded_airflow import (
    MIGRATE,
    AirflowHome,
    Secrets,
    build_airflow_environment,
    find_free_port,
)
from pipeline_ops.contract.source_code import CODE_ROOT

ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
"""Final states of a task."""
UP_SECONDS = 240
SOON = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}
"""Timeouts of minutes, as seconds. Shorter ones fail: the programs of a busy machine pause for ten
seconds.
"""
_ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")
_STOP_SECONDS = 60
_log = logging.getLogger(__name__)


class Programs:
    """The programs of one Airflow. Each is a tree of processes that can be killed and restarted.

    `folder` holds all files of this Airflow and its jobs. `settings` are variables besides those of
    `environment`. `configs` become DAGs. `commands` are the arguments of `airflow` for each
    program, by name.
    """

    interpreter: str | Path = sys.executable
    """The interpreter that has Airflow."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        configs: Sequence[str],
        commands: Mapping[str, Sequence[str]],
        settings: Mapping[str, str],
    ):
        self.folder, self.home, self.commands = folder, AirflowHome(folder / "airflow"), commands
        self.home.make()
        secrets, port = Secrets.load_or_create(self.home), find_free_port()
        self.password = secrets.password
        self._environment = build_airflow_environment(
            environment, self.home, CODE_ROOT / "dags", configs, port, secrets, True
        )
        self._environment |= {**SOON, **settings}
        self.url = self._environment["AIRFLOW__API__BASE_URL"]
        self._programs: dict[str, psutil.Popen] = {}

    def begin(self) -> None:
        """Starts all programs on an empty database, and waits until Airflow is healthy."""
        self.command(*MIGRATE)
        self.start(*self.commands)
        self.wait_for_health()

    def command(self, *arguments: str) -> str:
        """Runs a command of `airflow` to its end, and returns its output."""
        return subprocess.run(
            [self.interpreter, "-m", "airflow", *arguments],
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def start(self, *names: str, wrapper: Sequence[str] = ()) -> None:
        for name in names:
            with open(self.home.log(name), "ab") as log:
                self._programs[name] = psutil.Popen(
                    [*wrapper, self.interpreter, "-m", "airflow", *self.commands[name]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    cwd=self.home.folder,
                    start_new_session=True,
                )

    @contextlib.contextmanager
    def elsewhere(self, name: str) -> Iterator[None]:
        """Simulates the loss of a program's host.

        The program is killed. During the block, it runs under another host name.
        """
        self.kill(name)
        self.start(name, wrapper=_ELSEWHERE)
        try:
            yield
        finally:
            self.kill(name)

    def kill(self, *names: str) -> None:
        """Kills programs and their descendants by signal 9. Jobs survive, as in a crash."""
        self.send(signal.SIGKILL, *names)
        for name in names:
            self._programs.pop(name).wait()

    def end(self) -> None:
        """Kills all programs, and all remaining processes."""
        self.kill(*list(self._programs))
        for process in find_processes_using(self.folder):
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(30)
        assert not (left := find_remaining_processes(self.folder)), left

    def stop(self, *names: str) -> None:
        """Stops programs as a deployment does: by SIGTERM, then by signal 9.

        Airflow's scheduler sometimes survives SIGTERM: it raises SystemExit, which Python ignores
        in the callback of a weak reference.
        """
        for name in names:
            self._programs[name].terminate()
        psutil.wait_procs([self._programs[name] for name in names], timeout=_STOP_SECONDS)
        self.kill(*names)

    def send(self, number: signal.Signals, *names: str) -> None:
        """Sends a signal to every process of the programs, except for jobs."""
        for process in [
            process
            for name in names
            for process in (self._programs[name], *find_child_processes(self._programs[name]))
        ]:
            if not is_of_a_job(process):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def restart(self, *names: str) -> None:
        """Starts programs that do not run, continues stopped ones, and waits for their health.

        One that has ended by itself starts again, as under a supervisor, and is logged.
        """
        for name, program in [*self._programs.items()]:
            if (status := program.poll()) is not None:
                self._programs.pop(name)
                end = read_tail(self.home.log(name))
                _log.warning("%s has ended with status %s: %s", name, status, end)
        self.send(signal.SIGCONT, *self._programs)
        self.start(*(name for name in names if name not in self._programs))
        self.wait_for_health()

    def wait_for_health(self) -> None:
        """Waits until all programs are healthy. Fails with what they say of themselves."""
        try:
            wait_until(lambda: self.read_health() is None, UP_SECONDS)
        except AssertionError:
            ended = {name: program.poll() for name, program in self._programs.items()}
            pytest.fail(f"{self.read_health()}, exit statuses {ended}")

    def read_health(self) -> str | None:
        """Returns what is not healthy, or None."""
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=60).json()
        except (httpx.HTTPError, ValueError) as error:  # an error of the server is no JSON
            return repr(error)
        is_healthy = all(part["status"] == "healthy" for part in health.values())
        return None if is_healthy else str(health)


class Account:
    """An account of an Airflow, which logs in when needed."""

    def __init__(self, url: str, name: str, password: str):
        self.name, self._login = name, {"username": name, "password": password}
        # A new connection for each request, because tests kill the server.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False, limits=limits)
        self._token = ""

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Sends a request again after a server error: Airflow's transactions can deadlock."""
        deadline = time.monotonic() + 60
        while (
            answer := self._call_once(method, path, body, more)
        ).is_server_error and time.monotonic() < deadline:
            time.sleep(0.5)
        return answer

    def _call_once(
        self, method: str, path: str, body: Any, more: Mapping[str, Any]
    ) -> httpx.Response:
        if not self._token:
            login = self._client.post("/auth/token", json=self._login)
            if login.is_error:
                return login
            self._token = login.json()["access_token"]
        headers = {"Authorization": f"Bearer {self._token}"} | more.get("headers", {})
        return self._client.request(method, path, json=body, **{**more, "headers": headers})


def is_of_a_job(process: psutil.Process) -> bool:
    return any(
        "--request" in word or "pipeline_ops.launch" in word or "pipeline_ops.training" in word
        for word in read_command_line(process)
    )
