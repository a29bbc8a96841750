"""The process that runs the embedded Airflow and cleans up after it.

    python -m pipeline_ops.cli.local_airflow.supervisor --home H --dags D [--schedules] CONFIG...

It lives in a session of its own, so Ctrl-C in a terminal does not reach it. It runs while a command
uses it. `usage_lock.py` detects the end of the last command, even of a killed one. The supervisor
adopts every orphan below it, including jobs in sessions of their own, and ends all of them before
it releases the home's lock. Then it removes their temporary files. Its state and messages are in
`<home>/server.json`. Only `server.py` starts it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline_ops.cli.local_airflow.home import (
    AirflowHome,
    AirflowServer,
    Secrets,
    read_log_tail,
)
from pipeline_ops.cli.local_airflow.ports import find_free_port, find_listener, is_listening
from pipeline_ops.cli.local_airflow.programs import (
    MIGRATE,
    PROGRAMS,
    build_airflow_command,
    build_airflow_environment,
    get_airflow_version,
)
from pipeline_ops.cli.usage_lock import is_unused, open_lock_file
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.system.host import adopt_orphans, die_with_parent
from pipeline_ops.system.locks import exclusive_lock
from pipeline_ops.system.processes import ProcessIdentity, end_descendants, find_descendants, reap
from pipeline_ops.system.temp_dirs import use_temporary_folder

ALREADY_RUNNING = ExitCode.RETRY
"""The exit status if another supervisor runs in this home."""

_GRACE_SECONDS = 2.5
_LOCK_SECONDS = 0.5
_POLL_SECONDS = 0.1


class _StopRequested(Exception):
    """A request to stop the supervisor: its last user ended, or a signal arrived."""


class Supervisor:
    """Starts the Airflow programs, monitors them and ends them."""

    def __init__(self, home: AirflowHome, dags: Path, configs: Sequence[str], schedules: bool):
        secrets = Secrets.load_or_create(home)
        self._home = home
        self._programs: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._sessions: set[int] = set()
        self._server = AirflowServer(
            home=home,
            state="starting",
            process=ProcessIdentity.from_pid(os.getpid()),
            port=find_free_port(),
            password=secrets.password,
            configs=list(configs),
            schedules=schedules,
            started=time.time(),
        )
        self._environment = build_airflow_environment(
            os.environ, home, dags, configs, self._server.port, secrets, schedules
        )
        self._usage_lock = open_lock_file(home.usage_lock)
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> int:
        """Runs until the end, and returns the exit status once all started processes are gone."""
        try:
            self._publish_state("starting")
            self._prepare_database()
            for name, arguments in PROGRAMS.items():
                self._start(name, arguments)
            self._monitor(until=self._is_api_server_listening)
            self._publish_state("up")
            self._monitor(until=lambda: False)
        except _StopRequested:
            self._publish_state("stopping")
        except Exception as error:
            self._publish_state("failed", str(error))
            return ExitCode.RETRY if isinstance(error, MachineError) else ExitCode.BUG
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end_descendants(_GRACE_SECONDS, is_awaited=self._is_job)
        self._home.server.unlink()
        return ExitCode.SUCCESS

    def _prepare_database(self) -> None:
        database, version_file = self._home.database, self._home.folder / "database-version"
        is_current = database.exists() and version_file.exists()
        if not is_current or version_file.read_text() != get_airflow_version():
            version_file.unlink(missing_ok=True)
            self._start("db-migrate", MIGRATE)
            self._monitor(until=lambda: not self._programs)
            version_file.write_text(get_airflow_version())
        close_interrupted_runs(database)

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        with open(self._home.log(name), "wb") as log:
            process = subprocess.Popen(
                build_airflow_command(arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._home.folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._programs[process.pid] = (name, process)
        self._sessions.add(process.pid)

    def _monitor(self, until: Callable[[], bool]) -> None:
        """Waits until the condition holds.

        Raises:
          _StopRequested: the last user has ended.
          MachineError: a program has died.
        """
        while not until():
            if is_unused(self._usage_lock):
                raise _StopRequested
            for pid, status in reap().items():
                self._check_exit(pid, status)
            time.sleep(_POLL_SECONDS)

    def _check_exit(self, pid: int, status: int) -> None:
        name, _ = self._programs.pop(pid, ("", None))
        if name and (name != "db-migrate" or status):
            log = self._home.log(name)
            outcome = (
                f"was killed by signal {-status}"
                if status < 0
                else f"ended with exit status {status}"
            )
            raise MachineError(
                f"the {name} of the embedded Airflow {outcome}. Its log is {log} and ends with:\n"
                f"{read_log_tail(log)}"
            )

    def _is_api_server_listening(self) -> bool:
        port = self._server.port
        if not is_listening(port):
            return False
        if find_listener(port, candidates=find_descendants()) is None:
            raise MachineError(
                f"another process took port {port} while the embedded Airflow was starting. "
                "Run the command again. It chooses another port."
            )
        return True

    def _is_job(self, pid: int) -> bool:
        """Returns whether a process is a job, in a session of its own.

        Jobs have temporary files to remove. The whole state of Airflow is in its database.
        """
        try:
            return os.getsid(pid) not in self._sessions
        except ProcessLookupError:
            return False

    def _publish_state(self, state: str, message: str = "") -> None:
        self._server = self._server.model_copy(update={"state": state, "message": message})
        self._server.write()

    def _stop(self, *_: object) -> None:
        raise _StopRequested


def close_interrupted_runs(database: Path) -> None:
    """Marks runs failed that a killed Airflow left unfinished. None of their processes runs now.

    Otherwise the scheduler would continue them, and the next run would wait for them. They are
    written to the database directly, because a scheduler must not see them before.
    """
    now = time.strftime("%Y-%m-%d %H:%M:%S.000000", time.gmtime())
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "UPDATE task_instance SET state = 'failed', end_date = ?, trigger_id = NULL "
            "WHERE state IN ('running', 'queued', 'scheduled', 'deferred', 'restarting', "
            "'up_for_retry', 'up_for_reschedule')",
            (now,),
        )
        connection.execute(
            "UPDATE dag_run SET state = 'failed', end_date = ? "
            "WHERE state IN ('running', 'queued')",
            (now,),
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--dags", type=Path, required=True)
    parser.add_argument("--schedules", action="store_true")
    parser.add_argument("configs", nargs="*")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    adopt_orphans()
    home = AirflowHome(arguments.home)
    home.make()
    try:
        with (
            exclusive_lock(
                home.folder / "lock", "the embedded Airflow", wait_seconds=_LOCK_SECONDS
            ),
            use_temporary_folder("airflow"),
        ):
            return Supervisor(home, arguments.dags, arguments.configs, arguments.schedules).run()
    except MachineError as error:
        print(error, file=sys.stderr)
        return ALREADY_RUNNING


if __name__ == "__main__":
    sys.exit(main())
