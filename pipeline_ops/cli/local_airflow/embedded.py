"""The embedded Airflow: its folder, its secrets, its settings and its programs.

    <home>/airflow.db, airflow.cfg, logs/     Airflow's own
    <home>/secrets.json, passwords.json       random, made before the first start, readable by the
                                              owner only
    <home>/lock                               held by the supervisor while any process of this
                                              Airflow runs
    <home>/holders                            locked by every command that uses it; it ends with
                                              the last one (`usage_lock.py`)
    <home>/author-overrides/                  the values of `trainyard run --set` for single runs
                                              (`author_overrides.py`)
    <home>/server.json                        its address, its password and its configs

This module starts nothing. There is one embedded Airflow per home. It is for one person on one
machine: SQLite, a few local workers, loopback only. A real installation takes the folder `dags/`
and needs nothing of this.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import json
import os
import re
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.config.pipeline_files import config_files
from pipeline_ops.config.run_config import AUTHOR_OVERRIDES
from pipeline_ops.storage.atomic import read_json
from pipeline_ops.system.processes import SAFE_PATH, ProcessIdentity

USER = "admin"
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

_SETTINGS = {
    "core": {
        "executor": "LocalExecutor",
        "load_examples": "False",
        # A schedule in the YAML runs; another Airflow follows its own setting.
        "dags_are_paused_at_creation": "False",
        "parallelism": "4",  # each worker is a forked process, busy or not
        "simple_auth_manager_users": f"{USER}:admin",
        # A YAML changed twice within half a minute must show both times.
        "min_serialized_dag_update_interval": "0",
    },
    "api": {"host": "127.0.0.1", "workers": "1", "instance_name": "Trainyard"},
    "scheduler": {
        "scheduler_idle_sleep_time": "0.2"
    },  # the gap between two tasks; the default of 1 s is for busy clusters
    "dag_processor": {"parsing_processes": "1"},
    "workers": {
        # How long a finished task may hold its slot, and one that was marked failed may continue.
        "min_heartbeat_interval": "1",
        "max_failed_heartbeats": "15",  # by default it is 3 of 5 s each
    },
    "usage_data_collection": {"enabled": "False"},
}
_READING_SECONDS, _READING_SECONDS_PER_PIPELINE = 10.0, 0.3
"""The time until Airflow reads a changed YAML.

A pipeline costs about 30 ms each time. With many of them, a shorter time would keep a core busy.
"""


@dataclasses.dataclass(frozen=True)
class Home:
    """The folder of an embedded Airflow."""

    folder: Path

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Home:
        """The home below TRAINYARD_HOME, or below `.trainyard` in the repository."""
        return cls(
            Path(environment.get("TRAINYARD_HOME") or CODE_ROOT / ".trainyard").resolve()
            / "airflow"
        )

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def holders(self) -> Path:
        return self.folder / "holders"

    @property
    def server(self) -> Path:
        return self.folder / "server.json"

    @property
    def database(self) -> Path:
        return self.folder / "airflow.db"

    @property
    def author_overrides(self) -> Path:
        """The folder of the values of `trainyard run --set` for single runs."""
        return self.folder / "author-overrides"

    @property
    def migrated(self) -> Path:
        """The file with the Airflow version of the database. It is absent during a migration."""
        return self.folder / "database-version"

    @property
    def passwords(self) -> Path:
        return self.folder / "passwords.json"

    def log(self, program: str) -> Path:
        return self.folder / "logs" / f"{program}.log"

    def task_logs(self, dag_id: str, run_id: str, task: str) -> Path:
        """The folder of Airflow's own logs of a task, with a file for each try."""
        return self.folder / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task}"

    def needs_migration(self) -> bool:
        return (
            not self.database.exists()
            or not self.migrated.exists()
            or self.migrated.read_text() != airflow_version()
        )

    def make(self) -> None:
        """Makes the folder, for the owner only, and the folder of the logs."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log("").parent.mkdir(exist_ok=True)


@dataclasses.dataclass(frozen=True)
class Secrets:
    """The secrets of a home.

    They are made once, so that a browser stays logged in and stored values stay readable.
    """

    password: str
    jwt: str
    session: str
    fernet: str

    @classmethod
    def of(cls, home: Home) -> Secrets:
        """Reads or makes the secrets, and writes the password file.

        Airflow needs that file before its first start.
        """
        kept = read_json(home.folder / "secrets.json")
        made = cls(**kept) if kept else cls._random()
        write_private(home.folder / "secrets.json", dataclasses.asdict(made))
        write_private(home.passwords, {USER: made.password})
        return made

    @classmethod
    def _random(cls) -> Secrets:
        fernet = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        return cls(
            password=secrets.token_urlsafe(12),
            jwt=secrets.token_hex(64),
            session=secrets.token_hex(32),
            fernet=fernet,
        )


@dataclasses.dataclass(frozen=True)
class AirflowServer:
    """An embedded Airflow as its users see it.

    `state` is starting, up, stopping or failed. `started` is in seconds since 1970.
    """

    state: str
    process: ProcessIdentity
    port: int
    password: str
    configs: list[str]
    schedules: bool
    started: float
    message: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @classmethod
    def read(cls, home: Home) -> AirflowServer | None:
        """Reads the file, even if its process has ended."""
        value = read_json(home.server)
        return (
            cls(**{**value, "process": ProcessIdentity.from_json(value["process"])})
            if value
            else None
        )

    @classmethod
    def alive(cls, home: Home) -> AirflowServer | None:
        """The server that runs in this home."""
        server = cls.read(home)
        return server if server and server.process.is_alive() else None

    def write(self, home: Home) -> None:
        write_private(home.server, dataclasses.asdict(self))

    def serves(self, config: Path) -> bool:
        """Returns whether the server makes a DAG of the config."""
        return bool({str(config), str(config.parent)} & set(self.configs))


def airflow_version() -> str:
    return importlib.metadata.version("apache-airflow-core")


def airflow_command(arguments: Iterable[str]) -> list[str]:
    return [sys.executable, "-m", "airflow", *arguments]


def airflow_environment(
    inherited: Mapping[str, str],
    home: Home,
    dags: Path,
    configs: Sequence[str],
    port: int,
    own: Secrets,
    schedules: bool,
) -> dict[str, str]:
    """The environment of every program of the embedded Airflow.

    Settings that the caller's shell has for another Airflow are left out: with them, `db migrate`
    would change the other one's database. So is the variable that would keep Python from writing
    bytecode. Loopback addresses are exempt from proxies.
    """
    bundle = [
        {
            "name": "trainyard",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(dags)},
        }
    ]
    url = f"http://127.0.0.1:{port}"
    own_settings = {
        "core": {
            "fernet_key": own.fernet,
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_passwords_file": str(home.passwords),
        },
        "api": {"port": str(port), "base_url": url, "secret_key": own.session},
        "api_auth": {"jwt_secret": own.jwt},
        "database": {"sql_alchemy_conn": f"sqlite:///{home.database}"},
        "dag_processor": {
            "dag_bundle_config_list": json.dumps(bundle),
            "min_file_process_interval": str(_reading_interval(configs)),
        },
        "scheduler": {"use_job_schedule": str(schedules)},
    }
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("AIRFLOW", "_AIRFLOW")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    return (
        kept
        | SAFE_PATH
        | _as_variables(_SETTINGS)
        | _as_variables(own_settings)
        | {
            "AIRFLOW_HOME": str(home.folder),
            "TRAINYARD_CONFIGS": os.pathsep.join(configs),
            AUTHOR_OVERRIDES: str(home.author_overrides),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CODE_ROOT), kept.get("PYTHONPATH")])),
            "NO_PROXY": ",".join(filter(None, ["127.0.0.1,localhost", kept.get("NO_PROXY")])),
            "no_proxy": ",".join(filter(None, ["127.0.0.1,localhost", kept.get("no_proxy")])),
        }
    )


def _reading_interval(configs: Sequence[str]) -> int:
    """Returns the interval in whole seconds."""
    return round(
        max(_READING_SECONDS, _READING_SECONDS_PER_PIPELINE * len(list(config_files(configs))))
    )


def write_private(path: Path, value: Any) -> None:
    """Writes JSON by rename. Only the owner can read it at any moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(value, file, indent=2)
    os.replace(temporary, path)


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, without the colours, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return "(empty)"
    return "\n".join(f"    {_without_colours(line)}" for line in lines) or "(empty)"


def _without_colours(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def _as_variables(settings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {
        f"AIRFLOW__{section}__{key}".upper(): value
        for section, keys in settings.items()
        for key, value in keys.items()
    }
