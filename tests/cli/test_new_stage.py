"""`new-stage`: what it writes works as it is, and nothing that is there is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline_ops.cli.commands.scaffold import add_to_catalogue
from pipeline_ops.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch) -> Path:
    """A copy of as much of this repository as a stage and its test need."""
    for folder in ("beam_jobs", "pipeline_ops", "tests/beam_jobs"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", ["brighten", "zoom_in"])
def test_a_new_stage_passes_its_test_the_linter_and_the_check_of_a_config(repository, name, capsys):
    assert main(["new-stage", name]) == 0
    assert f"Wrote beam_jobs/stages/{name}.py" in capsys.readouterr().out
    tests = "tests/beam_jobs/stages"
    tested = run(
        repository,
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"{tests}/test_{name}.py",
        f"{tests}/test_checks.py",
    )
    assert tested.returncode == 0, tested.stdout
    linted = run(
        repository, "ruff", "check", "--no-cache", "beam_jobs/stages", f"{tests}/test_{name}.py"
    )
    assert linted.returncode == 0, linted.stdout


def test_several_new_stages_can_be_made(repository):
    for name in ("aaa", "brighten", "zoom_in"):
        assert main(["new-stage", name]) == 0
    assert run(repository, "ruff", "check", "--no-cache", "beam_jobs/stages").returncode == 0
    printed = subprocess.run(
        [sys.executable, "-c", "from beam_jobs.stages import CATALOGUE; print(*CATALOGUE)"],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.split()[-3:] == ["aaa", "brighten", "zoom_in"]


@pytest.mark.parametrize(
    "taken", ["beam_jobs/stages/brighten.py", "tests/beam_jobs/stages/test_brighten.py"]
)
def test_nothing_is_overwritten_and_nothing_written_beside_it(repository, taken, capsys):
    (repository / taken).write_text("mine")
    before = {path: path.read_bytes() for path in repository.rglob("*.py")}
    assert main(["new-stage", "brighten"]) == 78
    assert f"{taken}: already exists" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in repository.rglob("*.py")} == before


@pytest.mark.parametrize("name", ["Brighten", "bright-en", "class", "resize", "stage", "2d", ""])
def test_a_name_that_cannot_be_one_is_refused(repository, name, capsys):
    assert main(["new-stage", name]) == 78
    assert capsys.readouterr().err.startswith(f"{name}: ")


def test_elsewhere_the_way_to_a_package_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-stage", "brighten"]) == 78
    assert "--package PACKAGE" in capsys.readouterr().err


@pytest.mark.parametrize("layout", [".", "src"])
def test_a_stage_for_a_package_of_ones_own_passes_its_test_and_is_published(
    tmp_path, monkeypatch, capsys, layout
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / layout / "acme").mkdir(parents=True)
    (tmp_path / layout / "acme" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "acme"\nversion = "1"\n')
    for name in ("brighten", "darken"):
        assert main(["new-stage", name, "--package", "acme"]) == 0
    assert "- acme.darken:darken: {factor: 1.5}" in capsys.readouterr().out
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / layout), str(ROOT)])},
    )
    assert "10 passed" in tested.stdout, tested.stdout
    published = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["entry-points"][
        "trainyard.stages"
    ]
    assert published == {"brighten": "acme.brighten:brighten", "darken": "acme.darken:darken"}
    assert main(["new-stage", "brighten", "--package", "acme"]) == 78


def test_a_package_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-stage", "brighten", "--package", "acme"]) == 78
    assert "--package acme: not found in the current folder or in src/" in capsys.readouterr().err


def test_a_long_import_is_wrapped():
    text = (ROOT / "beam_jobs" / "stages" / "__init__.py").read_text()
    for number in range(12):
        text = add_to_catalogue(text, f"stage_number_{number:02d}")
    compile(text, "stages", "exec")
    assert max(map(len, text.splitlines())) <= 150
    assert "    stage_number_11,\n    tile,\n" in text
