"""An Airflow as others have it: an environment of its own from the package index, with the core of
this package in it, and nothing else of this repository."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.digits_airflow import Airflow, make_pipeline
from config_files import use_interpreter, write_config
from wheels import build_wheel

from pipeline_ops.cli.embedded_airflow import make_bundle
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.planning.job_kinds import JOBS

RELEASES = {
    # 3.2.2 allows any later FastAPI, and its API server does not start with FastAPI 0.165.
    "3.2": ("apache-airflow==3.2.*", "fastapi<0.137"),
    "3.3": ("apache-airflow==3.3.*",),
}
"""The releases that the package allows, as pip takes them."""
PROVIDERS = {
    "3.2": ("apache-airflow-providers-git",),
    "3.3": ("apache-airflow-providers-git", "apache-airflow-providers-edge3"),
}
_OF_THE_REPOSITORY = ("PYTHONPATH", "TRAINYARD_CONFIGS", "TRAINYARD_TRUSTED_CONF")


def read_documented_file(number: int = 0, pipelines: Path = Path("/data/pipelines")) -> str:
    """One of the DAG files of the page: for a folder, for a DAG bundle, and with own tasks."""
    page = (CODE_ROOT / "docs" / "existing-airflow.md").read_text()
    text = re.findall(r"```python\n(# Airflow reads.*?)```", page, re.S)[number]
    return text.replace("/data/pipelines", str(pipelines))


def make_folder(folder: Path) -> None:
    """Writes the pipeline `digits`, whose jobs run in the environment of the tests."""
    make_pipeline(folder)
    interpreters = use_interpreter(folder, sys.executable, *JOBS)
    write_config(folder, interpreters, base=folder / "digits.yaml")
    (folder / "dags").mkdir()


def write_dag_file(folder: Path) -> None:
    """Writes the documented DAG file for the pipeline in a folder."""
    lines = read_documented_file(pipelines=folder / "digits.yaml")
    (folder / "dags" / "mine.py").write_text(lines)


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment with Airflow. `there` was installed before the package, `added` with it."""

    python: Path
    there: list[str]
    added: list[str]


def share_environment(factory: pytest.TempPathFactory, release: str) -> Environment:
    """Makes the environment of a release for all test processes, or waits for one that makes it."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    described = shared / f"airflow-{release}.json"
    with (shared / f"airflow-{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not described.exists():
            made = make_environment(shared / f"airflow-{release}", release, *PROVIDERS[release])
            described.write_text(json.dumps(dataclasses.asdict(made), default=str))
    fields = json.loads(described.read_text())
    return Environment(**fields | {"python": Path(fields["python"])})


def make_environment(folder: Path, release: str, *packages: str) -> Environment:
    """Installs a release of Airflow, then this package, then others, from the package index."""
    python = folder / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)

    def pip(*words: str | Path) -> str:
        argv = [python, "-m", "pip", "--disable-pip-version-check", *words]
        answer = subprocess.run(argv, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    pip("install", "--quiet", *RELEASES[release])
    there = [_normalize(entry["name"]) for entry in json.loads(pip("list", "--format", "json"))]
    pip("install", "--quiet", "--report", folder / "report.json", build_wheel(folder / "wheel"))
    report = json.loads((folder / "report.json").read_text())["install"]
    added = [_normalize(entry["metadata"]["name"]) for entry in report]
    if packages:
        pip("install", "--quiet", *packages)
    return Environment(python, there, added)


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def keep_up(airflow: PlainAirflow) -> Iterator[PlainAirflow]:
    """Starts an Airflow, yields it, and ends it."""
    try:
        airflow.begin()
        yield airflow
    finally:
        airflow.end()


class PlainAirflow(Airflow):
    """An Airflow in such an environment.

    Args:
      folder: holds `digits.yaml`, and the DAG files in `dags`.
      environment: the environment.
      bundles: more DAG bundles, as Airflow's setting takes them.
      executor: settings of an executor that has workers of its own. Default: LocalExecutor.
      worker: the arguments of `airflow` for such a worker.
    """

    def __init__(
        self,
        folder: Path,
        environment: Environment,
        bundles: tuple[Mapping[str, Any], ...] = (),
        executor: Mapping[str, str] | None = None,
        worker: tuple[str, ...] = (),
    ):
        every = [{"name": "dags", **make_bundle(folder / "dags")}, *bundles]
        super().__init__(folder, os.environ, {})
        self.interpreter = environment.python
        if worker:
            self.worker, self.commands = "worker", {**self.commands, "worker": worker}
        for name in _OF_THE_REPOSITORY:
            self._environment.pop(name, None)
        self._environment |= {
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(every),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(folder / "bundles"),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            **{name: value.format(url=self.url) for name, value in (executor or {}).items()},
        }
