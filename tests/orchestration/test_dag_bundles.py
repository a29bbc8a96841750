"""Pipelines in a DAG bundle with versions, of a real Airflow: a git repository, which holds the DAG
file and the YAML. Airflow and its provider for git come from the package index."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.programs import UP_SECONDS
from cli.training_ends import act, bring_to
from config_files import use_interpreter, write_config
from plain_airflows import (
    PlainAirflow,
    keep_up,
    make_folder,
    read_documented_file,
    share_environment,
)
from processes import is_running, read_command_line, wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

_HIDDEN = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"')
_ENDED_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Repository:
    """A bare repository `origin`, and the clone of an author, with the pipeline `digits`."""

    folder: Path

    @property
    def clone(self) -> Path:
        return self.folder / "clone"

    @property
    def origin(self) -> Path:
        return self.folder / "origin"

    def make(self) -> None:
        self.folder.mkdir()
        self._git("init", "--quiet", "--bare", "--initial-branch=main", self.origin)
        self._git("clone", "--quiet", self.origin, self.clone)
        self._git("-C", self.clone, "checkout", "--quiet", "-B", "main")

    def push(self, **changes: Any) -> str:
        """Changes keys of the YAML: `train__epochs=3`. Returns the commit."""
        base = self.folder.parent / "digits.yaml"
        keys = {key.replace("__", "."): value for key, value in changes.items()}
        absolute = {
            "storage.root": str(base.parent / "storage"),
            "preprocess.source.path": str(base.parent / "raw"),
        }
        write_config(self.clone / "pipelines", absolute | keys, base)
        use_interpreter(self.clone / "pipelines", sys.executable)
        (self.clone / "trainyard.py").write_text(read_documented_file(1))
        identity = ("-c", "user.name=author", "-c", "user.email=author@example.org")
        self._git("-C", self.clone, "add", "--all")
        self._git("-C", self.clone, *identity, "commit", "--quiet", "--message", "a version")
        self._git("-C", self.clone, "push", "--quiet", "origin", "main")
        return self._git("-C", self.clone, "rev-parse", "HEAD").strip()

    @staticmethod
    def _git(*words: str | Path) -> str:
        return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module", params=["3.2", "3.3"])
def release(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def repository(release, tmp_path_factory) -> Repository:
    folder = tmp_path_factory.mktemp("bundle")
    make_folder(folder)
    repository = Repository(folder / "git")
    repository.make()
    repository.push(export__model="one", train__epochs=150)
    return repository


@pytest.fixture(scope="module")
def airflow(release, repository, tmp_path_factory) -> Iterator[PlainAirflow]:
    environment = share_environment(tmp_path_factory, release)
    bundle = {
        "name": "git",
        "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
        "kwargs": {"repo_url": str(repository.origin), "tracking_ref": "main"},
    }
    yield from keep_up(PlainAirflow(repository.folder.parent, environment, (bundle,)))


def wait_for_version(airflow: PlainAirflow, commit: str) -> None:
    """Waits until Airflow's DAG processor has read the files of a commit."""
    wait_until(
        lambda: (airflow.api.dag("digits") or {}).get("bundle_version") == commit, UP_SECONDS
    )


def test_a_run_keeps_the_yaml_of_its_bundle_version(airflow, repository):
    """The next try of its training, and its later tasks, begin after a change of the YAML."""
    run = airflow.trigger()
    attempt = bring_to(run, "deferred")
    second = repository.push(export__model="two", train__epochs=2)
    wait_for_version(airflow, second)
    [leader] = [each for each in run.processes(attempt) if "--request" in read_command_line(each)]
    airflow.kill("scheduler", "triggerer")
    airflow.restart("scheduler", "triggerer")
    assert is_running(leader)
    run.wait_for("success", "export", seconds=600)
    assert run.attempts == [attempt]
    published = airflow.folder / "storage" / "models"
    assert [folder.name for folder in published.iterdir()] == ["one"]
    page = airflow.account.call(
        "GET", "/trainyard/pipelines/digits/report", params={"run_id": run.run_id}
    )
    assert page.status_code == 200 and "report/content" in page.text
    # Airflow 3.2 can lose the clearing of a run that its scheduler ends at the same moment.
    wait_until(lambda: airflow.api.run("digits", run.run_id)["state"] == "success")
    act(airflow, run, "run clear")
    run.wait_for("success", "export", seconds=600)
    assert [folder.name for folder in published.iterdir()] == ["one"]
    later = airflow.trigger("export")
    later.wait_for("success", seconds=600)
    assert (published / "two" / "1" / "saved_model.pb").is_file()


@pytest.mark.parametrize("release", ["3.3"], indirect=True, scope="module")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide a folder from one process")
def test_the_api_server_needs_no_file_of_the_bundle(airflow, repository):
    """It finds the locations of a run in Airflow's database."""
    wait_for_version(airflow, repository.push(export__model="three", train__epochs=5000))
    airflow.kill("api-server")
    hidden = [str(airflow.folder / "bundles")]
    airflow.start("api-server", wrapper=(*_HIDDEN, *hidden))
    airflow.wait_for_health()
    run = airflow.trigger()
    attempt = bring_to(run, "deferred")
    address, query = "/trainyard/pipelines/digits", {"run_id": run.run_id}
    wait_until(
        lambda: "loss" in airflow.account.call("GET", f"{address}/progress", params=query).text
    )
    assert "three" in airflow.account.call("GET", f"{address}/models").text
    airflow.kill("triggerer")
    act(airflow, run, "run failed")
    run.wait_for_end(attempt, _ENDED_SECONDS)
