"""Which data set a preprocess job goes on from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from manifests import make_manifest

from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import Input, list_files, write_manifest
from pipeline_ops.planning.inputs import choose_base
from pipeline_ops.storage.open_store import open_root

CHAIN = Fingerprint(config={"shards": 8}, inputs={}, code={"plan.py": "1"}, versions={"numpy": "2"})


def question(raw: str, **changes) -> Fingerprint:
    return CHAIN.model_copy(update={"inputs": {"raw files": raw}, **changes})


@pytest.fixture
def make(tmp_path: Path):
    """Leaves a data set of some raw files; those that are made later are newer.
    Returns it as an input."""
    made = []

    def make(raw: str, base: Input | None = None, **changes) -> Input:
        folder = tmp_path / f"{len(made)}"
        folder.mkdir()
        (folder / "train-00000-of-00001.tfrecord").write_bytes(f"{raw}{len(made)}".encode())
        fingerprint, inputs = question(raw, **changes), {"base": base} if base else {}
        if base:
            named = fingerprint.inputs | {"base": base.digest}
            fingerprint = fingerprint.model_copy(update={"inputs": named})
        files = list_files(folder)
        manifest = make_manifest("preprocess", fingerprint, inputs=inputs, files=files)
        write_manifest(folder, manifest)
        made.append(folder)
        os.utime(folder / "manifest.json", ns=(len(made) * 10**9, len(made) * 10**9))
        return Input(uri=str(folder / "manifest.json"), digest=manifest.digest)

    return make


def test_without_any_data_set_there_is_nothing_to_go_on_from(tmp_path):
    assert choose_base(open_root(tmp_path / "nowhere"), question("a")) is None


def test_the_newest_is_gone_on_from(make, tmp_path):
    make("a")
    newest = make("b")
    assert choose_base(open_root(tmp_path), question("c")) == newest


def test_the_same_raw_files_ask_the_question_that_was_answered(make, tmp_path):
    first = make("a")
    make("b", base=first)
    make("c")
    assert choose_base(open_root(tmp_path), question("b")) == first
    assert choose_base(open_root(tmp_path), question("a")) is None


def test_the_same_raw_files_against_another_reference_ask_another_question_of_which_the_answer_is_the_best_base(  # noqa: E501
    make, tmp_path
):
    first = make("a")
    old, new = ({"raw files": "b", "reference schema": number} for number in "12")
    held = make("b", base=first, inputs=old)
    assert choose_base(open_root(tmp_path), question("b", inputs=old)) == first
    assert choose_base(open_root(tmp_path), question("b", inputs=new)) == held


@pytest.mark.parametrize(
    "change", [{"config": {"shards": 9}}, {"code": {"plan.py": "2"}}, {"versions": {"numpy": "3"}}]
)
def test_what_another_config_code_or_version_made_is_not_gone_on_from(make, tmp_path, change):
    make("a", **change)
    assert choose_base(open_root(tmp_path), question("b")) is None


def test_a_damaged_data_set_counts_as_absent(make, tmp_path):
    whole, damaged = make("a"), make("b")
    (Path(damaged.uri).parent / "train-00000-of-00001.tfrecord").write_bytes(b"")
    assert choose_base(open_root(tmp_path), question("c")) == whole
    assert choose_base(open_root(tmp_path), question("b")) == whole


def test_a_manifest_of_another_version_is_passed_over(make, tmp_path):
    whole = make("a")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "manifest.json").write_text("{}")
    assert choose_base(open_root(tmp_path), question("b")) == whole
