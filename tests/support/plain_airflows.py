"""An Airflow as others have it: an environment of its own from the package index, with the core of
this package in it, and nothing else of this repository."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.digits_airflow import Airflow
from wheels import build_wheel

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.cli.local_airflow.programs import make_bundle

RELEASES = {
    # 3.2.2 allows any later FastAPI, and its API server does not start with FastAPI 0.165.
    "3.2": ("apache-airflow==3.2.*", "fastapi<0.137"),
    "3.3": ("apache-airflow==3.3.*",),
}
"""The releases that the package allows, as pip takes them."""
_OF_THE_REPOSITORY = ("PYTHONPATH", "TRAINYARD_CONFIGS", "TRAINYARD_AUTHOR_OVERRIDES")


def read_documented_file(number: int = 0) -> str:
    """One of the DAG files of the page: for a folder, and for a DAG bundle."""
    page = (CODE_ROOT / "docs" / "existing-airflow.md").read_text()
    return re.findall(r"```python\n(# Airflow reads.*?)```", page, re.S)[number]


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment with Airflow. `there` was installed before the package, `added` with it."""

    python: Path
    there: set[str]
    added: set[str]


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
    there = {entry["name"] for entry in json.loads(pip("list", "--format", "json"))}
    pip("install", "--quiet", "--report", folder / "report.json", build_wheel(folder / "wheel"))
    report = json.loads((folder / "report.json").read_text())["install"]
    added = {entry["metadata"]["name"] for entry in report}
    if packages:
        pip("install", "--quiet", *packages)
    return Environment(python, {*map(_normalize, there)}, {*map(_normalize, added)})


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
