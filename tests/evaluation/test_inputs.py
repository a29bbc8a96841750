"""The inputs of an evaluation: damaged, replaced, removed, or of other classes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from evaluation.evaluations import LENIENT, read_figures
from sandbox import copy_dataset, remove_from_tests

from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.contract.results import REPORT
from pipeline_ops.errors import DataError, ExitCode


def spoil(file: Path, offset: int = -20) -> None:
    """Changes one byte, and neither size nor name."""
    content = bytearray(file.read_bytes())
    content[offset] ^= 0xFF
    file.write_bytes(content)


def test_a_damaged_test_shard_is_refused_and_named(sandbox, tmp_path):
    dataset = copy_dataset(sandbox.dataset, tmp_path / "dataset")
    plan = sandbox.plan("evaluate", sandbox.train("good", dataset), dataset=dataset)
    spoil(tmp_path / "dataset" / "test-00002-of-00004.tfrecord")
    with pytest.raises(DataError, match=r"test-00002-of-00004\.tfrecord has another checksum"):
        sandbox.run(plan)
    assert not Path(plan.request.artifact).exists()


def test_a_missing_test_shard_is_refused_and_named(sandbox, tmp_path):
    dataset = copy_dataset(sandbox.dataset, tmp_path / "dataset")
    plan = sandbox.plan("evaluate", sandbox.train("good", dataset), dataset=dataset)
    (tmp_path / "dataset" / "test-00001-of-00004.tfrecord").unlink()
    with pytest.raises(DataError, match=r"test-00001-of-00004\.tfrecord is missing"):
        sandbox.run(plan)


def test_a_data_set_that_was_replaced_after_the_run_was_planned_is_refused(sandbox, tmp_path):
    dataset = copy_dataset(sandbox.dataset, tmp_path / "dataset")
    plan = sandbox.plan("evaluate", sandbox.train("good", dataset), dataset=dataset)
    shutil.rmtree(tmp_path / "dataset")
    copy_dataset(sandbox.dataset, tmp_path / "dataset", key_prefix="other/")
    with pytest.raises(DataError, match="when this job was planned"):
        sandbox.run(plan)


def test_a_challenger_of_another_data_set_is_refused(sandbox, tmp_path):
    other = copy_dataset(sandbox.dataset, tmp_path / "other", key_prefix="other/")
    with pytest.raises(DataError, match="trained on another data set"):
        sandbox.run(sandbox.plan("evaluate", sandbox.train("good"), dataset=other))


def test_a_damaged_candidate_is_refused_and_named(sandbox):
    plan = sandbox.plan("evaluate", train := sandbox.train("good"))
    spoil(Path(train).parent / "saved_model" / "saved_model.pb")
    with pytest.raises(DataError, match=r"saved_model/saved_model\.pb has another checksum"):
        sandbox.run(plan)


def test_a_damaged_champion_is_refused_and_named(sandbox):
    sandbox.publish("fair")
    plan = sandbox.plan("evaluate", sandbox.train("good"))
    spoil(Path(sandbox.registry.find_champion().folder) / "saved_model.pb")
    with pytest.raises(DataError, match=r"models/digits/1/saved_model\.pb has another checksum"):
        sandbox.run(plan)


@pytest.mark.models
def test_a_champion_that_knows_other_classes_is_not_compared_and_the_rule_says_so(
    sandbox, tmp_path
):
    sandbox.publish("good")
    renamed = copy_dataset(
        sandbox.dataset, tmp_path / "renamed", class_names=["zero", *"123456789"]
    )
    _, folder = sandbox.run(
        sandbox.plan(
            "evaluate",
            sandbox.train("poor", renamed),
            dataset=renamed,
            evaluate__gate=[{"metric": "accuracy", "max_regression": 0.0}],
        )
    )
    figures = read_figures(folder)
    assert figures.champion is None and figures.champion_version == 1
    assert figures.rules[0].passed
    assert figures.rules[0].text == (
        "accuracy 0.4700 is not compared: the champion (version 1) "
        "does not know zero and knows 0, which the data set lacks"
    )
    assert "does not know zero" in (folder / REPORT).read_text()


@pytest.mark.models
def test_a_champion_with_the_classes_in_another_order_is_not_compared(sandbox, tmp_path):
    sandbox.publish("good")
    reordered = copy_dataset(sandbox.dataset, tmp_path / "reordered", class_names=[*"1023456789"])
    _, folder = sandbox.run(
        sandbox.plan(
            "evaluate",
            sandbox.train("good", reordered, tag="new"),
            dataset=reordered,
            evaluate__gate=LENIENT,
        )
    )
    assert "has the classes in another order" in read_figures(folder).rules[1].text


def test_an_evaluation_is_not_repeated_once_the_challenger_is_the_champion(sandbox):
    train = sandbox.publish("good")
    assert sandbox.plan("evaluate", train).is_cached


def test_examples_that_a_later_generation_has_removed_are_not_asked(sandbox, tmp_path):
    uri = remove_from_tests(sandbox.dataset, tmp_path / "later", [0, 2, 24])
    code, folder = sandbox.run(
        sandbox.plan(
            "evaluate", sandbox.train("good", dataset=uri), dataset=uri, evaluate__gate=LENIENT
        )
    )
    assert code == ExitCode.SUCCESS
    assert (
        read_figures(folder).num_examples
        == sum(sum(row) for row in read_figures(folder).challenger.confusion)
        == 97
    )


def test_a_test_split_of_a_handful_is_a_warning_among_the_figures(sandbox, tmp_path):
    """A later generation has removed most of the 100 test images."""
    uri = remove_from_tests(sandbox.dataset, tmp_path / "later", [*range(18)], num_shards=4)
    for dataset, count in ((sandbox.dataset, 0), (uri, 1)):
        train = sandbox.train("good", dataset=dataset, tag=str(count))
        _, folder = sandbox.run(
            sandbox.plan("evaluate", train, dataset=dataset, evaluate__gate=LENIENT), str(count)
        )
        assert len(read_figures(folder).warnings) == count


def test_a_test_split_of_which_something_else_is_removed_than_was_planned_is_refused(
    sandbox, tmp_path
):
    uri = remove_from_tests(sandbox.dataset, tmp_path / "later", [0, 2])
    plan = sandbox.plan("evaluate", sandbox.train("good", dataset=uri), dataset=uri)
    manifest = read_manifest(uri)  # the digest of the files does not see it
    figures = DatasetFigures.model_validate(manifest.figures).model_copy(
        update={"removed": {"test-00000-of-00004.tfrecord": [0, 3]}}
    )
    changed = manifest.model_copy(update={"figures": figures.model_dump(mode="json")})
    assert changed.digest == manifest.digest
    write_manifest(tmp_path / "later", changed)
    with pytest.raises(DataError, match="is pinned in this evaluation's request. Start a new run"):
        sandbox.run(plan)
