"""The source in docs/add-a-source.md is a source, and its test passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

from beam_jobs.sources.folder_view import view_folder
from beam_jobs.sources.source import SourceEntry
from pipeline_ops.contract.source_code import CODE_ROOT

PAGE = (CODE_ROOT / "docs" / "add-a-source.md").read_text()


def test_the_files_of_the_page_pass_the_test_and_the_linter(tmp_path):
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    source, test, recogniser, *transforms = map(textwrap.dedent, blocks)
    for index, transform in enumerate(transforms):
        (tmp_path / f"transform_{index}.py").write_text(transform)
    (tmp_path / "tab_labels.py").write_text(source)
    (tmp_path / "tab_recogniser.py").write_text(recogniser)
    (tmp_path / "test_tab_labels.py").write_text(test)
    for words in (
        ["pytest", "-q", "-p", "no:cacheprovider", "."],
        ["ruff", "check", "--no-cache", "--line-length", "100", "--ignore", "I001", "."],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(CODE_ROOT)},
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_recogniser_of_the_page_finds_its_data(tmp_path):
    [_, _, block, *_] = re.findall(r"^ *```python\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(block, names)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "labels.txt").write_text("1.png\tcat\n")
    [match] = names["recognise"](view_folder(tmp_path))
    assert (match.type, match.keys) == ("tab_labels", {"labels": "sub/labels.txt"})
    (tmp_path / "sub" / "labels.txt").write_text("1.png cat\n")
    assert [*names["recognise"](view_folder(tmp_path))] == [
        "sub/labels.txt has no tab. Save it with tabs"
    ]


def test_every_field_of_an_entry_is_on_the_page():
    table = PAGE.partition("## The entry")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(SourceEntry.__slots__)
