"""Two teams in one real Airflow, and accounts that see only their own team.

Each team has a bundle of DAGs, YAML files, raw data, a storage root and a registry. All programs
and jobs run as one user of the operating system, as in an Airflow whose teams share workers.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from cli.programs import ENDED, UP_SECONDS, Account, Programs
from config_files import write_config, write_digits
from processes import wait_until

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import OWNER_ONLY, PROGRAMS, make_bundle
from pipeline_ops.planning.job_kinds import JOBS
from pipeline_ops.storage.local_files import write_json
from pipeline_ops.storage.open_store import open_root

CANARY = "canary-7f3a9b"
"""A text in every kind of file of team B. Team A must never see it."""
ACCOUNTS = {
    "alice": "user:team_a",
    "victor": "viewer:team_a",
    "bob": "user:team_b",
    "admin": "admin",
}
_PASSWORD = "password"
_DAG_FILE = """
from beam_jobs.stages import check_stages
from pipeline_ops.operators.dags import make_dags  # Airflow reads only files with these words

globals().update(make_dags([{configs!r}], check_stages))
"""
_IMAGES_PER_CLASS = 40


@dataclasses.dataclass(frozen=True)
class Team:
    """The folder of a team, and the paths in it."""

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

    def layout(self, pipeline: str, storage: str = "storage") -> Layout:
        return Layout(open_root(self.folder / storage), pipeline)

    def add_pipeline(self, name: str, storage: str = "storage", **changes: Any) -> None:
        """Writes a YAML of one worker and few epochs. `train__epochs=3` changes a key."""
        values = {
            "pipeline": name,
            "description": CANARY if self.name == "team_b" else "",
            "storage": {"root": f"../{storage}"},
            "preprocess.source.path": "../raw",
            "preprocess.shards": 2,
            "train.workers": 1,
            "train.global_batch_size": 64,
            "train.epochs": 2,
            "train.early_stopping": None,
            "train.checkpoint_every_steps": 20,
            "evaluate.gate": [{"metric": "accuracy", "at_least": 0.01}],
            "export": {"model": name, "registry": "../registry"},
        }
        for task in JOBS:
            values[f"{task}.retries"] = 1  # a busy Airflow loses some tries before our code runs
        values |= {key.replace("__", "."): value for key, value in changes.items()}
        write_config(self.configs, values, name=f"{name}.yaml")


class Teams(Programs):
    """The Airflow of both teams. `a` attacks, `b` is observed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.a, self.b = Team("team_a", folder / "a"), Team("team_b", folder / "b")
        bundles = [
            {"name": team.name, "team_name": team.name, **make_bundle(team.folder / "dags")}
            for team in (self.a, self.b)
        ]
        settings = {
            "TRAINYARD_TRUSTED_CONF": "",  # only the embedded Airflow, of one user, has it
            "AIRFLOW__CORE__MULTI_TEAM": "True",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                f"{name}:{rights}" for name, rights in ACCOUNTS.items()
            ),
        }
        commands = dict(PROGRAMS)
        triggerer = commands.pop("triggerer")
        for team in (self.a, self.b):
            commands[f"triggerer-{team.name}"] = (*triggerer, "--team-name", team.name)
        super().__init__(folder, environment, [], commands, settings)
        write_json(self.home.passwords, dict.fromkeys(ACCOUNTS, _PASSWORD), OWNER_ONLY)
        _make_folders(self.a, self.b)

    def begin(self) -> None:
        """Starts Airflow. The teams must exist before the bundles name them."""
        self.command("db", "migrate")
        for team in (self.a, self.b):
            self.command("teams", "create", team.name)
        self.start(*self.commands)
        self.wait_for_health()
        with AirflowApi(self.url, "", "") as api:
            api.warm_up()

    def log_in(self, name: str) -> Member:
        return Member(self.url, name)

    def anonymous(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False)


def _make_folders(*teams: Team) -> None:
    """Makes the folders of the teams, with some raw images of each class.

    The folder of team B's first class has the canary in its name.
    """
    first, *others = teams
    write_digits(first.raw)
    for label in first.raw.iterdir():
        for image in sorted(label.iterdir())[_IMAGES_PER_CLASS:]:
            image.unlink()
    for team in others:
        shutil.copytree(first.raw, team.raw)
        (team.raw / "0").rename(team.raw / CANARY)
    for team in teams:
        for name in ("configs", "dags", "registry", "storage"):
            (team.folder / name).mkdir(exist_ok=True)
        (team.folder / "dags" / "pipelines.py").write_text(
            _DAG_FILE.format(configs=str(team.configs))
        )


class Member(Account):
    """An account of a team. What a member of team A is shown must not hold team B's canary."""

    def __init__(self, url: str, name: str):
        super().__init__(url, name, _PASSWORD)
        self._may_see = "team_a" not in ACCOUNTS[name]

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        answer = super().call(method, path, body, **more)
        assert self._may_see or CANARY not in answer.text, (
            f"{self.name} is shown data of team B by {method} {path}: {answer.text}"
        )
        return answer

    def dag(self, dag: str, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.call(method, f"/api/v2/dags/{dag}/{path}", body)

    def wait_for_dag(self, dag: str) -> None:
        """Waits until Airflow has read the file of the DAG, and unpauses it."""
        wait_until(lambda: self.call("GET", f"/api/v2/dags/{dag}").is_success, UP_SECONDS)
        assert self.call(
            "PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": False}
        ).is_success

    def trigger(self, dag: str, conf: Any = None) -> TeamRun:
        """Triggers a run. Fails if Airflow rejects it."""
        run_id = f"manual__{self.name}-{time.time_ns()}"
        times = {"logical_date": None, "run_after": "2026-01-01T00:00:00Z"}
        body = {"dag_run_id": run_id, "conf": {} if conf is None else conf, **times}
        answer = self.dag(dag, "POST", "dagRuns", body)
        assert answer.is_success, answer.text
        return TeamRun(self, dag, answer.json()["dag_run_id"])


@dataclasses.dataclass(frozen=True)
class TeamRun:
    """A run, from the view of the account that has started it."""

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

    def get_state(self, task: str) -> str | None:
        return self.tasks().get(task, {"state": None})["state"]

    def wait_for(self, task: str, states: Collection[str] = ENDED, seconds: float = 240) -> str:
        """Waits until a task has one of some states. Fails if it ends in another one."""

        def find_state() -> str | None:
            found = self.get_state(task)
            assert found in states or found not in ENDED, (
                f"{task} of {self.dag} is {found}:\n{self.log(task)}"
            )
            return found if found in states else None

        return wait_until(find_state, seconds)

    def wait_for_end(self, seconds: float = 240) -> dict[str, str]:
        """Waits for the end of the run. Returns the states of all tasks."""
        wait_until(lambda: self.call("GET", "").json()["state"] in ("success", "failed"), seconds)
        return {name: task["state"] for name, task in self.tasks().items()}

    def log(self, task: str) -> str:
        """The log of the last try, as Airflow shows it."""
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
