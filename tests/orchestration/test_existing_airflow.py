"""An existing Airflow: the package is installed into it, and a DAG file of the user has the lines
of the documentation."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from config_files import write_config
from environments import link_packages
from plain_airflows import read_documented_file

from pipeline_ops.planning.job_kinds import JOBS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline_ops", "beam_jobs", "pyproject.toml", "README.md", "LICENSE")


def test_the_lines_of_the_readme_make_dags(tmp_path, monkeypatch):
    from airflow.dag_processing.dagbag import DagBag

    text = read_documented_file(pipelines=ROOT / "configs")
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 4 and lines[0].startswith("#")
    (tmp_path / "mine.py").write_text(text)
    bag = DagBag(tmp_path, bundle_path=tmp_path, bundle_name="mine")
    assert not bag.import_errors
    assert "digits" in bag.dags


def write_customized_dag_file(folder: Path, pipelines: Path) -> None:
    """Writes the documented DAG file with a task before and a task after ours."""
    text = read_documented_file(2, pipelines)
    for there, here in (("incoming", "incoming"), ("flowers", "raw"), ("published", "published")):
        assert f"/data/{there}" in text
        text = text.replace(f"/data/{there}", str(folder / here))
    (folder / "dags").mkdir()
    (folder / "dags" / "mine.py").write_text(text)


def test_tasks_of_a_team_come_before_and_after_ours(tmp_path):
    from airflow.dag_processing.dagbag import DagBag

    write_customized_dag_file(tmp_path, write_config(tmp_path / "pipelines", {}).parent)
    folder = tmp_path / "dags"
    bag = DagBag(folder, bundle_path=folder, bundle_name="mine")
    assert not bag.import_errors
    tasks = [task.task_id for task in bag.dags["digits"].topological_sort()]
    assert tasks == ["copy", *JOBS, "tell"]


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_fresh_environment_with_the_package_installed_runs_a_pipeline(tmp_path):
    """All that the package needs is linked from this environment, but not this repository: what
    runs is the wheel."""
    source = tmp_path / "source"
    source.mkdir()
    for name in PACKAGES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    offline = ["--quiet", "--no-deps", "--no-index"]
    build = ["wheel", "--no-build-isolation", "-w", tmp_path / "wheels", source]
    subprocess.run([sys.executable, "-m", "pip", *build, *offline], check=True)
    python = link_packages(tmp_path / "env")
    [wheel] = (tmp_path / "wheels").glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", wheel, *offline], check=True
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "TRAINYARD_CONFIGS") and not name.startswith("AIRFLOW__")
    }
    events = {"type": "file", "log_file_path": str(tmp_path / "lineage"), "append": True}
    environment |= {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(events),
    }

    def run(*words: str) -> str:
        answer = subprocess.run(
            [python, "-m", *words], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    changes = {
        "storage.root": "../storage",
        "preprocess.source.path": "../raw",
        "train.epochs": 3,
        "train.early_stopping": None,
        "evaluate.gate": [{"metric": "accuracy", "at_least": 0.5}],
    }
    write_customized_dag_file(tmp_path, write_config(tmp_path / "pipelines", changes).parent)
    run("pipeline_ops.examples.digits", str(tmp_path / "incoming"))
    run("airflow", "db", "migrate")
    run("airflow", "dags", "reserialize")
    plugins = run("airflow", "plugins")
    assert "TrainyardPlugin" in plugins or "trainyard" in plugins
    run("airflow", "dags", "test", "digits")
    assert (tmp_path / "storage" / "models" / "digits" / "1" / "saved_model.pb").is_file()
    assert len((tmp_path / "published").read_text().splitlines()) == 1
    if importlib.util.find_spec("openlineage"):
        assert_lineage_was_sent(tmp_path)


def assert_lineage_was_sent(folder: Path) -> None:
    """Airflow's provider has sent the lineage of every task.

    The data set of the training is the one that was made.
    """
    events = [json.loads(line) for line in (folder / "lineage").read_text().splitlines()]
    ended = {
        event["job"]["name"]: event
        for event in events
        if event["eventType"] == "COMPLETE" and event["outputs"]
    }
    assert set(ended) == {f"digits.{job}" for job in JOBS}
    [made], [used], [model] = (
        [(each["name"], each["facets"]["version"]["datasetVersion"]) for each in ended[job][kind]]
        for job, kind in (
            ("digits.preprocess", "outputs"),
            ("digits.train", "inputs"),
            ("digits.export", "outputs"),
        )
    )
    assert used == made
    assert model == (str(folder / "storage" / "models" / "digits"), "1")
