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
import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline_ops.cli.local_airflow.embedded import (
    MIGRATE,
    PROGRAMS,
    AirflowServer,
    Home,
    Secrets,
    airflow_command,
    airflow_environment,
    airflow_version,
    last_lines,
)
from pipeline_ops.cli.local_airflow.ports import free_port, is_listening, listener
from pipeline_ops.cli.usage_lock import is_unused, open_holders
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.storage.atomic import exclusive_lock
from pipeline_ops.system.descendants import (
    adopt_orphans,
    descendants,
    die_with_parent,
    end_descendants,
    reap,
)
from pipeline_ops.system.processes import ProcessIdentity
from pipeline_ops.system.temp_dirs import own_temporary_folder

LOCKED = ExitCode.RETRY
"""The exit status if another supervisor has the home."""

_GRACE_SECONDS = 2.5
_LOCK_SECONDS = 0.5
_POLL_SECONDS = 0.1


class _Stop(Exception):
    """Stops the supervisor: its last user has gone, or a signal came."""


class Supervisor:
    """Starts the programs, watches them, ends them."""

    def __init__(self, home: Home, dags: Path, configs: Sequence[str], schedules: bool):
        own = Secrets.of(home)
        self._home = home
        self._programs: dict[int, tuple[str, subprocess.Popen]] = {}
        self._sessions: set[int] = set()
        self._server = AirflowServer(
            "starting",
            ProcessIdentity.of(os.getpid()),
            free_port(),
            own.password,
            list(configs),
            schedules,
            time.time(),
        )
        self._environment = airflow_environment(
            os.environ, home, dags, configs, self._server.port, own, schedules
        )
        self._holders = open_holders(home.holders)
        signal.signal(signal.SIGTERM, self._stop)

    def run(self) -> int:
        """Runs until the end, and returns the exit status once all started processes are gone."""
        try:
            self._say("starting")
            self._prepare_database()
            for name, arguments in PROGRAMS.items():
                self._start(name, arguments)
            self._watch(until=self._is_ours_listening)
            self._say("up")
            self._watch(until=lambda: False)
        except _Stop:
            self._say("stopping")
        except Exception as error:
            self._say("failed", str(error))
            return ExitCode.RETRY if isinstance(error, MachineError) else ExitCode.BUG
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end_descendants(_GRACE_SECONDS, spare=self._is_job)
        self._home.server.unlink()
        return ExitCode.SUCCESS

    def _prepare_database(self) -> None:
        if self._home.needs_migration():
            self._home.migrated.unlink(missing_ok=True)
            self._start("db-migrate", MIGRATE)
            self._watch(until=lambda: not self._programs)
            self._home.migrated.write_text(airflow_version())
        close_interrupted_runs(self._home.database)

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        with open(self._home.log(name), "wb") as log:
            process = subprocess.Popen(
                airflow_command(arguments),
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

    def _watch(self, until: Callable[[], bool]) -> None:
        """Waits. Raises _Stop after the last user has gone, and MachineError if a program dies."""
        while not until():
            if is_unused(self._holders):
                raise _Stop
            for pid, status in reap().items():
                self._bury(pid, status)
            time.sleep(_POLL_SECONDS)

    def _bury(self, pid: int, status: int) -> None:
        name, _ = self._programs.pop(pid, (None, None))
        if name and not (name == "db-migrate" and status == 0):
            log = self._home.log(name)
            how = (
                f"was killed by signal {-status}"
                if status < 0
                else f"ended with exit status {status}"
            )
            raise MachineError(
                f"the {name} of the embedded Airflow {how}; its log is {log} and ends with:\n"
                f"{last_lines(log)}"
            )

    def _is_ours_listening(self) -> bool:
        port = self._server.port
        if not is_listening(port):
            return False
        if listener(port, among=descendants()) is None:
            raise MachineError(
                f"another process took port {port} while the embedded Airflow was starting; "
                "start again, it chooses a new one"
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

    def _say(self, state: str, message: str = "") -> None:
        self._server = dataclasses.replace(self._server, state=state, message=message)
        self._server.write(self._home)

    def _stop(self, *_: object) -> None:
        raise _Stop


def close_interrupted_runs(database: Path) -> None:
    """Marks runs failed that a killed Airflow left unfinished. None of their processes runs now.

    Otherwise the scheduler would continue them, and the next run would wait for them. They are
    written to the database directly, because a scheduler must not see them before.
    """
    now = time.strftime("%Y-%m-%d %H:%M:%S.000000", time.gmtime())
    connection = sqlite3.connect(database)
    try:
        with connection:
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
    finally:
        connection.close()


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
    home = Home(arguments.home)
    home.make()
    try:
        with (
            exclusive_lock(home.lock, "the embedded Airflow", wait_seconds=_LOCK_SECONDS),
            own_temporary_folder("airflow"),
        ):
            return Supervisor(home, arguments.dags, arguments.configs, arguments.schedules).run()
    except MachineError as error:
        print(error, file=sys.stderr)
        return LOCKED


if __name__ == "__main__":
    sys.exit(main())
