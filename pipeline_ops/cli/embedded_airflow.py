"""The embedded Airflow that a command runs on this machine: its folder, its programs, its end.

    with embedded_airflow(home, configs, on_message=print) as server:
        ...                                  # server.url responds, from our own process

The command runs Airflow's programs as its children, each in a session of its own, so that Ctrl-C in
a terminal reaches the command alone. It adopts every orphan below it, including jobs, and ends all
of them before it ends. Another command with the same configs joins, and the first one waits for it
at its end. If the command is killed, the kernel kills the programs with it. The next start ends the
workers that they have left, the orphan reaper ends jobs, and the runs are marked failed.

    <home>/airflow.db, airflow.cfg, logs/     Airflow's own
    <home>/secrets.json, passwords.json       random, made before the first start, readable by the
                                              owner only
    <home>/database-version                   the Airflow version of the database; absent during a
                                              migration
    <home>/port                               the port of the last time, which is used again
    <home>/lock                               held by the command that runs this Airflow
    <home>/users-lock                         held, shared, by the commands that have joined
    <home>/server.json                        its address, its password and its configs

There is one embedded Airflow per home. It is for one person on one machine: SQLite, a few local
workers, loopback only. A real installation takes the folder `dags/` and needs nothing of this.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
import pydantic

from pipeline_ops.cli.airflow_access import LOOPBACK, USER, Access
from pipeline_ops.cli.airflow_api import AirflowApi, parse_timestamp
from pipeline_ops.config.pipeline import find_config_files
from pipeline_ops.config.run_conf import TRUSTED_CONF
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.storage.local_files import open_private_folder, write_atomically, write_json
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import JsonModel, read_json_as
from pipeline_ops.system.host import adopt_orphans, die_with_parent
from pipeline_ops.system.locks import try_lock
from pipeline_ops.system.processes import (
    SAFE_PATH,
    ProcessIdentity,
    collect_children,
    end_descendants,
    find_descendants,
)
from pipeline_ops.system.temp_dirs import use_temporary_folder

OWNER_ONLY = 0o600
DAGS = CODE_ROOT / "dags"
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
"""Arguments of `airflow`.

The log servers would listen on every address of the machine, and are not needed on one host.
"""

MIGRATE = ("db", "migrate")

NOBODY_ELSE = Access()
_SETTINGS = {
    "core": {
        "executor": "LocalExecutor",
        "load_examples": "False",
        # A schedule in the YAML runs; another Airflow follows its own setting.
        "dags_are_paused_at_creation": "False",
        "parallelism": "4",  # each worker is a forked process, busy or not
        # A YAML changed twice within half a minute must show both times.
        "min_serialized_dag_update_interval": "0",
    },
    "api": {"workers": "1", "instance_name": "Trainyard"},
    # The gap between two tasks; the default of 1 s is for busy clusters.
    "scheduler": {"scheduler_idle_sleep_time": "0.2"},
    "dag_processor": {"parsing_processes": "1"},
    "workers": {
        # How long a finished task may hold its slot, and one that was marked failed may continue.
        "min_heartbeat_interval": "1",
        "max_failed_heartbeats": "15",  # by default it is 3 of 5 s each
    },
    "usage_data_collection": {"enabled": "False"},
}
_PARSE_INTERVAL_SECONDS, _PARSE_INTERVAL_SECONDS_PER_PIPELINE = 10.0, 0.3
"""The time until Airflow reads a changed YAML. Reading costs about 30 ms for each pipeline."""
_HEARTBEAT_KEYS = {
    "scheduler": "latest_scheduler_heartbeat",
    "dag_processor": "latest_dag_processor_heartbeat",
    "triggerer": "latest_triggerer_heartbeat",
}
_POLL_SECONDS, _CONNECT_SECONDS = 0.1, 1.0
_START_SECONDS, _READY_SECONDS = 300.0, 180.0
_GRACE_SECONDS = 2.5
_NUM_LOG_LINES = 15
_NEEDED_BYTES = 8 << 20
"""The database and the logs of a first run have half of it. Below it, programs may end."""


@dataclasses.dataclass(frozen=True)
class AirflowHome:
    """The folder of an embedded Airflow."""

    folder: Path

    @classmethod
    def from_environment(cls) -> AirflowHome:
        """The home below TRAINYARD_HOME, or below `.trainyard` in the repository."""
        parent = Path(os.environ.get("TRAINYARD_HOME") or CODE_ROOT / ".trainyard")
        return cls(parent.resolve() / "airflow")

    @property
    def server(self) -> Path:
        return self.folder / "server.json"

    @property
    def port(self) -> Path:
        return self.folder / "port"

    @property
    def database(self) -> Path:
        return self.folder / "airflow.db"

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets.json"

    @property
    def passwords(self) -> Path:
        return self.folder / "passwords.json"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def log(self, program: str) -> Path:
        return self.logs / f"{program}.log"

    def task_logs(self, dag_id: str, run_id: str, task: str) -> Path:
        """The folder of Airflow's own logs of a task, with a file for each try."""
        return self.logs / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task}"

    def make(self) -> None:
        """Raises MachineError if other users may write the folder, or have made it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        alternative = "set TRAINYARD_HOME to another folder"
        with open_private_folder(self.folder, alternative, forbidden_mode=0o022):
            self.logs.mkdir(exist_ok=True)


class Secrets(pydantic.BaseModel):
    """The secrets of a home. They stay, so that a browser remains logged in."""

    password: str = pydantic.Field(default_factory=lambda: secrets.token_urlsafe(12))
    passwords: dict[str, str] = {}
    """Of further users, by name."""
    jwt: str = pydantic.Field(default_factory=lambda: secrets.token_hex(64))
    session: str = pydantic.Field(default_factory=lambda: secrets.token_hex(32))
    fernet: str = pydantic.Field(
        default_factory=lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    )

    @classmethod
    def load_or_create(cls, home: AirflowHome, users: Iterable[str] = ()) -> Secrets:
        """Reads or makes the secrets, and writes Airflow's file of passwords."""
        loaded = read_json_as(cls, open_path(home.secrets)) or cls()
        for name in users:
            loaded.passwords.setdefault(name, secrets.token_urlsafe(12))
        present = {USER: loaded.password} | {name: loaded.passwords[name] for name in users}
        write_json(home.secrets, loaded.model_dump(), OWNER_ONLY)
        write_json(home.passwords, present, OWNER_ONLY)
        return loaded


class AirflowServer(JsonModel):
    """An embedded Airflow. `process` is the command that runs it. `started` is in Unix time."""

    home: AirflowHome
    state: Literal["starting", "up"] = "starting"
    process: ProcessIdentity
    port: int
    password: str
    passwords: dict[str, str] = {}
    """Of further users, by name."""
    configs: list[str]
    schedules: bool
    started: float
    access: Access = Access()
    _programs: dict[int, str] = {}
    """The names of the programs by pid, in the command that runs them."""

    @property
    def url(self) -> str:
        return f"http://{self.access.reached_at}:{self.port}"

    @property
    def is_own(self) -> bool:
        return self.process.pid == os.getpid()

    @classmethod
    def find_running(cls, home: AirflowHome) -> AirflowServer | None:
        server = read_json_as(cls, open_path(home.server))
        return server if server and server.process.is_alive() else None

    def check_alive(self) -> None:
        """Raises MachineError, with the reason, if it has ended."""
        for pid, status in (collect_children() if self.is_own else {}).items():
            if name := self._programs.pop(pid, ""):
                raise _make_program_error(self.home, name, status)
        if not self.process.is_alive():
            raise MachineError(
                "the embedded Airflow has ended with the command that ran it. Run this command "
                "again."
            )

    def wait_until_healthy(self, api: AirflowApi) -> None:
        """Waits until every program has sent a heartbeat since this start.

        A stopped program looks healthy for half a minute. Unfinished runs of an earlier Airflow of
        this home are then marked failed. Raises MachineError if a program dies, or after a timeout.
        """
        api.warm_up()
        api.log_in()
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            health = api.health()
            missing = [
                name
                for name, heartbeat_key in _HEARTBEAT_KEYS.items()
                if health[name]["status"] != "healthy"
                or parse_timestamp(health[name][heartbeat_key]) < self.started
            ]
            if not missing:
                break
            self.pause(deadline, f"no heartbeat from {', '.join(missing)}")
        if self.is_own:
            api.fail_runs_before(self.started)

    def wait_for_dag(self, api: AirflowApi, dag: str, since: float) -> dict[str, Any]:
        """Waits until Airflow has read the DAG after `since` (Unix time). Returns the API's answer.

        Raises ConfigError with Airflow's message if the DAG file cannot be imported, and
        MachineError after a timeout.
        """
        parse_requested, deadline = False, time.monotonic() + _READY_SECONDS
        changed, since = since > self.started, max(since, self.started)
        while True:
            found = api.dag(dag)
            parsed = found and found["last_parsed_time"]
            if found and parsed and parse_timestamp(parsed) >= since:
                return found
            if found and changed and not parse_requested:
                api.request_parse(found["file_token"])
                parse_requested = True
            if errors := api.list_import_errors(since):
                raise ConfigError("Airflow cannot import the DAG file:\n" + "\n".join(errors))
            self.pause(deadline, f"Airflow does not list the DAG {dag}")

    def pause(self, deadline: float, problem: str) -> None:
        """Sleeps between two polls. Raises MachineError if the server is down or time is up."""
        self.check_alive()
        if time.monotonic() > deadline:
            raise MachineError(f"{problem} in time. See the logs in {self.home.logs}.")
        time.sleep(_POLL_SECONDS)

    def write(self) -> None:
        write_json(self.home.server, self.model_dump(mode="json"), OWNER_ONLY)


@contextlib.contextmanager
def embedded_airflow(
    home: AirflowHome,
    configs: Sequence[Path],
    on_message: Callable[[str], None],
    schedules: bool = False,
    dags: Path = DAGS,
    access: Access = NOBODY_ELSE,
) -> Iterator[AirflowServer]:
    """Runs an embedded Airflow, or joins the one that runs in this home.

    A new one makes DAGs of `configs`, which are files or folders of files. A running one must serve
    them, with the `access` if that is not the default. `on_message` is called with a line for the
    user. With `schedules`, a new one starts the runs that are due by the clock. Raises MachineError
    if it does not start, or if the running one serves something else.
    """
    if problem := _describe_full_disk(home):
        raise MachineError(problem)
    home.make()
    deadline = time.monotonic() + _START_SECONDS
    with open(home.folder / "lock", "ab") as lock, open(home.folder / "users-lock", "ab") as users:
        while not try_lock(lock.fileno()):
            server = AirflowServer.find_running(home)
            if server and server.state == "up" and try_lock(users.fileno(), is_shared=True):
                _check_configs_served(server, configs)
                _check_access(server, access)
                on_message(f"Using the embedded Airflow that process {server.process.pid} runs.")
                yield server
                return
            if time.monotonic() > deadline:
                raise MachineError(
                    f"the embedded Airflow in {home.folder} was neither up nor gone after "
                    f"{_START_SECONDS:.0f} s. End its processes, then retry."
                )
            time.sleep(_POLL_SECONDS)
        adopt_orphans()
        _end_left_workers(home)
        names = [*map(str, configs)]
        programs = _run_programs(home, names, on_message, schedules, dags, access)
        with use_temporary_folder("airflow"), programs as server:
            yield server
            # Waits for the commands that have joined. After that, none can join any more.
            is_told = False
            while not try_lock(users.fileno()):
                if not is_told:
                    on_message("Another command uses this embedded Airflow. Waiting for its end.")
                    is_told = True
                server.check_alive()
                time.sleep(_POLL_SECONDS)


def _end_left_workers(home: AirflowHome) -> None:
    """Ends workers of the executor that a killed command has left. They never end by themselves.

    Airflow has overwritten their environment with their title.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_worker = " ".join(process.cmdline()).startswith("airflow worker")
            if is_worker and process.cwd() == str(home.folder):
                process.kill()


@contextlib.contextmanager
def _run_programs(
    home: AirflowHome,
    configs: Sequence[str],
    on_message: Callable[[str], None],
    schedules: bool,
    dags: Path,
    access: Access,
) -> Iterator[AirflowServer]:
    """Starts the programs, and ends all processes below this one at the end."""
    home_secrets = Secrets.load_or_create(home, access.users)
    server = AirflowServer(
        home=home,
        process=ProcessIdentity.from_pid(os.getpid()),
        port=_choose_port(home, access),
        password=home_secrets.password,
        passwords=home_secrets.passwords,
        configs=list(configs),
        schedules=schedules,
        started=time.time(),
        access=access,
    )
    environment = build_airflow_environment(
        os.environ, home, dags, configs, server.port, home_secrets, schedules, access
    )
    sessions: set[int] = set()
    is_first = not home.database.exists()
    on_message(f"Starting Airflow.{' The first start takes a little longer.' if is_first else ''}")
    try:
        server.write()
        _prepare_database(home, environment)
        for name, arguments in PROGRAMS.items():
            pid = _start(home, name, arguments, environment).pid
            server._programs[pid] = name
            sessions.add(pid)
        deadline = time.monotonic() + _START_SECONDS
        while not _is_listening(access.reached_at, server.port):
            server.pause(deadline, "the embedded Airflow did not start")
        server.state = "up"
        server.write()
        yield server
    finally:
        home.server.unlink(missing_ok=True)
        # Jobs have temporary files to remove. The state of Airflow is in its database.
        end_descendants(_GRACE_SECONDS, is_awaited=lambda pid: _find_session(pid) not in sessions)


def _prepare_database(home: AirflowHome, environment: Mapping[str, str]) -> None:
    version = importlib.metadata.version("apache-airflow-core")
    version_file = home.folder / "database-version"
    is_current = home.database.exists() and version_file.exists()
    if is_current and version_file.read_text() == version:
        return
    version_file.unlink(missing_ok=True)
    if status := _start(home, "db-migrate", MIGRATE, environment).wait():
        raise _make_program_error(home, "db-migrate", status)
    version_file.write_text(version)


def _start(
    home: AirflowHome, name: str, arguments: Iterable[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with open(home.log(name), "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=home.folder,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _find_session(pid: int) -> int:
    """Returns the session of a process, and 0 if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _make_program_error(home: AirflowHome, name: str, status: int) -> MachineError:
    """Makes the error with the end of the program's log, without terminal colours."""
    end = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    log, lines = home.log(name), list[str]()
    with contextlib.suppress(FileNotFoundError):
        lines = log.read_text(errors="replace").splitlines()[-_NUM_LOG_LINES:]
    tail = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(f"    {line}" for line in lines))
    ended = (
        f"the {name} of the embedded Airflow {end}. Its log is {log} and ends with:\n"
        f"{tail or '(empty)'}"
    )
    return MachineError("\n".join(filter(None, [_describe_full_disk(home), ended])))


def _describe_full_disk(home: AirflowHome) -> str:
    """Says that the disk of a home is full, and the cure. Empty if it is not."""
    folder = next(each for each in (home.folder, *home.folder.parents) if each.exists())
    if shutil.disk_usage(folder).free >= _NEEDED_BYTES:
        return ""
    return (
        f"the disk of {home.folder} is full. Free at least {_NEEDED_BYTES >> 20} MB of it, or set "
        "TRAINYARD_HOME to a folder on another disk. Then run the command again."
    )


def _check_configs_served(server: AirflowServer, configs: Sequence[Path]) -> None:
    served = set(server.configs)
    missing = [str(each) for each in configs if not {str(each), str(each.parent)} & served]
    if missing:
        raise MachineError(
            f"an embedded Airflow is already running (process {server.process.pid}, {server.url}). "
            f"It serves {', '.join(server.configs)}, but not {', '.join(missing)}. "
            "Stop it, or set TRAINYARD_HOME to another folder for this command. `trainyard ui` "
            "serves all configs of a folder, and runs of each join it."
        )


def _check_access(server: AirflowServer, access: Access) -> None:
    if access not in (NOBODY_ELSE, server.access):
        raise MachineError(
            f"an embedded Airflow is already running (process {server.process.pid}, {server.url}) "
            "with another address or other users. Stop it first."
        )


def make_bundle(dags: Path) -> dict[str, Any]:
    """Describes the DAG files in a folder as Airflow's setting takes it, without the name."""
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return {"classpath": local, "kwargs": {"path": str(dags)}}


def build_airflow_environment(
    inherited: Mapping[str, str],
    home: AirflowHome,
    dags: Path,
    configs: Sequence[str],
    port: int,
    home_secrets: Secrets,
    schedules: bool,
    access: Access = NOBODY_ELSE,
) -> dict[str, str]:
    """Builds the environment of every program of the embedded Airflow.

    Settings of the caller's shell for another Airflow are left out: with them, `db migrate` would
    change the other one's database. So is the variable that keeps Python from writing bytecode.
    """
    url = f"http://{access.reached_at}:{port}"
    num_pipelines = len(list(find_config_files(configs)))
    parse_interval = max(
        _PARSE_INTERVAL_SECONDS, _PARSE_INTERVAL_SECONDS_PER_PIPELINE * num_pipelines
    )
    instance_settings = {
        "core": {
            "fernet_key": home_secrets.fernet,
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_passwords_file": str(home.passwords),
            "simple_auth_manager_users": access.list_users(),
        },
        "api": {
            "host": access.host,
            "port": str(port),
            "base_url": url,
            "secret_key": home_secrets.session,
        },
        "api_auth": {"jwt_secret": home_secrets.jwt},
        "database": {"sql_alchemy_conn": f"sqlite:///{home.database}"},
        "dag_processor": {
            "dag_bundle_config_list": json.dumps([{"name": "trainyard", **make_bundle(dags)}]),
            "min_file_process_interval": str(round(parse_interval)),
        },
        "scheduler": {"use_job_schedule": str(schedules)},
    }
    kept = {
        name: value
        for name, value in inherited.items()
        if name.startswith("AIRFLOW_CONN_")
        or (not name.startswith(("AIRFLOW", "_AIRFLOW")) and name != "PYTHONDONTWRITEBYTECODE")
    }
    settings = {
        f"AIRFLOW__{section}__{key}".upper(): value
        for group in (_SETTINGS, instance_settings)
        for section, keys in group.items()
        for key, value in keys.items()
    }
    return {
        **kept,
        **SAFE_PATH,
        **settings,
        "AIRFLOW_HOME": str(home.folder),
        "TRAINYARD_CONFIGS": os.pathsep.join(configs),
        TRUSTED_CONF: str(home.folder),
        **_prepend(kept, "PYTHONPATH", str(CODE_ROOT), os.pathsep),
        **_prepend(kept, "NO_PROXY", "127.0.0.1,localhost", ","),
        **_prepend(kept, "no_proxy", "127.0.0.1,localhost", ","),
    }


def _prepend(variables: Mapping[str, str], name: str, value: str, separator: str) -> dict[str, str]:
    return {name: separator.join(filter(None, [value, variables.get(name)]))}


def _choose_port(home: AirflowHome, access: Access = NOBODY_ELSE) -> int:
    """Returns the port of the last time if it is free, so that a bookmark stays right.

    Raises MachineError if a person has named one that is in use.
    """
    if access.port:
        try:
            return find_free_port(access.port, access.host)
        except OSError as error:
            raise MachineError(
                f"cannot listen on {access.host}:{access.port} ({error.strerror}). Choose another "
                "port with --port, or an address of this machine with --host."
            ) from None
    try:
        last = int(home.port.read_text())
        port = find_free_port(last if 1024 <= last < 1 << 16 else 0)
    except (OSError, ValueError):
        port = find_free_port()
    write_atomically(home.port, str(port).encode())
    return port


def find_free_port(port: int = 0, host: str = LOOPBACK) -> int:
    """Returns a port of an address on which no process listens at this moment.

    Raises OSError if a process listens on the port that is asked for.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, port > 0)  # as the server does
        probe.bind((host, port))
        found: int = probe.getsockname()[1]
    return found


def _is_listening(host: str, port: int) -> bool:
    """Returns whether a process below this one accepts connections to a port.

    Raises MachineError if another process does, which has taken the port since it was chosen.
    """
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    for pid in find_descendants():
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    raise MachineError(
        f"another process took port {port} while the embedded Airflow was starting. "
        "Run the command again. It chooses another port."
    )
