"""Two teams in one real Airflow: a conf or a page of one team shows nothing of the other team.

All programs and jobs run as one user of the operating system, as where teams share workers. These
tests do not show isolation by the operating system.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli import by_hand
from cli.programs import ENDED, UP_SECONDS, Account, Programs
from config.test_overrides import AUTHORS, flat_key
from config_files import write_config
from processes import wait_until

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import OWNER_ONLY, PROGRAMS, make_bundle
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.storage.local_files import write_json

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

ACCOUNTS = {"alice": "user:team_a", "victor": "viewer:team_a", "bob": "user:team_b"}
CANARY = "canary-7f3a9b"
"""A text in the files of team B. Team A must never see it."""
PAGES = ("models", "progress", "report", "report/content")
CALLS_FOR_MANY = ("dagRuns", "dagRuns/{dag_run_id}/taskInstances", "clearDagRuns")
"""Calls of Airflow that read the body, which names the runs, before they check the user."""
_PASSWORD = "password"
_DAG_FILE = """
from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags  # Airflow reads only files with these words

globals().update(make_dags([{configs!r}], check_stages))
"""


class Teams(Programs):
    """The Airflow of both teams. Each has a finished pipeline, whose next run is cached."""

    def __init__(self, folder: Path):
        commands, bundles = dict(PROGRAMS), []
        triggerer = commands.pop("triggerer")
        for name in ("team_a", "team_b"):
            bundle = make_bundle(_make_team(folder / name))
            bundles.append({"name": name, "team_name": name, **bundle})
            commands[f"triggerer-{name}"] = (*triggerer, "--team-name", name)
        accounts = ",".join(f"{name}:{rights}" for name, rights in ACCOUNTS.items())
        settings = {
            "TRAINYARD_TRUSTED_CONF": "",  # only the embedded Airflow, of one user, has it
            "AIRFLOW__CORE__MULTI_TEAM": "True",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": accounts,
        }
        super().__init__(folder, os.environ, [], commands, settings)
        write_json(self.home.passwords, dict.fromkeys(ACCOUNTS, _PASSWORD), OWNER_ONLY)

    def begin(self) -> None:
        """Starts Airflow. The teams must exist before the bundles name them."""
        self.command("db", "migrate")
        for name in ("team_a", "team_b"):
            self.command("teams", "create", name)
        self.start(*self.commands)
        self.wait_for_health()

    def run(self, member: str, dag: str, conf: dict[str, Any]) -> tuple[str, dict[str, str]]:
        """Runs a DAG to its end as a member. Returns the run's id and the states of its tasks."""
        with AirflowApi(self.url, member, _PASSWORD) as api:
            api.log_in()
            wait_until(lambda: api.dag(dag) is not None, UP_SECONDS)
            api.pause(dag, paused=False)
            run_id = api.trigger(dag, conf)
            wait_until(lambda: api.run(dag, run_id)["state"] in ENDED, UP_SECONDS)
            return run_id, {task["task_id"]: task["state"] for task in api.tasks(dag, run_id)}


def _make_team(folder: Path) -> Path:
    """Makes the folders of a team and the artifacts of a run. Returns the folder of its DAGs."""
    is_b = folder.name == "team_b"
    for label in ("0", CANARY if is_b else "1"):
        (folder / "raw" / label).mkdir(parents=True)
        (folder / "raw" / label / "image.png").write_bytes(b"an image")
    values = {
        "pipeline": f"{folder.name}_digits",
        "description": CANARY if is_b else "",
        "storage": {"root": "../storage"},
        "preprocess.source.path": "../raw",
        "export": {"model": f"{folder.name}_digits", "registry": "../registry"},
    }
    config = write_config(folder / "configs", values, name=f"{folder.name}_digits.yaml")
    by_hand.finish(load_config(config), CANARY.encode() if is_b else b"bytes")
    (folder / "dags").mkdir()
    (folder / "dags" / "pipelines.py").write_text(_DAG_FILE.format(configs=str(config.parent)))
    return folder / "dags"


@pytest.fixture(scope="module")
def teams(tmp_path_factory) -> Iterator[Teams]:
    teams = Teams(tmp_path_factory.mktemp("teams"))
    try:
        teams.begin()
        yield teams
    finally:
        teams.end()


@pytest.fixture(scope="module")
def run_b(teams) -> str:
    """The id of a finished run of team B."""
    run_id, states = teams.run("bob", "team_b_digits", {})
    assert set(states.values()) == {"success"}, states
    return run_id


def call(teams: Teams, member: str, method: str, path: str, **more: Any) -> httpx.Response:
    """An answer to a member. One to team A must not hold team B's canary."""
    answer = Account(teams.url, member, _PASSWORD).call(method, path, **more)
    assert member == "bob" or CANARY not in answer.text, f"{member}: {method} {path}"
    return answer


def test_a_conf_that_reaches_for_the_other_team_ends_a_run_in_its_first_task(teams):
    """F1, F2, F6 and F12: keys of the author with paths of team B, flat and as a whole section."""
    theirs = teams.folder / "team_b"
    files = [*(theirs / "storage").rglob("*"), *(theirs / "registry").rglob("*")]
    before = [path.stat().st_mtime_ns for path in files]  # that of a folder: no new file in it
    flat = dict.fromkeys(map(flat_key, AUTHORS), str(theirs / "storage"))
    paths = {"storage.root": "storage", "export.registry": "registry", "train.hosts": "hosts.yaml"}
    sections = {"preprocess": {"source": {"path": str(theirs / "raw")}}}
    for conf in (flat, {key: str(theirs / path) for key, path in paths.items()}, sections):
        run_id, states = teams.run("alice", "team_a_digits", conf)
        assert states.pop("preprocess") == "failed"
        assert set(states.values()) == {"upstream_failed"}
        log = f"/api/v2/dags/team_a_digits/dagRuns/{run_id}/taskInstances/preprocess/logs/1"
        assert f"conf {min(conf)}: " in call(teams, "alice", "GET", log).text
    assert [path.stat().st_mtime_ns for path in files] == before


def test_every_page_of_the_other_teams_pipelines_is_forbidden(teams, run_b):
    """Checks every route of the application. Without a login, all routes are refused."""
    from pipeline_ops.orchestration.ui.app import app

    form = {"version": "1", "expected": "1", "reason": ""}
    sent = {"params": {"run_id": run_b}, "headers": {"sec-fetch-site": "same-origin"}}
    for method, path in ((method, route.path) for route in app.routes for method in route.methods):
        address = "/trainyard" + path.format(dag_id="team_b_digits", name="style", suffix="css")
        more = sent | ({"data": form} if method == "POST" else {})
        assert httpx.request(method, teams.url + address, **more).status_code == 401, address
        for member in ("alice", "victor"):
            answer = call(teams, member, method, address, **more)
            assert answer.status_code == (403 if "{dag_id}" in path else 200), address
            assert "team_b_digits" not in answer.text
    for page in PAGES:  # the pages exist, and who is of the team sees them
        address = f"/trainyard/pipelines/team_b_digits/{page}"
        assert call(teams, "bob", "GET", address, **sent).status_code == 200
        mine = address.replace("team_b", "team_a")
        expected = 200 if page == "models" else 404  # the run is one of team B
        assert call(teams, "alice", "GET", mine, **sent).status_code == expected


def test_every_call_of_airflow_on_a_dag_of_the_other_team_is_forbidden(teams, run_b):
    """Airflow's own rule, for every call that names a DAG in its address: ours is built on it."""
    values = defaultdict(lambda: "1", dag_id="team_b_digits", dag_run_id=run_b, task_id="train")
    for path, methods in call(teams, "bob", "GET", "/openapi.json").json()["paths"].items():
        for method in methods if "{dag_id}" in path else ():
            body = None if method == "get" else {}
            answer = call(teams, "alice", method.upper(), path.format_map(values), body=body)
            reads_first = path.removeprefix("/api/v2/dags/{dag_id}/") in CALLS_FOR_MANY
            assert answer.status_code in ((403, 422) if reads_first else (403,)), path
