"""An existing Airflow: the package is installed into it, and a DAG file of the user has the lines
of the documentation."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(sysconfig.get_paths()["purelib"])
PACKAGES = ("pipeline_ops", "beam_jobs", "pyproject.toml", "README.md", "LICENSE")


def read_readme_lines() -> str:
    """The DAG file of the documentation: the first of its two."""
    page = (ROOT / "docs" / "existing-airflow.md").read_text()
    return re.findall(r"```python\n(# Airflow reads.*?)```", page, re.S)[0]


def test_the_lines_of_the_readme_make_dags(tmp_path, monkeypatch):
    from airflow.dag_processing.dagbag import DagBag

    lines = [line for line in read_readme_lines().splitlines() if line]
    assert len(lines) == 4 and lines[0].startswith("#")
    (tmp_path / "mine.py").write_text(
        read_readme_lines().replace("/data/pipelines", str(ROOT / "configs"))
    )
    bag = DagBag(tmp_path, bundle_path=tmp_path, bundle_name="mine")
    assert not bag.import_errors
    assert "digits" in bag.dags


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_fresh_environment_with_the_package_installed_runs_a_pipeline(tmp_path):
    """All that the package needs is linked from this environment, but not this repository: what
    runs is the wheel."""
    source, python = tmp_path / "source", tmp_path / "env" / "bin" / "python"
    source.mkdir()
    for name in PACKAGES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    offline = ["--quiet", "--no-deps", "--no-index"]
    build = ["wheel", "--no-build-isolation", "-w", tmp_path / "wheels", source]
    subprocess.run([sys.executable, "-m", "pip", *build, *offline], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    [packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    for entry in INSTALLED.iterdir():
        if not entry.name.startswith(("__editable__", "airflow_provider_trainyard")):
            (packages / entry.name).symlink_to(entry)
    [wheel] = (tmp_path / "wheels").glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", wheel, *offline], check=True
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "TRAINYARD_CONFIGS") and not name.startswith("AIRFLOW__")
    }
    environment |= {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
    }
    events = {"type": "file", "log_file_path": str(tmp_path / "lineage"), "append": True}
    environment |= {
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(events),
    }

    def run(*words: str) -> str:
        answer = subprocess.run(
            [python, "-m", *words], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    (tmp_path / "dags").mkdir()
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "dags" / "mine.py").write_text(
        read_readme_lines().replace("/data/pipelines", str(tmp_path / "pipelines"))
    )
    values = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())
    values["storage"]["root"], values["preprocess"]["source"]["path"] = "../storage", "../raw"
    values["train"] |= {"epochs": 3, "early_stopping": None}
    values["evaluate"]["gate"] = [{"metric": "accuracy", "at_least": 0.5}]
    (tmp_path / "pipelines" / "digits.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    run("pipeline_ops.examples.digits", str(tmp_path / "raw"))
    run("airflow", "db", "migrate")
    run("airflow", "dags", "reserialize")
    assert "TrainyardPlugin" in run("airflow", "plugins") or "trainyard" in run(
        "airflow", "plugins"
    )
    run("airflow", "dags", "test", "digits")
    assert (tmp_path / "storage" / "models" / "digits" / "1" / "saved_model.pb").is_file()
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
    assert set(ended) == {
        f"digits.{task}" for task in ("preprocess", "train", "evaluate", "export")
    }
    [made], [used] = ended["digits.preprocess"]["outputs"], ended["digits.train"]["inputs"]
    assert (used["name"], used["facets"]["version"]["datasetVersion"]) == (
        made["name"],
        made["facets"]["version"]["datasetVersion"],
    )
    [model] = ended["digits.export"]["outputs"]
    assert (model["name"], model["facets"]["version"]["datasetVersion"]) == (
        str(folder / "storage" / "models" / "digits"),
        "1",
    )
