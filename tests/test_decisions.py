"""Each decision has its sections and names code that exists, and the index lists every decision."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "decisions"
FILES = sorted(FOLDER.glob("[0-9]*.md"))
SECTIONS = ["Context", "Decision", "Consequence"]
HEAD = re.compile(
    r"# (.+)\n\nDate: (\d{4}-\d\d-\d\d)\. Status: accepted\.\n"
    r"Code: (`[^`\n]+`(?:, `[^`\n]+`){0,2})\n\n"
)


def has_symbol(file: Path, symbol: str) -> bool:
    """Returns whether a module defines a function, a class, `Class.method` or a constant."""
    body = ast.parse(file.read_text()).body if file.is_file() else []
    for name in symbol.split("."):
        found = [node for node in body if name in list_names(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def list_names(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign(targets=targets):
            return [name.id for name in targets if isinstance(name, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def find_fault(text: str) -> str:
    """Returns what is wrong with the text of a decision, "" if nothing."""
    if not (head := HEAD.match(text)):
        return "does not begin with title, date, status and code"
    if re.findall(rf"^({'|'.join(SECTIONS)}):", text, re.MULTILINE) != SECTIONS:
        return f"does not have the sections {', '.join(SECTIONS)}"
    for code in re.findall("`(.+?)`", head[3]):
        path, _, symbol = code.partition(":")
        is_python = path.endswith(".py")
        if not (has_symbol(ROOT / path, symbol) if is_python else (ROOT / code).is_file()):
            return f"names {code}, which does not exist"
    return ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_decision_is_complete_and_names_code_that_exists(file):
    text = file.read_text()
    assert find_fault(text) == ""
    assert [
        page for page in re.findall(r"\]\((.+?)[#)]", text) if not (FOLDER / page).is_file()
    ] == []


def test_the_index_lists_every_decision_in_order():
    rows = [
        f"| {int(file.name[:3])} | {head[2]} | [{head[1]}]({file.name}) | {head[3]} |"
        for file in FILES
        if (head := HEAD.match(file.read_text()))
    ]
    index = (FOLDER / "README.md").read_text().splitlines()
    assert index[index.index("|---|---|---|---|") + 1 :] == rows


LOOP = "pipeline_ops/training/loop.py"


@pytest.mark.parametrize(
    ("code", "sections", "fault"),
    [
        (f"`{LOOP}:Loop`, `{LOOP}:Loop.train`, `Makefile`", SECTIONS, ""),
        (f"`{LOOP}:_TIMED_CALLS`", SECTIONS, ""),
        (
            f"`{LOOP}:Loop`, `{LOOP}:RingLoop`",
            SECTIONS,
            f"names {LOOP}:RingLoop, which does not exist",
        ),
        (f"`{LOOP}:Loop.fit`", SECTIONS, f"names {LOOP}:Loop.fit, which does not exist"),
        (f"`{LOOP}`", SECTIONS, f"names {LOOP}, which does not exist"),
        ("`training/ring.py:Ring`", SECTIONS, "names training/ring.py:Ring, which does not exist"),
        (f"{LOOP}", SECTIONS, "does not begin with title, date, status and code"),
        (
            ", ".join(["`Makefile`"] * 4),
            SECTIONS,
            "does not begin with title, date, status and code",
        ),
        ("`Makefile`", SECTIONS[:2], "does not have the sections Context, Decision, Consequence"),
    ],
)
def test_code_that_is_gone_is_a_fault(code, sections, fault):
    body = "\n\n".join(f"{section}: A sentence." for section in sections)
    text = f"# A title\n\nDate: 2026-11-30. Status: accepted.\nCode: {code}\n\n{body}\n"
    assert find_fault(text) == fault
