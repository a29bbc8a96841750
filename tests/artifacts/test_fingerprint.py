"""The fingerprint: what must change it, what must not, and how the difference is told."""

from __future__ import annotations

import importlib.metadata
import itertools
import os

import pytest

from pipeline_ops.artifacts.fingerprint import CODE_ROOT, Fingerprint, digest_code, versions_of
from pipeline_ops.errors import TrainyardError
from pipeline_ops.storage.digest import digest_of

BASE = {
    "config": {"train": {"epochs": 10, "seed": 1}},
    "inputs": {"data": "d1"},
    "code": {"a.py": "c1"},
    "versions": {"keras": "3.15.1"},
}


def fingerprint(**changes) -> Fingerprint:
    return Fingerprint(**(BASE | changes))


@pytest.fixture
def digest_text(tmp_path):
    """The digest of a source file with a text; each one is newer than the one before."""
    times = itertools.count(1)

    def digest(text: str, name: str = "code.py") -> str:
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (0, next(times)))
        return digest_code([name], root=tmp_path)[name]

    return digest


def test_the_order_of_keys_is_no_difference():
    assert fingerprint().digest == fingerprint(config={"train": {"seed": 1, "epochs": 10}}).digest
    assert (
        digest_of({"a": 1, "b": [1, 2]})
        == digest_of({"b": [1, 2], "a": 1})
        != digest_of({"a": 1, "b": [2, 1]})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"train": {"epochs": 11, "seed": 1}}},
        {"config": {"train": {"epochs": "10", "seed": 1}}},
        {"config": {"train": {"epochs": 10}}},
        {"inputs": {"data": "d2"}},
        {"inputs": {"other": "d1"}},
        {"code": {"a.py": "c2"}},
        {"code": {}},
        {"versions": {"keras": "3.15.2"}},
    ],
)
def test_everything_that_can_change_the_outcome_changes_the_digest(change):
    assert fingerprint(**change).digest != fingerprint().digest


def test_a_digest_is_32_hex_digits_and_equal_in_every_process():
    assert (
        digest_of({"a": [1, 2.5, None, "é"]}) == "ca630b5436e6bc1aa5cf0259b697e8b2"
    )  # b2sum -l 128


@pytest.mark.parametrize(
    "change, lines",
    [
        ({}, []),
        ({"config": {"train": {"epochs": 15, "seed": 1}}}, ["config train.epochs: 10 -> 15"]),
        (
            {"config": {"train": {"epochs": 10, "seed": 1, "workers": 2}}},
            ["config train.workers: null -> 2"],
        ),
        ({"inputs": {"data": "d2"}}, ["inputs data changed"]),
        ({"inputs": {"data": "d1", "champion": "m"}}, ["inputs champion is new"]),
        ({"code": {}}, ["code a.py is gone"]),
        ({"versions": {"keras": "3.16.0"}}, ['versions keras: "3.15.1" -> "3.16.0"']),
    ],
)
def test_a_difference_is_told_in_a_line(change, lines):
    assert fingerprint(**change).changes_since(fingerprint()) == lines


def test_comments_and_line_breaks_are_no_change_of_code(digest_text):
    assert (
        digest_text("x = [1, 2]\n")
        == digest_text("# why\nx = [\n    1,  # one\n    2,\n]\n")
        != digest_text("x = [1, 3]\n")
    )


def test_the_bytes_of_a_template_count(digest_text):
    assert digest_text("<p>{{ x }}</p>", "page.html") != digest_text("<p> {{ x }}</p>", "page.html")


def test_a_folder_stands_for_its_sources_and_nothing_else(tmp_path):
    for name in ("a.py", "page.html", "style.css", "notes.txt", "a.pyc", "sub.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.py").write_text("")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"\0")
    assert list(digest_code(["."], root=tmp_path)) == [
        "a.py",
        "deep/b.py",
        "page.html",
        "style.css",
        "sub.py",
    ]


def test_code_is_named_from_the_root_so_that_its_place_is_no_difference():
    assert list(digest_code(["pipeline_ops/errors.py"])) == ["pipeline_ops/errors.py"]
    assert (CODE_ROOT / "pipeline_ops" / "errors.py").is_file()


def test_a_source_that_is_missing_is_an_error_that_names_it():
    with pytest.raises(TrainyardError, match="pipeline_ops/gone.py is a source of this job"):
        digest_code(["pipeline_ops/errors.py", "pipeline_ops/gone.py"])


def test_the_report_template_is_part_of_the_evaluation():
    assert {"pipeline_ops/evaluation/report.html", "pipeline_ops/evaluation/report.css"} <= set(
        digest_code(["pipeline_ops/evaluation"])
    )


def test_a_package_that_is_not_installed_has_no_version():
    assert versions_of(["pydantic", "no-such-package"]) == {
        "pydantic": importlib.metadata.version("pydantic")
    }
