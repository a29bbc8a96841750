"""The groups of heavy tests, of which CI runs some in each turn."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_specification = importlib.util.spec_from_file_location("groups", ROOT / ".ci" / "groups.py")
groups = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(groups)


def test_the_marks_of_pytest_and_the_makefile_name_the_same_groups():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    marks = [mark.partition(":")[0] for mark in settings["ini_options"]["markers"]]
    [listed] = re.findall(r"^GROUPS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert marks == listed.split() == list(groups.GROUPS)


def test_each_package_of_the_product_touches_a_group():
    # Of a package that was moved, bytecode may be left in a clone.
    packages = [
        path
        for path in (ROOT / "pipeline_ops").iterdir()
        if path.name[0] not in "_." and (path.is_file() or list(path.rglob("*.py")))
    ]
    changed = [f"{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in packages]
    changed += ["beam_jobs/x.py", "dags/x.py"]
    assert [path for path in changed if not groups.find_touched([path])] == []
    for group in groups.GROUPS.values():
        assert all(list(ROOT.glob(f"{path}*")) for path in group.paths)


def test_a_changed_test_touches_the_groups_of_its_marks(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("pytestmark = pytest.mark.engines\n")
    assert groups.find_touched(["tests/test_it.py", "README.md"], tmp_path) == {"engines"}


def test_five_runs_in_a_row_run_each_group_within_the_time():
    for first in range(20):
        runs = [groups.choose_groups(number) for number in range(first, first + 5)]
        assert sorted(name for run in runs for name in run) == sorted(groups.GROUPS)
    for turn in groups.TURNS:
        assert sum(groups.GROUPS[name].minutes for name in turn) <= groups.MAX_MINUTES


def test_ci_runs_and_names_the_groups_of_the_turn_in_the_repository():
    turn = int((ROOT / ".ci" / "turn").read_text())
    command = [sys.executable, ROOT / ".ci" / "groups.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*groups.choose_groups(turn)]
    assert done.stderr.startswith(f"Turn {turn}. The next ones: ")
    script = (ROOT / ".ci" / "run").read_text()
    assert "groups=$(.venv/bin/python .ci/groups.py)" in script
    assert 'make test-systems GROUP="$group"' in script


def test_contributing_names_the_minutes_of_each_group():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.findall(r"GROUP=(\w+)` \|.*\| (\d+) min \|$", page, re.MULTILINE)
    assert dict(found) == {name: str(group.minutes) for name, group in groups.GROUPS.items()}
