"""Each release of Airflow that the package allows, as others have it: in a fresh environment from
the package index, with the core of the package in it, and a DAG file with the documented lines.

TensorFlow and Beam are in the environment of these tests. They need a network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli.training_ends import act, bring_to
from config_files import write_config
from plain_airflows import (
    Environment,
    PlainAirflow,
    keep_up,
    make_folder,
    share_environment,
    write_dag_file,
)
from processes import is_running, read_command_line, wait_until

from pipeline_ops.planning.job_kinds import JOBS

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

_ENDED_SECONDS = 60.0
of_the_old_release = pytest.mark.parametrize("environment", ["3.2"], indirect=True, scope="module")
"""The new release publishes from a bundle (`test_dag_bundles.py`), and it is the embedded Airflow,
which shows pages and uses changed files."""


@pytest.fixture(scope="module", params=["3.2", "3.3"])
def environment(request, tmp_path_factory) -> Environment:
    return share_environment(tmp_path_factory, request.param)


def test_the_core_replaces_nothing(environment):
    added = {*environment.added}
    assert added & {*environment.there} == set()
    assert "airflow-provider-trainyard" in added
    heavy = {"tensorflow", "tensorflow-cpu", "keras", "apache-beam", "numpy", "pillow"}
    assert added & heavy == set()


@pytest.fixture(scope="module")
def airflow(environment, tmp_path_factory) -> Iterator[PlainAirflow]:
    folder = tmp_path_factory.mktemp("plain")
    make_folder(folder)
    write_dag_file(folder)
    yield from keep_up(PlainAirflow(folder, environment))


@pytest.fixture(scope="module")
def finished(airflow):
    """A run that has come to its end."""
    run = airflow.trigger("export", train__epochs=3)
    run.wait_for("success", seconds=600)
    wait_until(lambda: run.state == "success")
    return run


@of_the_old_release
def test_a_run_publishes_a_model(airflow, finished):
    assert (airflow.folder / "storage" / "models" / "digits" / "1" / "saved_model.pb").is_file()
    assert all(finished.task(job)["state"] == "success" for job in JOBS)


@of_the_old_release
def test_the_pages_answer(airflow, finished):
    address, query = "/trainyard/pipelines/digits", {"run_id": finished.run_id}
    for page, text in {
        f"{address}/runs": "Published as version 1 of digits, in service",
        f"{address}/progress": "validation",
        f"{address}/report": "report/content",
        f"{address}/report/content": "accuracy",
        "/trainyard/models": "digits",
        f"{address}/models": "champion",
    }.items():
        answer = airflow.account.call("GET", page, params=query)
        assert answer.status_code == 200 and text in answer.text, (page, answer.text[:2000])
    views = airflow.account.call("GET", "/api/v2/plugins").json()["plugins"]
    [ours] = [plugin for plugin in views if plugin["name"] == "trainyard"]
    assert [(view["name"], view["destination"]) for view in ours["external_views"]] == [
        ("Outcomes", "dag"),
        ("Model", "dag"),
        ("Data", "dag"),
        ("Progress", "dag_run"),
        ("Report", "dag_run"),
        ("Progress", "task_instance"),
        ("Models", "nav"),
    ]
    note = airflow.api.run("digits", finished.run_id)["note"]
    assert note.startswith("Published as version 1 of digits, in service (accuracy ")


@of_the_old_release
def test_a_forbidden_conf_fails_the_first_task_for_good(airflow):
    run = airflow.trigger(task="preprocess", author={"export.model": "x"})
    run.wait_for("failed")
    assert run.task()["try_number"] == 1


@of_the_old_release
@pytest.mark.parametrize("way", ["task failed", "clear", "run failed"])
def test_a_person_who_ends_a_deferred_training_ends_every_process_of_it(airflow, way):
    run = airflow.trigger(train__epochs=5000)
    attempt = bring_to(run, "deferred")
    act(airflow, run, way)
    run.wait_for_end(attempt, _ENDED_SECONDS)
    airflow.call("PATCH", run.path, {"state": "failed"})
    wait_until(lambda: not run.processes(), _ENDED_SECONDS)


@of_the_old_release
def test_the_next_try_of_a_killed_task_follows_the_same_gang(airflow):
    run = airflow.trigger(train__epochs=5000, train__seed=1)
    attempt = bring_to(run, "running")
    [leader] = [each for each in run.processes(attempt) if "--request" in read_command_line(each)]
    airflow.kill(airflow.worker)
    airflow.restart(airflow.worker)
    wait_until(lambda: run.task()["try_number"] == 2, 180)
    run.wait_for("deferred")
    assert run.attempts == [attempt]
    assert is_running(leader)
    act(airflow, run, "run failed")
    run.wait_for_end(attempt, _ENDED_SECONDS)


@of_the_old_release
def test_in_a_folder_without_versions_each_task_uses_the_files_that_are_there(airflow):
    """A folder that git-sync updates is like this one. The last test: it changes the YAML."""
    run = airflow.trigger(train__epochs=40, train__seed=2)
    bring_to(run, "running")
    write_config(airflow.folder, {"export.model": "other"}, base=airflow.folder / "digits.yaml")
    run.wait_for("success", "export", seconds=600)
    assert (airflow.folder / "storage" / "models" / "other" / "1" / "saved_model.pb").is_file()
