"""The stages in docs/add-a-stage.md are stages, and their tests pass."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from beam_jobs.stages import CATALOGUE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "add-a-stage.md").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """As much of this repository as a stage needs, with the files of the page."""
    for folder in ("beam_jobs", "pipeline_ops"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    files = list(map(textwrap.dedent, blocks))
    stages, tests = tmp_path / "beam_jobs" / "stages", tmp_path / "tests"
    tests.mkdir()
    entry = re.search(r'^ *("bright_enough": Stage\(.*\),)$', PAGE, re.MULTILINE)
    assert entry
    entries = (
        f'    {entry[1]}\n    "invert": Stage(invert.Invert, invert.invert, serve=invert.serve),'
    )
    for name, stage, test in zip(("bright_enough", "invert"), files[::2], files[1::2], strict=True):
        (stages / f"{name}.py").write_text(stage)
        (tests / f"test_{name}.py").write_text(test)
    catalogue = (stages / "__init__.py").read_text().replace("\n}\n", f"\n{entries}\n}}\n", 1)
    imports = "from beam_jobs.stages import bright_enough, invert\nimport dataclasses\n"
    (stages / "__init__.py").write_text(catalogue.replace("import dataclasses\n", imports))
    return tmp_path


def test_the_files_of_the_page_pass_the_test_and_the_linter(repository):
    for words in (
        ["pytest", "-q", "-p", "no:cacheprovider", "tests"],
        ["ruff", "check", "--no-cache", "--fix", "."],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=repository,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(repository)},
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_stage_is_on_the_page():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(CATALOGUE)
