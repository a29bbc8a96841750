"""The test kit for sources: it accepts a right source, and notices each broken promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.sources.source import SourceFailed
from beam_jobs.sources.testing import check_source
from pipeline_ops.errors import ConfigError

HEAD = """\
import time

from beam_jobs.sources.source import Reject, SourceEntry, SourceFiles, parameters


@parameters
class Mine:
    pass


counts = []


def mine(files: SourceFiles, parameters: Mine):
"""


@pytest.fixture
def check(tmp_path: Path):
    """Checks the function with a body on the files a.png and b.png."""
    (tmp_path / "raw").mkdir()
    for name in "ab":
        (tmp_path / "raw" / f"{name}.png").write_text(name)

    def check(body: str, **source):
        text = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / "mine.py").write_text(HEAD + text)
        return check_source({"type": "mine:mine", "path": "raw", **source}, tmp_path)

    return check


def test_a_right_source_gives_records_and_reasons(check):
    records, rejects = check(
        "for path in files:\n"
        "    with files.entry(path):\n"
        "        if path == 'b.png': raise Reject('no_label', 'none')\n"
        "        yield SourceEntry(path, 'cat')"
    )
    assert {path: record.label for path, record in records.items()} == {"a.png": "cat"}
    assert rejects == {"b.png": "no_label"}


@pytest.mark.parametrize(
    "body, message",
    [
        (
            "counts.append(1)\nfor path in files: yield SourceEntry(path, f'class {len(counts)}')",
            "a second run of mine:mine gives another result: .*class 1.* and .*class 2",
        ),
        (
            "for path in files: yield SourceEntry(path, str(time.time_ns()))",
            "a second run of mine:mine gives another result",
        ),
        (
            "for n, path in enumerate(files): yield SourceEntry(path, f'class {n}')",
            "mine:mine depends on the order of the files: .*class 0.* and .*class 1",
        ),
        (
            "yield SourceEntry([*files][0], 'cat')",
            "mine:mine depends on the order of the files: .*a.png.* and .*b.png",
        ),
        (
            "for path in [*files, 'a.png']: yield SourceEntry(path, 'cat')",
            "mine:mine: a.png is named more than once: a.png, a.png",
        ),
        (
            "for path in ('a.png', '../x.png'): yield SourceEntry(path, 'cat')",
            r"mine:mine: \.\./x\.png is not in .*raw",
        ),
        (
            "for path in ('a.png', '/etc/hostname'): yield SourceEntry(path, 'cat')",
            "mine:mine: /etc/hostname is not in",
        ),
        (
            "with open(f'{__file__[:-7]}raw/new.png', 'a') as file: file.write('x')\n"
            "yield SourceEntry('a.png', 'cat')",
            "mine:mine changes files in .*raw",
        ),
    ],
)
def test_a_broken_promise_is_named(check, body, message):
    with pytest.raises(AssertionError, match=message):
        check(body)


def test_a_bug_is_reported_as_in_the_job(check):
    with pytest.raises(SourceFailed, match="yielded a str as entry 1"):
        check("yield 'a.png'")


def test_a_wrong_parameter_is_reported_as_in_the_job(check):
    with pytest.raises(ConfigError, match=r"preprocess\.source\.separator: unknown parameter"):
        check("yield SourceEntry('a.png', 'cat')", separator="_")
