"""The folder of an embedded Airflow and the files in it.

    <home>/airflow.db, airflow.cfg, logs/     Airflow's own
    <home>/secrets.json, passwords.json       random, made before the first start, readable by the
                                              owner only
    <home>/database-version                   the Airflow version of the database; absent during a
                                              migration
    <home>/lock                               held by the supervisor while any process of this
                                              Airflow runs
    <home>/usage-lock                         locked by every command that uses it; it ends with
                                              the last one (`usage_lock.py`)
    <home>/server.json                        its address, its password and its configs

This module starts nothing. There is one embedded Airflow per home. It is for one person on one
machine: SQLite, a few local workers, loopback only. A real installation takes the folder `dags/`
and needs nothing of this.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pydantic

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.storage.atomic import write_json
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.system.processes import ProcessIdentity

USER = "admin"
OWNER_ONLY = 0o600


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
    def usage_lock(self) -> Path:
        return self.folder / "usage-lock"

    @property
    def server(self) -> Path:
        return self.folder / "server.json"

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
        """Makes the folder, for the owner only, and the folder of the logs."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True)


class Secrets(pydantic.BaseModel):
    """The secrets of a home.

    They are made once, so that a browser stays logged in and stored values stay readable.
    """

    password: str = pydantic.Field(default_factory=lambda: secrets.token_urlsafe(12))
    jwt: str = pydantic.Field(default_factory=lambda: secrets.token_hex(64))
    session: str = pydantic.Field(default_factory=lambda: secrets.token_hex(32))
    fernet: str = pydantic.Field(
        default_factory=lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    )

    @classmethod
    def load_or_create(cls, home: AirflowHome) -> Secrets:
        """Reads or makes the secrets, and writes the password file.

        Airflow needs that file before its first start.
        """
        loaded = read_json_as(cls, open_path(home.secrets)) or cls()
        write_json(home.secrets, loaded.model_dump(), OWNER_ONLY)
        write_json(home.passwords, {USER: loaded.password}, OWNER_ONLY)
        return loaded


class AirflowServer(pydantic.BaseModel):
    """An embedded Airflow as its users see it. `started` is in seconds since 1970."""

    model_config = pydantic.ConfigDict(frozen=True)

    home: AirflowHome
    state: Literal["starting", "up", "stopping", "failed"]
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
    def read(cls, home: AirflowHome) -> AirflowServer | None:
        """Reads the file, even if its process has ended."""
        return read_json_as(cls, open_path(home.server))

    @classmethod
    def find_running(cls, home: AirflowHome) -> AirflowServer | None:
        """The server that runs in this home."""
        server = cls.read(home)
        return server if server and server.process.is_alive() else None

    def write(self) -> None:
        write_json(self.home.server, self.model_dump(mode="json"), OWNER_ONLY)

    def serves(self, config: Path) -> bool:
        """Returns whether the server makes a DAG of the config."""
        return bool({str(config), str(config.parent)} & set(self.configs))


def prepend(
    variables: Mapping[str, str], name: str, value: str, separator: str = os.pathsep
) -> dict[str, str]:
    """The environment variable `name` with `value` before its present value."""
    return {name: separator.join(filter(None, [value, variables.get(name)]))}


def read_log_tail(log: Path, count: int = 15) -> str:
    """Returns the last lines of a log without terminal colours, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        lines = []
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(f"    {line}" for line in lines)) or "(empty)"
