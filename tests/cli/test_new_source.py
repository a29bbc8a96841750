"""`new-source`: what it writes works as it is, and nothing that is there is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.cli.main import main


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """A user's folder with `configs/`, in which the command runs."""
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(folder), str(folder / "src"), str(CODE_ROOT)])
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_a_new_source_passes_its_test_and_the_linter_and_its_line_is_printed(project, capsys):
    assert main(["new-source", "camera_names"]) == 0
    output = capsys.readouterr().out
    assert "Wrote configs/camera_names.py\nWrote configs/test_camera_names.py\n" in output
    assert 'source: {type: "camera_names:camera_names", path: FOLDER}' in output
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider", "configs")
    assert "2 passed" in tested.stdout, tested.stdout
    settings = str(CODE_ROOT / "pyproject.toml")
    # The settings of this repository exempt its own tests, and know its packages as its own.
    options = ["--no-cache", "--config", settings, "--extend-ignore", "S101,I001", "configs"]
    linted = run(project, "ruff", "check", *options)
    assert linted.returncode == 0, linted.stdout
    formatted = run(project, "ruff", "format", "--check", "--config", settings, "configs")
    assert formatted.returncode == 0, formatted.stdout


def test_its_test_notices_a_broken_source(project):
    assert main(["new-source", "camera_names"]) == 0
    file = project / "configs" / "camera_names.py"
    file.write_text(file.read_text().replace("SourceEntry(path, label)", "SourceEntry(path, path)"))
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider", "configs")
    assert "1 failed, 1 passed" in tested.stdout, tested.stdout


@pytest.mark.parametrize("layout", [".", "src"])
def test_a_source_for_a_package_passes_its_test_and_is_published(project, capsys, layout):
    (project / layout / "acme").mkdir(parents=True)
    (project / layout / "acme" / "__init__.py").touch()
    (project / "pyproject.toml").write_text('[project]\nname = "acme"\nversion = "1"\n')
    for name in ("cameras", "patients"):
        assert main(["new-source", name, "--package", "acme"]) == 0
    assert 'source: {type: "acme.patients:patients"' in capsys.readouterr().out
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert "4 passed" in tested.stdout, tested.stdout
    read = tomllib.loads((project / "pyproject.toml").read_text())
    assert read["project"]["entry-points"]["trainyard.sources"] == {
        "cameras": "acme.cameras:cameras",
        "patients": "acme.patients:patients",
    }
    assert main(["new-source", "cameras", "--package", "acme"]) == 78


@pytest.mark.parametrize("taken", ["configs/cameras.py", "configs/test_cameras.py"])
def test_nothing_is_overwritten_and_nothing_written_beside_it(project, taken, capsys):
    (project / taken).write_text("mine")
    assert main(["new-source", "cameras"]) == 78
    assert f"{taken}: already exists" in capsys.readouterr().err
    assert [file.read_text() for file in (project / "configs").iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["Cameras", "my-cameras", "class", "voc", "json", "2d", ""])
def test_a_name_that_cannot_be_one_is_refused(project, name, capsys):
    assert main(["new-source", name]) == 78
    assert capsys.readouterr().err.startswith(f"{name}: ")
    assert list((project / "configs").iterdir()) == []


@pytest.mark.parametrize(
    "words, message",
    [
        (["--folder", "elsewhere"], "elsewhere: there is no such folder. Give the folder"),
        (["--package", "acme"], "--package acme: not found in the current folder or in src/"),
    ],
)
def test_a_place_that_is_not_there_is_refused(project, words, message, capsys):
    assert main(["new-source", "cameras", *words]) == 78
    assert message in capsys.readouterr().err
