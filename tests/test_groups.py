"""The groups of heavy tests: CI runs each in its turn, and first where its part was changed."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

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
    packages = [path for path in (ROOT / "pipeline_ops").iterdir() if path.name[0] not in "_."]
    changed = [f"{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in packages]
    changed += ["beam_jobs/x.py", "dags/x.py"]
    assert [path for path in changed if not groups.find_touched([path])] == []
    for group in groups.GROUPS.values():
        assert all(list(ROOT.glob(f"{path}*")) for path in group.paths)


def test_a_changed_test_touches_the_groups_of_its_marks(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("pytestmark = pytest.mark.engines\n")
    assert groups.find_touched(["tests/test_it.py", "README.md"], tmp_path) == {"engines"}


@pytest.mark.parametrize("touched", [set(), {"engines"}, {"hosts", "faults"}, {*groups.GROUPS}])
def test_as_many_runs_in_a_row_as_groups_run_each_of_them_within_the_time(touched):
    for first in range(len(groups.GROUPS)):
        runs = [
            groups.choose_groups(touched, number)
            for number in range(first, first + len(groups.GROUPS))
        ]
        assert set().union(*runs) == {*groups.GROUPS}
        for run in runs:
            assert sum(groups.GROUPS[name].minutes for name in run) <= groups.MAX_MINUTES
            assert touched & {*run} or not touched
            assert run == sorted(run, key=lambda name: name not in touched)


def test_contributing_names_the_minutes_of_each_group():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.findall(r"GROUP=(\w+)` \|.*\| (\d+) min \|$", page, re.MULTILINE)
    assert dict(found) == {name: str(group.minutes) for name, group in groups.GROUPS.items()}


def test_no_group_takes_longer_than_twenty_minutes():
    assert max(group.minutes for group in groups.GROUPS.values()) <= 20
