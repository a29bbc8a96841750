"""`new stage` and `new source`: the files work as they are, and no existing file is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline_ops.contract.source_code import CODE_ROOT

STAGES, STAGE_TESTS = "beam_jobs/stages", "tests/beam_jobs/stages"
NO_PACKAGE = "--package acme: not found in the current folder or in src/"
CASES = [
    ("source", "cameras", "configs/cameras.py"),
    ("source", "cameras", "configs/test_cameras.py"),
    ("stage", "brighten", f"{STAGES}/brighten.py"),
    ("stage", "brighten", f"{STAGE_TESTS}/test_brighten.py"),
]
"""Commands, each with a name and a file that it would write."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """A user's folder with `configs/`, in which the command runs."""
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def repository(project) -> Path:
    """Copies the part of this repository that a stage and its test need."""
    for folder in ("beam_jobs", "pipeline_ops", "tests/beam_jobs"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CODE_ROOT / folder, project / folder, ignore=ignore)
    shutil.copy(CODE_ROOT / "pyproject.toml", project)
    return project


def run(folder: Path, *words: str, status: int = 0) -> str:
    path = os.pathsep.join(map(str, (folder, folder / "src", CODE_ROOT)))
    environment = os.environ | {"PYTHONPATH": path}
    argv = [sys.executable, *words]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def run_tests(folder: Path, *tests: str, status: int = 0) -> str:
    return run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, status=status)


@pytest.mark.parametrize("name", ["brighten", pytest.param("zoom_in", marks=pytest.mark.engines)])
def test_a_new_stage_passes_its_test_the_linter_and_the_check_of_a_config(
    repository, name, command
):
    output = command("new", "stage", name)
    assert f"Wrote {STAGES}/{name}.py" in output
    add_to_catalogue(repository / STAGES / "__init__.py", output)
    test = f"{STAGE_TESTS}/test_{name}.py"
    run_tests(repository, test, f"{STAGE_TESTS}/test_checks.py")
    run(repository, "-m", "ruff", "check", "--no-cache", "--fix", STAGES, test)
    printed = run(repository, "-c", "from beam_jobs.stages import CATALOGUE; print(*CATALOGUE)")
    assert printed.split()[-1] == name


def add_to_catalogue(catalogue: Path, output: str) -> None:
    """Adds the two lines that the command has printed, as a user does."""
    imported = next(line for line in output.splitlines() if line.startswith("from "))
    entry = next(line for line in output.splitlines() if line.startswith('    "'))
    text = catalogue.read_text().replace(
        "import dataclasses\n", f"{imported}\nimport dataclasses\n"
    )
    catalogue.write_text(text.replace("\n}\n", f"\n{entry}\n}}\n", 1))


def test_a_new_source_passes_its_test_and_the_linter_and_its_line_is_printed(project, command):
    output = command("new", "source", "camera_names")
    assert "Wrote configs/camera_names.py\nWrote configs/test_camera_names.py\n" in output
    assert 'source: {type: "camera_names:camera_names", path: FOLDER}' in output
    assert "2 passed" in run_tests(project, "configs")
    settings = ("--config", str(CODE_ROOT / "pyproject.toml"))
    # The settings of this repository exempt its own tests, and know its packages as its own.
    options = ["--no-cache", *settings, "--extend-ignore", "S101,I001"]
    run(project, "-m", "ruff", "check", *options, "configs")
    run(project, "-m", "ruff", "format", "--check", *settings, "configs")
    file = project / "configs" / "camera_names.py"
    file.write_text(file.read_text().replace("SourceEntry(path, label)", "SourceEntry(path, path)"))
    tested = run_tests(project, "configs", status=1)
    assert "1 failed, 1 passed" in tested  # the test notices a broken source


@pytest.mark.parametrize("layout", [".", pytest.param("src", marks=pytest.mark.engines)])
@pytest.mark.parametrize(
    ("kind", "line", "num_tests"),
    [
        ("stage", "- acme.second:second: {factor: 1.5}", 34),
        ("source", 'source: {type: "acme.second:second"', 4),
    ],
)
def test_a_file_for_a_package_passes_its_test_and_is_published(
    project, command, layout, kind, line, num_tests
):
    (project / layout / "acme").mkdir(parents=True)
    (project / layout / "acme" / "__init__.py").touch()
    command("new", kind, "first", "--package", "acme")
    output = command("new", kind, "second", "--package", "acme")
    assert line in output
    assert f"{num_tests} passed" in run_tests(project, "tests")
    section = output[output.index("[project.") :].partition("\n\n")[0]
    points = tomllib.loads(section)["project"]["entry-points"]
    assert points == {f"trainyard.{kind}s": {"second": "acme.second:second"}}
    command("new", kind, "first", "--package", "acme", status=78)


@pytest.mark.parametrize(("kind", "name", "taken"), CASES)
def test_nothing_is_overwritten_and_nothing_written_beside_it(
    repository, command, kind, name, taken
):
    (repository / taken).write_text("mine")
    before = {path: path.read_bytes() for path in repository.rglob("*.py")}
    assert f"{taken}: already exists" in command("new", kind, name, status=78)
    assert {path: path.read_bytes() for path in repository.rglob("*.py")} == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("stage", name) for name in ("Big", "a-b", "class", "resize", "serve", "2d", "")),
        ("stage", "stage"),
        *(("source", name) for name in ("Big", "a-b", "class", "voc", "json", "2d", "")),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(project, command, kind, name):
    assert command("new", kind, name, status=78).startswith(f"{name}: ")
    assert list((project / "configs").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("stage brighten", "--package PACKAGE"),
        ("stage brighten --package acme", NO_PACKAGE),
        ("source cameras --package acme", NO_PACKAGE),
        ("source cameras --folder here", "here: there is no such folder. Give the folder"),
    ],
)
def test_a_place_that_is_not_there_is_refused_with_the_way_to_a_package(
    project, command, words, message
):
    assert message in command("new", *words.split(), status=78)
