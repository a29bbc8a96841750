"""A command's side of the embedded Airflow: start or join it, hold it, release it.

    with embedded_airflow(home, configs, say=print) as server:
        ...                                  # server.url answers, from a process of ours

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

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.cli.local_airflow.embedded import AirflowServer, Home, last_lines
from pipeline_ops.cli.local_airflow.supervisor import LOCKED
from pipeline_ops.cli.usage_lock import hold, let_go
from pipeline_ops.errors import MachineError
from pipeline_ops.system.descendants import adopt_orphans, end_descendants
from pipeline_ops.system.processes import SAFE_PATH

DAGS = CODE_ROOT / "dags"
_POLL_SECONDS = 0.05
_START_SECONDS = 300.0
_LAST_SECONDS = 5.0  # the time in which a supervisor notices that it is unused
_NOT_LAST_SECONDS = 0.3  # it may have noticed that before the command that asked
_STOP_SECONDS = 30.0


@contextlib.contextmanager
def embedded_airflow(
    home: Home,
    configs: Sequence[Path],
    say: Callable[[str], None],
    schedules: bool = False,
    dags: Path = DAGS,
) -> Iterator[AirflowServer]:
    """Holds an embedded Airflow, a new one or the one that runs in this home already.

    Args:
      configs: files, or folders of files, of which a new one makes DAGs. A running one must serve
        them.
      say: called with a line for the user.
      schedules: whether a new one starts the runs that are due by the clock.

    This process becomes the parent of orphans below it. If the supervisor is killed, it ends all of
    its own descendants.

    Raises:
      MachineError: it did not start, or the running one serves other configs.
    """
    adopt_orphans()
    home.make()
    holder = hold(home.holders, _STOP_SECONDS)
    attempt = _Start(home, configs, schedules, dags, say)
    try:
        server = attempt.until_up()
        if attempt.child is None:
            say(f"Using the embedded Airflow that process {server.process.pid} runs.")
        yield server
    finally:
        _wait_for_end(home, attempt.child, let_go(holder), say)


def check_alive(home: Home, server: AirflowServer) -> None:
    """Raises MachineError, with the reason, if that Airflow is not up."""
    now = AirflowServer.read(home)
    if now and now.process == server.process and now.state == "failed":
        raise MachineError(now.message)
    if not server.process.is_alive():
        raise MachineError(f"the embedded Airflow has ended; its log is {home.log('supervisor')}")


@dataclasses.dataclass
class _Start:
    """The start of an Airflow, or the joining of one. `child` is the supervisor, if it is ours."""

    home: Home
    configs: Sequence[Path]
    schedules: bool
    dags: Path
    say: Callable[[str], None]
    child: subprocess.Popen | None = None

    def until_up(self) -> AirflowServer:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if server := self._look():
                return server
            time.sleep(_POLL_SECONDS)
        raise MachineError(
            f"the embedded Airflow was not up after {_START_SECONDS:.0f} s; "
            f"its logs are in {self.home.log('').parent}"
        )

    def _look(self) -> AirflowServer | None:
        """The server, once it is up."""
        server = AirflowServer.alive(self.home)
        if server is None and self.child is None:
            self.say("Starting Airflow; the first time in a folder this takes a little longer.")
            self.child = _start_supervisor(self.home, self.configs, self.schedules, self.dags)
        if self.child and self.child.poll() is not None:
            _explain(self.home, self.child)
            self.child = None  # another command was faster
        if server is None or (self.child and server.process.pid != self.child.pid):
            return None
        if self.child is None:
            _check_serves(server, self.configs)
        return server if server.state == "up" else None


def _start_supervisor(
    home: Home, configs: Sequence[Path], schedules: bool, dags: Path
) -> subprocess.Popen:
    argv = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.local_airflow.supervisor",
        "--home",
        str(home.folder),
        "--dags",
        str(dags),
        *(["--schedules"] if schedules else []),
        *map(str, configs),
    ]
    environment = (
        os.environ
        | SAFE_PATH
        | {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(CODE_ROOT), os.environ.get("PYTHONPATH")])
            )
        }
    )
    with open(home.log("supervisor"), "ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )


def _explain(home: Home, child: subprocess.Popen) -> None:
    """Raises MachineError with the message of a supervisor that ended.

    Returns if another supervisor was faster.
    """
    server = AirflowServer.read(home)
    if server and server.process.pid == child.pid:
        raise MachineError(
            server.message
            or f"the embedded Airflow ended while it was starting; see {home.log('supervisor')}"
        )
    if child.returncode != LOCKED:
        log = home.log("supervisor")
        raise MachineError(
            "the embedded Airflow did not start; "
            f"the log of its supervisor is {log} and ends with:\n{last_lines(log)}"
        )


def _check_serves(server: AirflowServer, configs: Sequence[Path]) -> None:
    missing = [str(config) for config in configs if not server.serves(config)]
    if missing and server.state in ("starting", "up"):
        raise MachineError(
            f"an embedded Airflow runs already (process {server.process.pid}, {server.url}) "
            f"and serves {', '.join(server.configs)}, but not {', '.join(missing)}; "
            "stop that one, or set TRAINYARD_HOME to another folder for this one"
        )


def _wait_for_end(
    home: Home, child: subprocess.Popen | None, was_last: bool, say: Callable[[str], None]
) -> None:
    """Waits until the supervisor has ended everything, unless another command uses it."""
    noticed, deadline = (
        time.monotonic() + (_LAST_SECONDS if was_last else _NOT_LAST_SECONDS),
        time.monotonic() + _STOP_SECONDS,
    )
    while (server := AirflowServer.alive(home)) and time.monotonic() < deadline:
        if server.state == "up" and time.monotonic() > noticed:
            if child:
                say(
                    "The embedded Airflow stays up: another command uses it. "
                    f"Its supervisor is process {server.process.pid}."
                )
            return
        time.sleep(_POLL_SECONDS)
    if child and _killed(child):
        end_descendants(grace_seconds=1.0)  # the supervisor's orphans are our children now


def _killed(child: subprocess.Popen) -> bool:
    """Returns whether the supervisor was killed by a signal. It never ends itself by one."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(timeout=_STOP_SECONDS) < 0
    return False
