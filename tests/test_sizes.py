"""Product code stays in small files and functions. Ruff checks line length and complexity.

Test files are excluded: a long list of promises with one set of fixtures reads better in one file.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
FILES = [
    file for top in ("pipeline_ops", "beam_jobs", "dags") for file in (ROOT / top).rglob("*.py")
]


@pytest.mark.parametrize("file", sorted(FILES), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_and_its_functions_are_small(file):
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }
    assert long == {}
