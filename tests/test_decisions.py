"""The index of the decisions lists each of them with its status, and a superseded one names its
successor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "decisions"
FILES = sorted(FOLDER.glob("[0-9]*.md"))
ROW = re.compile(r"\| (\d+) \| ([\d-]+) \| \[(.+)\]\((.+\.md)\) \| (.+) \|")


def test_the_index_lists_every_decision_in_order():
    rows = ROW.findall((FOLDER / "README.md").read_text())
    assert [file for *_, file, _ in rows] == [file.name for file in FILES]
    assert [int(number) for number, *_ in rows] == [*range(1, len(FILES) + 1)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_decision_has_the_title_date_and_status_of_the_index(file):
    title, _, state, *_ = file.read_text().splitlines()
    [(_, date, listed_title, _, listed)] = [
        row for row in ROW.findall((FOLDER / "README.md").read_text()) if row[3] == file.name
    ]
    assert title == f"# {listed_title}"
    found = re.fullmatch(
        rf"Date: {date}\. Status: (accepted|superseded by \[.+\]\((.+\.md)\))\.", state
    )
    assert found, state
    assert listed.split()[0] == found[1].split()[0]
    if successor := found[2]:
        assert (FOLDER / successor).is_file() and successor in listed
