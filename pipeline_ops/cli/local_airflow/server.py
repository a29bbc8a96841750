"""A command's side of the embedded Airflow: start or join it, use it, release it.

    with embedded_airflow(home, configs, on_message=print) as server:
        ...                                  # server.url responds, from our own process

This module knows nothing about the content of that Airflow. `supervisor.py` runs the processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.cli.local_airflow.home import (
    AirflowHome,
    AirflowServer,
    prepend,
    read_log_tail,
)
from pipeline_ops.cli.local_airflow.supervisor import ALREADY_RUNNING
from pipeline_ops.cli.usage_lock import acquire_usage_lock, release_usage_lock
from pipeline_ops.errors import MachineError
from pipeline_ops.system.host import adopt_orphans
from pipeline_ops.system.processes import SAFE_PATH, end_descendants, start_detached

DAGS = CODE_ROOT / "dags"
_POLL_SECONDS = 0.05
_START_SECONDS = 300.0
_LAST_USER_SECONDS = 5.0  # time in which a supervisor detects that it is unused
_OTHER_USER_SECONDS = 0.3  # it may have detected that before this command did
_STOP_SECONDS = 30.0


@contextlib.contextmanager
def embedded_airflow(
    home: AirflowHome,
    configs: Sequence[Path],
    on_message: Callable[[str], None],
    schedules: bool = False,
    dags: Path = DAGS,
) -> Iterator[AirflowServer]:
    """Keeps an embedded Airflow up: a new one, or the one that already runs in this home.

    Args:
      configs: files, or folders of files, of which a new one makes DAGs. A running one must serve
        them.
      on_message: called with a line for the user.
      schedules: whether a new one starts the runs that are due by the clock.

    This process becomes the parent of orphans below it. If the supervisor is killed, it ends all of
    its own descendants.

    Raises:
      MachineError: it did not start, or the running one serves other configs.
    """
    adopt_orphans()
    home.make()
    lock_descriptor = acquire_usage_lock(home.usage_lock, _STOP_SECONDS)
    startup = _ServerStartup(home, configs, schedules, dags, on_message)
    try:
        server = startup.wait_until_up()
        if startup.supervisor is None:
            on_message(f"Using the embedded Airflow that process {server.process.pid} runs.")
        yield server
    finally:
        _wait_for_end(home, startup.supervisor, release_usage_lock(lock_descriptor), on_message)


def check_alive(server: AirflowServer) -> None:
    """Raises MachineError, with the reason, if that Airflow is not up."""
    now = AirflowServer.read(server.home)
    if now and now.process == server.process and now.state == "failed":
        raise MachineError(now.message)
    if not server.process.is_alive():
        raise MachineError(
            f"the embedded Airflow has ended. Its log is {server.home.log('supervisor')}. "
            "Run the command again."
        )


@dataclasses.dataclass
class _ServerStartup:
    """The start of an Airflow, or the joining of one. `supervisor` is None for one that ran."""

    home: AirflowHome
    configs: Sequence[Path]
    schedules: bool
    dags: Path
    on_message: Callable[[str], None]
    supervisor: subprocess.Popen[bytes] | None = None

    def wait_until_up(self) -> AirflowServer:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if server := self._poll():
                return server
            time.sleep(_POLL_SECONDS)
        raise MachineError(
            f"the embedded Airflow did not start within {_START_SECONDS:.0f} s. "
            f"See its logs in {self.home.logs}."
        )

    def _poll(self) -> AirflowServer | None:
        """The server, once it is up."""
        server = AirflowServer.find_running(self.home)
        if server is None and self.supervisor is None:
            self.on_message("Starting Airflow. The first start in a folder takes a little longer.")
            self.supervisor = self._start_supervisor()
        if self.supervisor and self.supervisor.poll() is not None:
            _raise_start_error(self.home, self.supervisor)
            self.supervisor = None  # another command was faster
        if server is None or (self.supervisor and server.process.pid != self.supervisor.pid):
            return None
        if self.supervisor is None:
            _check_configs_served(server, self.configs)
        return server if server.state == "up" else None

    def _start_supervisor(self) -> subprocess.Popen[bytes]:
        module = "pipeline_ops.cli.local_airflow.supervisor"
        argv = [sys.executable, "-m", module, "--home", str(self.home.folder)]
        argv += ["--dags", str(self.dags), *(["--schedules"] if self.schedules else [])]
        environment = os.environ | SAFE_PATH | prepend(os.environ, "PYTHONPATH", str(CODE_ROOT))
        log = self.home.log("supervisor")
        return start_detached([*argv, *map(str, self.configs)], log, environment)


def _raise_start_error(home: AirflowHome, supervisor: subprocess.Popen[bytes]) -> None:
    """Raises MachineError with the message of a supervisor that ended.

    Returns if another supervisor was faster.
    """
    server = AirflowServer.read(home)
    if server and server.process.pid == supervisor.pid:
        raise MachineError(
            server.message
            or f"the embedded Airflow ended while it was starting. See {home.log('supervisor')}."
        )
    if supervisor.returncode != ALREADY_RUNNING:
        log = home.log("supervisor")
        raise MachineError(
            "the embedded Airflow did not start. "
            f"The log of its supervisor is {log} and ends with:\n{read_log_tail(log)}"
        )


def _check_configs_served(server: AirflowServer, configs: Sequence[Path]) -> None:
    missing = [str(config) for config in configs if not server.serves(config)]
    if missing and server.state in ("starting", "up"):
        raise MachineError(
            f"an embedded Airflow is already running (process {server.process.pid}, {server.url}). "
            f"It serves {', '.join(server.configs)}, but not {', '.join(missing)}. "
            "Stop it, or set TRAINYARD_HOME to another folder for this command."
        )


def _wait_for_end(
    home: AirflowHome,
    supervisor: subprocess.Popen[bytes] | None,
    was_last_user: bool,
    on_message: Callable[[str], None],
) -> None:
    """Waits until the supervisor has ended everything, unless another command uses it."""
    begin, release_seconds = (
        time.monotonic(),
        _LAST_USER_SECONDS if was_last_user else _OTHER_USER_SECONDS,
    )
    while (server := AirflowServer.find_running(home)) and (
        elapsed := time.monotonic() - begin
    ) < _STOP_SECONDS:
        if server.state == "up" and elapsed > release_seconds:
            if supervisor:
                on_message(
                    "The embedded Airflow stays up: another command uses it. "
                    f"Its supervisor is process {server.process.pid}."
                )
            return
        time.sleep(_POLL_SECONDS)
    if supervisor and _was_killed(supervisor):
        end_descendants(grace_seconds=1.0)  # its orphans are now children of this process


def _was_killed(supervisor: subprocess.Popen[bytes]) -> bool:
    """Returns whether the supervisor was killed by a signal. It never ends itself by one."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return supervisor.wait(timeout=_STOP_SECONDS) < 0
    return False
