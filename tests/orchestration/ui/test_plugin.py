"""The plugin in the processes of Airflow: its cost, and its check of Airflow's internals."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def run(code: str) -> str:
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.mark.airflow
def test_the_plugin_costs_the_processes_that_serve_no_pages_nothing():
    code = (
        "import airflow.plugins_manager, sys; before = set(sys.modules); "
        "import pipeline_ops.orchestration.ui.plugin; "
        "print(*(set(sys.modules) - before))"
    )
    # Airflow itself has imported `pipeline_ops.orchestration.provider` before.
    assert set(run(code).split()) == {
        "airflow._shared.listeners",
        "airflow.listeners",
        "pipeline_ops.orchestration.run_note",
        "pipeline_ops.orchestration.ui",
        "pipeline_ops.orchestration.ui.plugin",
    }


@pytest.mark.airflow
@pytest.mark.parametrize("in_api_server", [True, False])
def test_an_airflow_without_a_needed_part_is_named_when_the_api_server_loads_the_plugin(
    in_api_server,
):
    code = (
        "import sys, airflow.plugins_manager as manager; "
        f"{'import airflow.api_fastapi.app; ' if in_api_server else ''}"
        "sys.modules['airflow.models.log'] = None; "
        "print(*manager._get_plugins()[1].values())"
    )
    problem = (
        f"Airflow {version('apache-airflow')} lacks a part that Trainyard's pages, notes and "
        "orphan reaper need (import of airflow.models.log halted; None in sys.modules). "
        "Trainyard is tested with Airflow 3.2 and 3.3. Install one of them: "
        "pip install 'apache-airflow==3.3.*'"
    )
    assert (problem in run(code)) == in_api_server


def test_the_package_names_the_plugin_for_airflow():
    from pipeline_ops.orchestration.ui.plugin import TrainyardPlugin

    project = tomllib.loads(PYPROJECT.read_text())["project"]
    [(name, target)] = project["entry-points"]["airflow.plugins"].items()
    assert EntryPoint(name, target, "airflow.plugins").load() is TrainyardPlugin
