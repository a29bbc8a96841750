"""The distribution: a light core that works alone, and metadata that Airflow understands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from airflow.providers_manager import ProvidersManager
from wheels import build_wheel

from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.orchestration.provider import get_provider_info

PROJECT = tomllib.loads((CODE_ROOT / "pyproject.toml").read_text())["project"]
HEAVY = ("tensorflow", "keras", "apache_beam", "cv2", "PIL", "sklearn", "scipy", "numpy", "optuna")
BLOCK_HEAVY = f"""
import sys

class _Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

sys.meta_path.insert(0, _Blocked())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def run_installed(wheel, tmp_path_factory):
    """Runs Python with the files of the wheel, without the repository and heavy packages."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "sitecustomize.py").write_text(BLOCK_HEAVY)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"PYTHONPATH": str(site), "AIRFLOW_HOME": str(site / "airflow")}
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=site,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )

    where = run("-c", "import pipeline_ops; print(pipeline_ops.__file__)")
    assert where.stdout.startswith(str(site)), where
    return run


def test_the_core_has_no_heavy_dependency_and_no_exact_version():
    names = ("tensorflow", "keras", "apache-beam", "opencv", "pillow", "scikit", "scipy", "numpy")
    core = PROJECT["dependencies"]
    assert [line for line in core if line.startswith(names)] == []
    extras = [line for group in PROJECT["optional-dependencies"].values() for line in group]
    assert [line for line in (*core, *extras) if "==" in line.partition(";")[0]] == []


def test_airflow_lists_the_provider():
    [found] = [
        e for e in entry_points(group="apache_airflow_provider") if "pipeline_ops" in e.value
    ]
    assert found.load() is get_provider_info
    info = ProvidersManager().providers[PROJECT["name"]]
    assert info.version == PROJECT["version"] and info.data["name"] == "Trainyard"


@pytest.mark.airflow
def test_the_wheel_holds_each_file_that_is_no_code(wheel):
    listed = subprocess.run(
        ["git", "ls-files", "pipeline_ops", "beam_jobs"],
        cwd=CODE_ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    expected = {name for name in listed if not name.endswith(("README.md",))}
    assert expected - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.airflow
def test_the_installed_command_validates_a_pipeline(run_installed, tmp_path):
    (tmp_path / "raw" / "cat").mkdir(parents=True)
    (tmp_path / "raw" / "cat" / "1.png").write_bytes(b"not looked at")
    text = (CODE_ROOT / "configs" / "digits.yaml").read_text()
    file = tmp_path / "digits.yaml"
    file.write_text(text.replace("../.trainyard/raw/digits", "raw"))
    command = "import sys; from pipeline_ops.cli.main import main; sys.exit(main())"
    done = run_installed("-c", command, "validate", str(file))
    assert done.returncode == 0, done.stderr
    search = "search: {parameters: {train.seed: [1, 2]}}\n"
    file.write_text(f"{file.read_text()}\n{search}")
    done = run_installed("-c", command, "validate", str(file))
    assert done.returncode == 0, done.stderr
    assert "not checked, because Optuna is not installed here. The task search" in done.stdout
    file.write_text(text.replace("epochs:", "epoch:"))
    done = run_installed("-c", command, "validate", str(file))
    assert done.returncode == 78 and "the nearest valid name is 'epochs'" in done.stderr


def test_the_dag_files_and_the_plugin_load_without_heavy_packages(run_installed):
    script = (
        "import json, runpy, sys\n"
        f"found = runpy.run_path({str(CODE_ROOT / 'dags' / 'trainyard.py')!r})\n"
        "import pipeline_ops.orchestration.ui.plugin as plugin\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "dags = sorted(key for key, value in found.items() if hasattr(value, 'dag_id'))\n"
        "print(json.dumps([dags, plugin.TrainyardPlugin.name, heavy]))"
    )
    done = run_installed("-c", script, TRAINYARD_CONFIGS=str(CODE_ROOT / "configs" / "digits.yaml"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        ["digits"],
        "trainyard",
        [],
    ]
