"""Broken configs next to a pipeline that runs, in a real Airflow with its DAG processor (F11)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow_ui import needs_chromium, open_browser
from config.broken_yamls import ALL
from config_files import write_config, write_digits
from held_airflow import run_airflow

from pipeline_ops.cli.airflow_api import AirflowApi
from pipeline_ops.cli.embedded_airflow import (
    AirflowHome,
    AirflowServer,
)
from pipeline_ops.errors import MachineError

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
_ASK_SECONDS = 30.0
BEGUN = ("running", "deferred")


def write_pipeline(folder: Path, name: str) -> Path:
    """Writes a pipeline of the digits that is as fast as possible."""
    changes = {
        "pipeline": name,
        "storage.root": str(folder / "storage"),
        "preprocess.source.path": str(folder / "raw"),
        "train.epochs": 2,
        "train.workers": 1,
        "train.early_stopping": None,
        "train.retries": 5,
        "evaluate.gate": [{"metric": "accuracy", "at_least": 0.01}],
        "export.model": name,
    }
    return write_config(folder / "configs", changes, name=f"{name}.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The shipped DAG files, two good pipelines, and raw data."""
    folder = tmp_path_factory.mktemp("broken")
    shutil.copytree(ROOT / "dags", folder / "airflow", ignore=shutil.ignore_patterns("__pycache__"))
    # Airflow's logs hold a link to a folder next to them.
    (folder / "airflow" / ".airflowignore").write_text("logs/\n")
    write_digits(folder / "raw")
    for name in ("good", "changed"):
        write_pipeline(folder, name)
    return folder


@pytest.fixture(scope="module")
def airflow(folder, whole_module_survivors) -> Iterator[AirflowApi]:
    home, configs, dags = folder / "airflow", folder / "configs", ("good", "changed")
    with run_airflow(home, configs, dags, whole_module_survivors.environment) as api:
        yield api


def tags(api: AirflowApi, dag_id: str) -> set[str]:
    """The tags of a DAG. Empty if Airflow does not list it, or only as stale."""
    return {tag["name"] for tag in (api.dag(dag_id) or {"tags": []})["tags"]}


def parse_until(api: AirflowApi, condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Requests parses of the DAG file until a condition holds."""
    deadline, asked = time.monotonic() + seconds, 0.0
    while not condition():
        assert time.monotonic() < deadline
        if time.monotonic() - asked > _ASK_SECONDS:
            api.request_parse(api.dag("good")["file_token"])
            asked = time.monotonic()
        time.sleep(1)


def check_success(api: AirflowApi, dag_id: str, run_id: str) -> None:
    """Waits for the end of a run, which must be a success."""
    parse_until(api, lambda: api.run(dag_id, run_id)["state"] in ("success", "failed"), 600)
    assert api.run(dag_id, run_id)["state"] == "success"


@pytest.fixture(scope="module")
def corpus(folder, airflow) -> str:
    """Writes the whole corpus while a run of the good pipeline trains. Returns that run's id."""
    run_id = airflow.trigger("good", {"train.epochs": 40})
    parse_until(airflow, lambda: list_states(airflow, "good", run_id).get("train") in BEGUN)
    for broken in ALL:
        broken.write(folder / "configs")
    parse_until(airflow, lambda: "broken" in tags(airflow, ALL[0].name))
    return run_id


def test_a_run_ends_though_sixty_configs_beside_it_become_broken(airflow, corpus):
    """F11: a broken file affects only its own pipeline. No other DAG becomes stale."""
    assert len(ALL) >= 60
    check_success(airflow, "good", corpus)
    assert "broken" not in tags(airflow, "good")
    tagged = {broken.name: tags(airflow, broken.name) for broken in ALL}
    assert tagged == dict.fromkeys(tagged, {"trainyard", "broken"})
    assert airflow.list_import_errors(since=0.0) == []


def test_a_healthy_pipeline_starts_beside_them(airflow, folder, corpus):
    """Starts a run as `trainyard run` does, which waits for its DAG and checks import errors."""
    home = AirflowHome(folder / "airflow")
    AirflowServer.find_running(home).wait_for_dag(airflow, "good", since=time.time())
    run_id = airflow.trigger("good", {})
    check_success(airflow, "good", run_id)


def test_a_broken_pipeline_cannot_be_triggered_and_says_why(airflow, folder, corpus):
    for conf in ({}, {"broken": ""}, {"broken": "x", "train.epochs": 1}):
        rule = r"(?s)400 .*tab\.yaml:8: .*a tab in the .*indentation"
        with pytest.raises(MachineError, match=rule):
            airflow.trigger("tab", conf)
    assert airflow.list_active_runs("tab") == []
    page = airflow._call("GET", "/api/v2/dags/tab/details")["doc_md"]
    assert f"    {folder}/configs/tab.yaml:8: not valid YAML: a tab" in page


def test_a_pipeline_keeps_its_runs_while_it_is_broken_and_comes_back_when_it_is_mended(
    airflow, folder
):
    run_id = airflow.trigger("changed", {"train.warm_start": "version 99"})
    parse_until(airflow, lambda: airflow.run("changed", run_id)["state"] == "failed")
    file = folder / "configs" / "changed.yaml"
    good = file.read_text()
    file.write_text(good.replace("workers: 1", "workers:1"))
    parse_until(airflow, lambda: tags(airflow, "changed") == {"trainyard", "broken"})
    assert airflow.run("changed", run_id)["state"] == "failed"
    with pytest.raises(MachineError, match="a space is missing after the colon"):
        airflow.trigger("changed", {})
    file.write_text(good)
    parse_until(airflow, lambda: "broken" not in (tags(airflow, "changed") or {"broken"}))
    assert airflow.run("changed", run_id)["state"] == "failed"
    assert airflow.trigger("changed", {"train.warm_start": "version 99"}) != run_id


def test_a_run_waits_while_its_pipeline_is_broken_and_ends_after_all(airflow, folder):
    """Its training ends meanwhile. No task of it starts, so none fails."""
    file = folder / "configs" / "changed.yaml"
    good = file.read_text()
    run_id = airflow.trigger("changed", {"train.epochs": 41})
    parse_until(airflow, lambda: list_states(airflow, "changed", run_id).get("train") in BEGUN)
    file.write_text("pipeline: changed\n[")
    parse_until(airflow, lambda: "broken" in tags(airflow, "changed"))
    time.sleep(20)  # for the training and what would follow
    states = list_states(airflow, "changed", run_id)
    assert "failed" not in states.values() and states["export"] is None
    assert airflow.run("changed", run_id)["state"] == "running"
    file.write_text(good)
    check_success(airflow, "changed", run_id)


def list_states(api: AirflowApi, dag_id: str, run_id: str) -> dict[str, str | None]:
    return {task["task_id"]: task["state"] for task in api.tasks(dag_id, run_id)}


@needs_chromium
def test_the_page_of_a_broken_pipeline_shows_the_message(airflow, folder, corpus):
    with open_browser(airflow) as person:
        person.log_in()
        person.look("home")
        person.go("/dags?tags=broken")
        first = min(broken.name for broken in ALL)
        person.page.get_by_text(first, exact=True).first.wait_for()
        person.look("broken-dags")
        person.go("/dags/tab")
        person.page.get_by_text("tab", exact=True).first.wait_for()
        person.look("broken-dag")
        person.page.get_by_role("button", name="Dag Docs").click()
        person.page.get_by_text("a tab in the indentation").last.wait_for()
        person.look("broken-docs")
        person.page.keyboard.press("Escape")
        form = person.open_form("tab")
        person.look("broken-form")
        assert form.get_by_role("button", name="Trigger").is_disabled()
