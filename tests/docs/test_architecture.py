"""The paths in docs/architecture.md are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"\| `(\S+)` `(\w+)` \| (.+) \| .+ \|")
_LIMITS = {
    "From a YAML to a DAG": 12,
    "From `execute` to the process of a job": 15,
    "From the conf of a run to the request": 8,
    "From a batch to a checkpoint": 14,
    "From a hang to the next incarnation": 9,
}


def find_function(file: str, name: str) -> ast.FunctionDef:
    tree = ast.parse((ROOT / "pipeline_ops" / file).read_text())
    [found] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == name
        # The operators override some methods.
    ][:1]
    return found


def names_in(node: ast.AST) -> set[str]:
    """The names and attributes that a function uses."""
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return used | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


@pytest.mark.parametrize("title", _LIMITS)
def test_each_function_of_a_path_is_called_by_the_one_that_is_named(title):
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = _ROW.findall(page.partition(f"## {title}\n")[2].partition("\n## ")[0])
    assert 0 < len(rows) <= _LIMITS[title]
    known = {name: file for part in page.split("\n## ") for file, name, _ in _ROW.findall(part)}
    for file, name, caller in rows:
        find_function(file, name)
        caller = caller.strip("`")
        if caller in known:
            used = names_in(find_function(known[caller], caller))
            # A planner is chosen from a table by the name of its job.
            assert name in used or "_PLANNERS" in used, (name, caller)
        elif caller.endswith(".py"):
            assert name in (ROOT / caller).read_text()
        else:
            assert caller == "Airflow"
