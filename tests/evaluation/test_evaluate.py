"""The evaluate job, on real shards and real SavedModels."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from workshop import copy_dataset, read_examples, remove_from_tests

from pipeline_ops.contracts.errors import DataError, ExitCode
from pipeline_ops.contracts.figures import METRICS, REPORT, EvaluationFigures
from pipeline_ops.contracts.manifest import NAME, find_damage, read_manifest
from pipeline_ops.contracts.progress import ProgressReader
from pipeline_ops.contracts.request import read_status
from pipeline_ops.contracts.shards import KEY, shard_paths

LENIENT = [{"metric": "accuracy", "at_least": 0.5, "not_worse_than_champion_by_more_than": 0.05}]
STRICT = [{"metric": "accuracy", "at_least": 0.99}]


def figures_of(folder: Path) -> EvaluationFigures:
    return EvaluationFigures.model_validate(read_manifest(folder / NAME).figures)


def spoil(file: Path, offset: int = -20) -> None:
    """Changes one byte, and neither size nor name."""
    content = bytearray(file.read_bytes())
    content[offset] ^= 0xFF
    file.write_bytes(content)


def test_champion_and_challenger_answer_for_the_same_examples(workshop):
    workshop.publish("fair")
    code, folder = workshop.run(workshop.plan("evaluate", workshop.train("good"), evaluate__gate=LENIENT))
    figures, metrics = figures_of(folder), json.loads((folder / METRICS).read_bytes())
    assert code == ExitCode.SUCCESS and figures.gate_passed
    assert figures.champion_version == 1
    rows = [[sum(row) for row in model.confusion] for model in (figures.challenger, figures.champion)]
    assert rows[0] == rows[1] and sum(rows[0]) == figures.num_examples == 100
    assert sum(metrics["comparison"][kind] for kind in ("both_right", "only_challenger_right", "only_champion_right", "both_wrong")) == 100
    assert [rule.text for rule in figures.rules] == [
        "accuracy 0.8700 is at least 0.5000", "accuracy 0.8700 is 0.1300 above the champion's 0.7400; a loss of at most 0.0500 is allowed"]


def test_the_figures_are_those_of_the_saved_model_asked_one_by_one(workshop):
    import tensorflow as tf

    _, folder = workshop.run(workshop.plan("evaluate", workshop.train("good"), evaluate__batch=7))
    records, _, labels = read_examples(shard_paths(workshop.dataset, read_manifest(workshop.dataset), "test"))
    model = tf.saved_model.load(str(workshop.saved_models["good"] / "saved_model")).signatures["serving_default"]
    images = tf.io.parse_example(records, {"image/encoded": tf.io.FixedLenFeature([], tf.string)})["image/encoded"]
    answers = np.concatenate([model(image_bytes=images[i : i + 1])["classes"].numpy() for i in range(len(labels))])
    assert figures_of(folder).challenger.metrics["accuracy"] == (answers == labels).mean()


def test_the_worst_mistakes_are_the_most_confident_ones(workshop):
    train = workshop.train("poor")
    every = json.loads((workshop.run(workshop.plan("evaluate", train, evaluate__worst_mistakes=500))[1] / METRICS).read_bytes())["worst_mistakes"]
    few = json.loads((workshop.run(workshop.plan("evaluate", train, evaluate__worst_mistakes=3, evaluate__batch=10))[1] / METRICS).read_bytes())
    assert len(every) == 53
    assert [m["confidence"] for m in every] == sorted((m["confidence"] for m in every), reverse=True)
    assert [m["key"] for m in few["worst_mistakes"]] == [m["key"] for m in every[:3]]
    assert all(m["label"] != m["answer"] and m["label_probability"] <= m["confidence"] for m in every)


def test_a_gate_that_is_not_passed_exits_3_and_leaves_the_whole_artifact(workshop):
    process, attempt = workshop.start(plan := workshop.plan("evaluate", workshop.train("good"), evaluate__gate=STRICT))
    assert process.wait(60) == 3, attempt.log.read_text()
    folder = Path(plan.request.artifact)
    assert {file.path for file in read_manifest(folder / NAME).files} == {REPORT, METRICS}
    assert find_damage(folder / NAME, read_manifest(folder / NAME), checksums=True) == []
    assert not figures_of(folder).gate_passed
    assert read_status(attempt).manifest == str(folder / NAME)


def test_a_passed_gate_exits_0_and_progress_counts_the_images(workshop):
    process, attempt = workshop.start(workshop.plan("evaluate", workshop.train("good")))
    assert process.wait(60) == 0, attempt.log.read_text()
    moments = ProgressReader(attempt.progress).new()
    assert [(m.phase, m.done, m.total, m.unit) for m in moments] == [("evaluate", done, 100, "images") for done in (0, 32, 64, 96, 100)]


def test_the_same_evaluation_gives_the_same_bytes_wherever_and_whenever_it_runs(workshop, tmp_path):
    elsewhere = dataclasses.replace(workshop, root=tmp_path / "elsewhere")
    pages = []
    for shop, run_id in ((workshop, "run-1"), (elsewhere, "another run")):
        plan = shop.plan("evaluate", shop.train("good"))
        plan = dataclasses.replace(plan, request=plan.request.model_copy(update={"run_id": run_id}))
        folder = shop.run(plan)[1]
        pages.append([(folder / name).read_bytes() for name in (REPORT, METRICS)])
    assert pages[0] == pages[1]
    assert b"another run" not in pages[1][0] and str(tmp_path).encode() not in pages[1][0]


def test_a_damaged_test_shard_is_refused_and_named(workshop, tmp_path):
    dataset = copy_dataset(workshop.dataset, tmp_path / "dataset")
    plan = workshop.plan("evaluate", workshop.train("good", dataset), dataset=dataset)
    spoil(tmp_path / "dataset" / "test-00002-of-00004.tfrecord")
    with pytest.raises(DataError, match=r"test-00002-of-00004\.tfrecord has another checksum"):
        workshop.run(plan)
    assert not Path(plan.request.artifact).exists()


def test_a_missing_test_shard_is_refused_and_named(workshop, tmp_path):
    dataset = copy_dataset(workshop.dataset, tmp_path / "dataset")
    plan = workshop.plan("evaluate", workshop.train("good", dataset), dataset=dataset)
    (tmp_path / "dataset" / "test-00001-of-00004.tfrecord").unlink()
    with pytest.raises(DataError, match=r"test-00001-of-00004\.tfrecord is missing"):
        workshop.run(plan)


def test_a_data_set_that_was_replaced_after_the_run_was_planned_is_refused(workshop, tmp_path):
    dataset = copy_dataset(workshop.dataset, tmp_path / "dataset")
    plan = workshop.plan("evaluate", workshop.train("good", dataset), dataset=dataset)
    shutil.rmtree(tmp_path / "dataset")
    copy_dataset(workshop.dataset, tmp_path / "dataset", key_prefix="other/")
    with pytest.raises(DataError, match="when this job was planned"):
        workshop.run(plan)


def test_a_challenger_of_another_data_set_is_refused(workshop, tmp_path):
    other = copy_dataset(workshop.dataset, tmp_path / "other", key_prefix="other/")
    with pytest.raises(DataError, match="trained on another data set"):
        workshop.run(workshop.plan("evaluate", workshop.train("good"), dataset=other))


def test_a_damaged_candidate_is_refused_and_named(workshop):
    plan = workshop.plan("evaluate", train := workshop.train("good"))
    spoil(Path(train).parent / "saved_model" / "saved_model.pb")
    with pytest.raises(DataError, match=r"saved_model/saved_model\.pb has another checksum"):
        workshop.run(plan)


def test_a_damaged_champion_is_refused_and_named(workshop):
    workshop.publish("fair")
    plan = workshop.plan("evaluate", workshop.train("good"))
    spoil(workshop.registry.champion().folder / "saved_model.pb")
    with pytest.raises(DataError, match=r"models/digits/1/saved_model\.pb has another checksum"):
        workshop.run(plan)


def test_a_champion_that_knows_other_classes_is_not_compared_and_the_rule_says_so(workshop, tmp_path):
    workshop.publish("good")
    renamed = copy_dataset(workshop.dataset, tmp_path / "renamed", class_names=["zero", *"123456789"])
    _, folder = workshop.run(workshop.plan("evaluate", workshop.train("poor", renamed), dataset=renamed, evaluate__gate=[
        {"metric": "accuracy", "not_worse_than_champion_by_more_than": 0.0}]))
    figures = figures_of(folder)
    assert figures.champion is None and figures.champion_version == 1
    assert figures.rules[0].passed
    assert figures.rules[0].text == (
        "accuracy 0.4700 stands alone: the champion (version 1) does not know zero and knows 0, which the data set lacks")
    assert "does not know zero" in (folder / REPORT).read_text()


def test_a_champion_with_the_classes_in_another_order_is_not_compared(workshop, tmp_path):
    workshop.publish("good")
    reordered = copy_dataset(workshop.dataset, tmp_path / "reordered", class_names=[*"1023456789"])
    _, folder = workshop.run(workshop.plan("evaluate", workshop.train("good", reordered, tag="new"), dataset=reordered, evaluate__gate=LENIENT))
    assert "has the classes in another order" in figures_of(folder).rules[1].text


def test_an_evaluation_is_not_repeated_once_the_challenger_is_the_champion(workshop):
    train = workshop.publish("good")
    assert workshop.plan("evaluate", train).is_cached


def test_examples_that_a_later_generation_has_removed_are_not_asked(workshop, tmp_path):
    uri = remove_from_tests(workshop.dataset, tmp_path / "later", [0, 2, 24])
    code, folder = workshop.run(workshop.plan("evaluate", workshop.train("good", dataset=uri), dataset=uri, evaluate__gate=LENIENT))
    assert code == ExitCode.SUCCESS
    assert figures_of(folder).num_examples == sum(sum(row) for row in figures_of(folder).challenger.confusion) == 97


def test_the_keys_of_the_mistakes_are_those_of_the_examples(workshop):
    import tensorflow as tf

    _, folder = workshop.run(workshop.plan("evaluate", workshop.train("poor"), evaluate__worst_mistakes=500))
    records, _, labels = read_examples(shard_paths(workshop.dataset, read_manifest(workshop.dataset), "test"))
    keys = tf.io.parse_example(records, {KEY: tf.io.FixedLenFeature([], tf.string)})[KEY].numpy()
    label_of = {key.decode(): str(label) for key, label in zip(keys, labels, strict=True)}
    mistakes = json.loads((folder / METRICS).read_bytes())["worst_mistakes"]
    assert all(label_of[mistake["key"]] == mistake["label"] for mistake in mistakes)
