"""Two teams in one real Airflow, and accounts that see only their own team.

Each team has a bundle of DAGs, YAML files, raw data, a storage root and a registry. All programs
and jobs run as one user of the operating system, as in an Airflow whose teams share workers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import yaml
from cli.programs import DIGITS, SOON, Programs, wait_until

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi
from pipeline_ops.cli.local_airflow.embedded import (
    PROGRAMS,
    Home,
    Secrets,
    airflow_environment,
    write_private,
)
from pipeline_ops.cli.local_airflow.ports import free_port

CANARY = "canary-7f3a9b"
"""Stands in every kind of file of team B: nothing that team A is shown or left may have it."""
ACCOUNTS = {
    "alice": "user:team_a",
    "victor": "viewer:team_a",
    "bob": "user:team_b",
    "admin": "admin",
}
_PASSWORD = "password"
_ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")
_DAG_FILE = """
from beam_jobs.stages import check_stages
from pipeline_ops.operators.dags import make_dags  # Airflow reads only files with these words

globals().update(make_dags([{configs!r}], check_stages, models_dag={models_dag!r}))
"""
_IMAGES_PER_CLASS = 40
_UP_SECONDS = 240


@dataclasses.dataclass(frozen=True)
class Team:
    """The folder of a team and what lies where in it."""

    name: str
    folder: Path

    @property
    def configs(self) -> Path:
        return self.folder / "configs"

    @property
    def raw(self) -> Path:
        return self.folder / "raw"

    @property
    def registry(self) -> Path:
        return self.folder / "registry"

    @property
    def models_dag(self) -> str:
        return f"{self.name}_models"

    def layout(self, pipeline: str, storage: str = "storage") -> Layout:
        return Layout(self.folder / storage, pipeline)

    def add_pipeline(self, name: str, storage: str = "storage", **changes: Any) -> None:
        """A YAML of one worker and one epoch; `train__epochs=3` changes a key."""
        values = yaml.safe_load(DIGITS.read_text())
        values |= {
            "pipeline": name,
            "description": CANARY if self.name == "team_b" else "",
            "storage": {"root": f"../{storage}"},
        }
        values["preprocess"]["source"]["path"] = "../raw"
        values["preprocess"]["shards"] = 2
        values["train"] |= {
            "workers": 1,
            "global_batch": 64,
            "epochs": 2,
            "early_stopping": None,
            "checkpoint_every_steps": 20,
        }
        values["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.01}]
        values["export"] = {"model": name, "registry": "../registry"}
        for task in ("preprocess", "train", "evaluate", "export"):
            values[task]["retries"] = (
                1  # a busy Airflow loses a try now and then, before a line of ours runs
            )
        for key, value in changes.items():
            *sections, last = key.split("__")
            section = values
            for part in sections:
                section = section[part]
            section[last] = value
        (self.configs / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


class Teams(Programs):
    """The Airflow of both teams; `a` attacks, `b` is watched."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.a, self.b = Team("team_a", folder / "a"), Team("team_b", folder / "b")
        home, port = Home(folder / "airflow"), free_port()
        home.make()
        own = Secrets.of(home)
        write_private(home.passwords, dict.fromkeys(ACCOUNTS, _PASSWORD))
        settings = airflow_environment(environment, home, CODE_ROOT / "dags", [], port, own, True)
        bundles = [
            {
                "name": team.name,
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "team_name": team.name,
                "kwargs": {"path": str(team.folder / "dags")},
            }
            for team in (self.a, self.b)
        ]
        settings |= SOON | {
            "AIRFLOW__CORE__MULTI_TEAM": "True",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                f"{name}:{rights}" for name, rights in ACCOUNTS.items()
            ),
        }
        triggerers = {
            f"triggerer-{team.name}": (*PROGRAMS["triggerer"], "--team-name", team.name)
            for team in (self.a, self.b)
        }
        commands = {
            name: words for name, words in PROGRAMS.items() if name != "triggerer"
        } | triggerers
        super().__init__(folder, home, commands, settings)
        _make_folders(self.a, self.b)

    def begin(self) -> None:
        """The teams are Airflow's before the bundles name them."""
        self.command("db", "migrate")
        for team in (self.a, self.b):
            self.command("teams", "create", team.name)
        self.start(*self.commands)
        wait_until(self.is_healthy, _UP_SECONDS)
        with AirflowApi(self.url, "", "") as api:
            api.warm_up()

    def log_in(self, name: str) -> Member:
        return Member(self.url, name)

    def anonymous(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False)


def _make_folders(*teams: Team) -> None:
    """With some raw images of each class.

    Those of team B's first class are in a folder whose name is the canary.
    """
    first, *others = teams
    subprocess.run(
        [sys.executable, "-m", "beam_jobs.sources.digits", first.raw],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for label in first.raw.iterdir():
        for image in sorted(label.iterdir())[_IMAGES_PER_CLASS:]:
            image.unlink()
    for team in others:
        shutil.copytree(first.raw, team.raw)
        (team.raw / "0").rename(team.raw / CANARY)
    for team in teams:
        for name in ("configs", "dags", "registry", "storage"):
            (team.folder / name).mkdir()
        (team.folder / "dags" / "pipelines.py").write_text(
            _DAG_FILE.format(configs=str(team.configs), models_dag=team.models_dag)
        )


class Member:
    """An account that is logged in.

    What is shown to one of team A must not hold team B's canary.
    """

    def __init__(self, url: str, name: str):
        self.name, self._may_see = name, "team_a" not in ACCOUNTS[name]
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self._token = ""

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Logs in where that has not been done.

        Asks again where the server fails, as two transactions of Airflow's can meet in a deadlock.
        """
        deadline = time.monotonic() + 60
        while (
            answer := self._call_once(method, path, body, more)
        ).is_server_error and time.monotonic() < deadline:
            time.sleep(0.5)
        assert self._may_see or CANARY not in answer.text, (
            f"{self.name} is shown what is team B's by {method} {path}: {answer.text}"
        )
        return answer

    def _call_once(
        self, method: str, path: str, body: Any, more: Mapping[str, Any]
    ) -> httpx.Response:
        if not self._token:
            login = self._client.post(
                "/auth/token", json={"username": self.name, "password": _PASSWORD}
            )
            if login.is_error:
                return login
            self._token = login.json()["access_token"]
        headers = {"Authorization": f"Bearer {self._token}"} | more.pop("headers", {})
        return self._client.request(method, path, json=body, headers=headers, **more)

    def dag(self, dag: str, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.call(method, f"/api/v2/dags/{dag}/{path}", body)

    def wait_for_dag(self, dag: str) -> None:
        """Until Airflow has read its file; then it is unpaused."""
        wait_until(lambda: self.call("GET", f"/api/v2/dags/{dag}").is_success, _UP_SECONDS)
        assert self.call(
            "PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": False}
        ).is_success

    def trigger(self, dag: str, conf: Any = None) -> TeamRun:
        """Fails where Airflow refuses the run."""
        answer = self.try_to_trigger(dag, conf)
        assert answer.is_success, answer.text
        return TeamRun(self, dag, answer.json()["dag_run_id"])

    def try_to_trigger(self, dag: str, conf: Any = None) -> httpx.Response:
        run_id = f"manual__{self.name}-{time.time_ns()}"
        return self.dag(
            dag,
            "POST",
            "dagRuns",
            {
                "dag_run_id": run_id,
                "logical_date": None,
                "run_after": "2026-01-01T00:00:00Z",
                "conf": {} if conf is None else conf,
            },
        )


@dataclasses.dataclass(frozen=True)
class TeamRun:
    """A run, as the account that has started it sees it."""

    member: Member
    dag: str
    run_id: str

    @property
    def path(self) -> str:
        return f"dagRuns/{quote(self.run_id, safe='')}"

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.member.dag(self.dag, method, f"{self.path}/{path}".rstrip("/"), body)

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {
            task["task_id"]: task
            for task in self.call("GET", "taskInstances").json()["task_instances"]
        }

    def state_of(self, task: str) -> str | None:
        return self.tasks().get(task, {"state": None})["state"]

    def wait_for(self, task: str, states: Collection[str] = _ENDED, seconds: float = 240) -> str:
        """The state of a task, once it is one of those.

        Fails where the task has ended in another.
        """
        found: list[str | None] = [None]

        def is_so() -> bool:
            found[0] = self.state_of(task)
            assert found[0] in states or found[0] not in _ENDED, (
                f"{task} of {self.dag} is {found[0]}:\n{self.log(task)}"
            )
            return found[0] in states

        wait_until(is_so, seconds)
        return found[0]

    def wait_for_end(self, seconds: float = 240) -> dict[str, str]:
        """The states of all tasks."""
        wait_until(lambda: self.call("GET", "").json()["state"] in ("success", "failed"), seconds)
        return {name: task["state"] for name, task in self.tasks().items()}

    def log(self, task: str) -> str:
        """Of the last try, as Airflow shows it."""
        number = self.tasks()[task]["try_number"]
        answer = self.call("GET", f"taskInstances/{task}/logs/{max(1, number)}?full_content=true")
        return "\n".join(map(json.dumps, answer.json()["content"]))

    def clear(self, *tasks: str) -> None:
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": list(tasks),
            "only_failed": False,
            "reset_dag_runs": True,
        }
        answer = self.member.dag(self.dag, "POST", "clearTaskInstances", body)
        assert answer.is_success, answer.text

    def mark(self, task: str, state: str) -> None:
        answer = self.call("PATCH", f"taskInstances/{task}", {"new_state": state})
        assert answer.is_success, answer.text


def environment() -> dict[str, str]:
    """Of the Airflow: that of the tests."""
    return dict(os.environ)
