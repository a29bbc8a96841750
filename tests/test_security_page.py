"""`SECURITY.md` claims what tests show: each row of its table names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ROWS = [
    line
    for line in PAGE.partition("## Threats")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| finding |")
]
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[2].strip()[:60])
def test_each_threat_names_tests_that_exist(row):
    named = _TEST.findall(row)
    assert named, "this row names no test"
    for file, function in named:
        tree = ast.parse((ROOT / file).read_bytes())
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not function or function in tests, f"{file} has no {function}"


def test_every_finding_has_a_row():
    found = {row.split("|")[1].strip() for row in ROWS} - {""}
    numbers = {"F": 20, "N": 13, "M": 12}
    assert found == {f"{kind}{n + 1}" for kind, count in numbers.items() for n in range(count)}
