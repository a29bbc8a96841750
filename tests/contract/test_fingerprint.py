"""The fingerprint: what must change it, what must not, and how the difference is described."""

from __future__ import annotations

import importlib.metadata

import pytest

from pipeline_ops.contract.fingerprint import Fingerprint, find_versions
from pipeline_ops.storage.checksums import compute_digest

BASE = {
    "config": {"train": {"epochs": 10, "seed": 1}},
    "inputs": {"data": "d1"},
    "code": {"a.py": "c1"},
    "versions": {"keras": "3.15.1"},
}


def fingerprint(**changes) -> Fingerprint:
    return Fingerprint(**(BASE | changes))


def test_the_order_of_keys_is_no_difference():
    assert fingerprint().digest == fingerprint(config={"train": {"seed": 1, "epochs": 10}}).digest
    assert (
        compute_digest({"a": 1, "b": [1, 2]})
        == compute_digest({"b": [1, 2], "a": 1})
        != compute_digest({"a": 1, "b": [2, 1]})
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
        compute_digest({"a": [1, 2.5, None, "é"]}) == "ca630b5436e6bc1aa5cf0259b697e8b2"
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
    assert fingerprint(**change).describe_changes_since(fingerprint()) == lines


def test_a_package_that_is_not_installed_has_no_version():
    assert find_versions(["pydantic", "no-such-package"]) == {
        "pydantic": importlib.metadata.version("pydantic")
    }


def test_of_many_changed_files_the_first_are_named_and_the_others_counted():
    older = fingerprint(code={}, versions={"keras": "1"})
    newer = fingerprint(code={f"{name}.py": "1" for name in "abcde"}, versions={"keras": "2"})
    assert newer.describe_changes_since(older) == [
        "code a.py is new",
        "code b.py is new",
        "code c.py is new",
        "code: 2 more files",
        'versions keras: "1" -> "2"',
    ]
