"""The evaluate job, on real shards and real SavedModels."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from workshop import copy_dataset, read_examples, remove_from_tests, write_model

from beam_jobs.planning.index import IndexEntry, write_index
from pipeline_ops.artifacts.dataset import INDEX, KEY, DatasetFigures, shard_paths
from pipeline_ops.artifacts.manifest import (
    NAME,
    find_damage,
    list_files,
    read_manifest,
    write_manifest,
)
from pipeline_ops.artifacts.results import METRICS, REPORT, EvaluationFigures
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.evaluation.inputs import Dataset
from pipeline_ops.evaluation.leaks import find_leaks
from pipeline_ops.input.saved_model_client import ServedModel, read_encoded
from pipeline_ops.jobs.progress import ProgressReader
from pipeline_ops.jobs.request import read_status

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
    code, folder = workshop.run(
        workshop.plan("evaluate", workshop.train("good"), evaluate__gate=LENIENT)
    )
    figures, metrics = figures_of(folder), json.loads((folder / METRICS).read_bytes())
    assert code == ExitCode.SUCCESS and figures.gate_passed
    assert figures.champion_version == 1
    rows = [
        [sum(row) for row in model.confusion] for model in (figures.challenger, figures.champion)
    ]
    assert rows[0] == rows[1] and sum(rows[0]) == figures.num_examples == 100
    assert (
        sum(
            metrics["comparison"][kind]
            for kind in ("both_right", "only_challenger_right", "only_champion_right", "both_wrong")
        )
        == 100
    )
    assert [rule.text for rule in figures.rules] == [
        "accuracy 0.8700 is at least 0.5000",
        (
            "accuracy 0.8700 is 0.1300 above the champion's 0.7400; "
            "a loss of at most 0.0500 is allowed"
        ),
    ]


def test_the_figures_are_those_of_the_saved_model_asked_one_by_one(workshop):
    import tensorflow as tf

    _, folder = workshop.run(workshop.plan("evaluate", workshop.train("good"), evaluate__batch=7))
    records, _, labels = read_examples(
        shard_paths(workshop.dataset, read_manifest(workshop.dataset), "test")
    )
    model = tf.saved_model.load(str(workshop.saved_models["good"] / "saved_model")).signatures[
        "serving_default"
    ]
    images = tf.io.parse_example(records, {"image/encoded": tf.io.FixedLenFeature([], tf.string)})[
        "image/encoded"
    ]
    answers = np.concatenate(
        [model(image_bytes=images[i : i + 1])["classes"].numpy() for i in range(len(labels))]
    )
    assert figures_of(folder).challenger.metrics["accuracy"] == (answers == labels).mean()


def test_the_worst_mistakes_are_the_most_confident_ones(workshop):
    train = workshop.train("poor")
    every = json.loads(
        (
            workshop.run(workshop.plan("evaluate", train, evaluate__worst_mistakes=500))[1]
            / METRICS
        ).read_bytes()
    )["worst_mistakes"]
    few = json.loads(
        (
            workshop.run(
                workshop.plan("evaluate", train, evaluate__worst_mistakes=3, evaluate__batch=10)
            )[1]
            / METRICS
        ).read_bytes()
    )
    assert len(every) == 53
    assert [m["confidence"] for m in every] == sorted(
        (m["confidence"] for m in every), reverse=True
    )
    assert [m["key"] for m in few["worst_mistakes"]] == [m["key"] for m in every[:3]]
    assert all(
        m["label"] != m["answer"] and m["label_probability"] <= m["confidence"] for m in every
    )


def test_a_gate_that_is_not_passed_exits_3_and_leaves_the_whole_artifact(workshop):
    process, attempt = workshop.start(
        plan := workshop.plan("evaluate", workshop.train("good"), evaluate__gate=STRICT)
    )
    assert process.wait(180) == 3, attempt.log.read_text()
    folder = Path(plan.request.artifact)
    assert {file.path for file in read_manifest(folder / NAME).files} == {REPORT, METRICS}
    assert find_damage(folder / NAME, read_manifest(folder / NAME), checksums=True) == []
    assert not figures_of(folder).gate_passed
    assert read_status(attempt).manifest == str(folder / NAME)


def test_a_passed_gate_exits_0_and_progress_counts_the_images(workshop):
    process, attempt = workshop.start(workshop.plan("evaluate", workshop.train("good")))
    assert process.wait(180) == 0, attempt.log.read_text()
    moments = ProgressReader(attempt.progress).new()
    assert [(m.phase, m.done, m.total, m.unit) for m in moments] == [
        ("evaluate", done, 100, "images") for done in (0, 32, 64, 96, 100)
    ]


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
    spoil(Path(workshop.registry.champion().folder) / "saved_model.pb")
    with pytest.raises(DataError, match=r"models/digits/1/saved_model\.pb has another checksum"):
        workshop.run(plan)


def test_a_champion_that_knows_other_classes_is_not_compared_and_the_rule_says_so(
    workshop, tmp_path
):
    workshop.publish("good")
    renamed = copy_dataset(
        workshop.dataset, tmp_path / "renamed", class_names=["zero", *"123456789"]
    )
    _, folder = workshop.run(
        workshop.plan(
            "evaluate",
            workshop.train("poor", renamed),
            dataset=renamed,
            evaluate__gate=[{"metric": "accuracy", "not_worse_than_champion_by_more_than": 0.0}],
        )
    )
    figures = figures_of(folder)
    assert figures.champion is None and figures.champion_version == 1
    assert figures.rules[0].passed
    assert figures.rules[0].text == (
        "accuracy 0.4700 stands alone: the champion (version 1) "
        "does not know zero and knows 0, which the data set lacks"
    )
    assert "does not know zero" in (folder / REPORT).read_text()


def test_a_champion_with_the_classes_in_another_order_is_not_compared(workshop, tmp_path):
    workshop.publish("good")
    reordered = copy_dataset(workshop.dataset, tmp_path / "reordered", class_names=[*"1023456789"])
    _, folder = workshop.run(
        workshop.plan(
            "evaluate",
            workshop.train("good", reordered, tag="new"),
            dataset=reordered,
            evaluate__gate=LENIENT,
        )
    )
    assert "has the classes in another order" in figures_of(folder).rules[1].text


def test_a_model_of_another_image_size_is_asked_about_the_images_as_they_are_and_resizes_them_itself(  # noqa: E501
    workshop, tmp_path
):
    import tensorflow as tf

    from pipeline_ops.models.digits_cnn import build
    from pipeline_ops.training.saved_model_export import ServedClassifier

    served = ServedClassifier(build((28, 28, 1), 10), (28, 28, 1))  # the images have 16 x 16
    tf.saved_model.save(
        served, str(tmp_path), signatures={"serving_default": served.serving_default}
    )
    batch = next(
        iter(
            read_encoded(shard_paths(workshop.dataset, read_manifest(workshop.dataset), "test"), 8)
        )
    )
    images = np.stack([tf.io.decode_png(image).numpy() for image in batch.images]).astype(
        np.float32
    )
    resized = tf.image.resize(images, (28, 28), antialias=True)
    np.testing.assert_allclose(
        ServedModel(tmp_path, "the champion", 10).classify(batch)[0],
        served.images(resized)["probabilities"],
        atol=1e-6,
    )


def test_an_evaluation_is_not_repeated_once_the_challenger_is_the_champion(workshop):
    train = workshop.publish("good")
    assert workshop.plan("evaluate", train).is_cached


def test_examples_that_a_later_generation_has_removed_are_not_asked(workshop, tmp_path):
    uri = remove_from_tests(workshop.dataset, tmp_path / "later", [0, 2, 24])
    code, folder = workshop.run(
        workshop.plan(
            "evaluate", workshop.train("good", dataset=uri), dataset=uri, evaluate__gate=LENIENT
        )
    )
    assert code == ExitCode.SUCCESS
    assert (
        figures_of(folder).num_examples
        == sum(sum(row) for row in figures_of(folder).challenger.confusion)
        == 97
    )


def test_a_test_split_of_which_something_else_is_removed_than_was_planned_is_refused(
    workshop, tmp_path
):
    uri = remove_from_tests(workshop.dataset, tmp_path / "later", [0, 2])
    plan = workshop.plan("evaluate", workshop.train("good", dataset=uri), dataset=uri)
    manifest = read_manifest(uri)  # the digest of the files does not see it
    figures = DatasetFigures.model_validate(manifest.figures).model_copy(
        update={"removed": {"test-00000-of-00004.tfrecord": [0, 3]}}
    )
    changed = manifest.model_copy(update={"figures": figures.model_dump(mode="json")})
    assert changed.digest == manifest.digest
    write_manifest(tmp_path / "later", changed)
    with pytest.raises(DataError, match="is pinned in this evaluation's request; start a new run"):
        workshop.run(plan)


def with_index(dataset: str, folder: Path, *places: tuple[str, str, str]) -> str:
    """A copy of a data set with an index of these records: (key, content, split)."""
    uri = copy_dataset(dataset, folder)
    write_index(
        folder / INDEX,
        [IndexEntry(key, content, "", split, "shard", 0, 1) for key, content, split in places],
    )
    manifest = read_manifest(uri)
    write_manifest(
        folder,
        manifest.model_copy(
            update={
                "files": list_files(
                    folder, {file.path: file.num_examples for file in manifest.files}
                )
            }
        ),
    )
    return uri


def test_a_test_split_that_leaked_into_training_is_refused_with_its_images(workshop, tmp_path):
    uri = with_index(
        workshop.dataset,
        tmp_path / "leaked",
        ("a.png", "1" * 32, "train"),
        ("b.png", "1" * 32, "test"),
        ("c.png", "2" * 32, "train"),
        ("d.png", "3" * 32, "test"),
        ("e.png", "3" * 32, "validation"),
    )
    plan = workshop.plan("evaluate", workshop.train("good", uri), dataset=uri)
    with pytest.raises(
        DataError,
        match=(
            r"1 test image is in the training split, too .*: "
            r"b\.png equals a\.png; set preprocess\.duplicates"
        ),
    ):
        workshop.run(plan)
    assert not Path(plan.request.artifact).exists()
    _, folder = workshop.run(
        workshop.plan(
            "evaluate",
            workshop.train("good", uri, tag="again"),
            dataset=uri,
            evaluate__allowed_leaks=1,
        )
    )
    assert json.loads((folder / METRICS).read_bytes())["leaks"] == {
        "challenger": 1,
        "champion": None,
    }


def test_an_index_that_can_not_be_read_is_refused(workshop, tmp_path):
    uri = with_index(workshop.dataset, tmp_path / "broken", ("a.png", "1" * 32, "test"))
    (tmp_path / "broken" / INDEX).write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"index\.jsonl\.gz: the index can't be read"):
        find_leaks(
            Dataset(
                uri, read_manifest(uri), DatasetFigures.model_validate(read_manifest(uri).figures)
            ),
            None,
            0,
        )


def test_test_images_that_the_champion_was_trained_on_are_counted(workshop, tmp_path):
    old = with_index(
        workshop.dataset,
        tmp_path / "old",
        ("a.png", "1" * 32, "train"),
        ("b.png", "2" * 32, "test"),
    )
    train = workshop.train("fair", old)
    evaluation = workshop.plan("evaluate", train, dataset=old)
    workshop.run(evaluation)
    workshop.run(workshop.plan("export", train, str(evaluation.manifest)))
    new = with_index(
        workshop.dataset,
        tmp_path / "new",
        ("a.png", "1" * 32, "test"),
        ("b.png", "2" * 32, "train"),
    )
    _, folder = workshop.run(workshop.plan("evaluate", workshop.train("good", new), dataset=new))
    assert json.loads((folder / METRICS).read_bytes())["leaks"] == {"challenger": 0, "champion": 1}
    assert "The champion was trained on 1 of these test images" in (folder / REPORT).read_text()


def test_slices_are_of_what_is_stored_with_the_examples(workshop):
    parts = [
        {"by": "image/class/label", "name": "digit"},
        {"by": "image_bytes", "edges": [140, 150]},
    ]
    _, folder = workshop.run(
        workshop.plan(
            "evaluate",
            workshop.train("good"),
            evaluate__slices=parts,
            evaluate__batch=7,
            evaluate__gate=[
                {"metric": "accuracy", "of_slice": "digit=3", "at_least": 0.2},
                {"metric": "accuracy", "of_slice": "image_bytes", "at_least": 0.0},
            ],
        )
    )
    figures = figures_of(folder)
    digits = [part for part in figures.slices if part.name == "digit"]
    assert [part.value for part in digits] == [str(d) for d in range(10)]
    assert {part.value: part.challenger["accuracy"] for part in digits} == {
        c.name: c.recall for c in figures.challenger.classes
    }
    assert [part.value for part in figures.slices if part.name == "image_bytes"] == [
        "below 140",
        "140 to 150",
        "150 and more",
    ]
    assert sum(part.num_examples for part in figures.slices) == 200
    assert [rule.subject for rule in figures.rules] == [
        "digit=3",
        "image_bytes=below 140",
        "image_bytes=140 to 150",
        "image_bytes=150 and more",
    ]


def test_a_latency_is_measured_only_for_a_rule_that_asks_for_it(workshop):
    workshop.publish("fair")
    rules = [
        {"metric": "latency_milliseconds", "at_most": 60_000},
        {"metric": "model_bytes", "not_worse_than_champion_by_more_than": 1000},
    ]
    plain = figures_of(workshop.run(workshop.plan("evaluate", workshop.train("good")))[1])
    asked = figures_of(
        workshop.run(
            workshop.plan("evaluate", workshop.train("good", tag="again"), evaluate__gate=rules)
        )[1]
    )
    assert list(plain.challenger.measures) == ["model_bytes"] == list(plain.champion.measures)
    assert (
        0 < asked.challenger.measures["latency_milliseconds"] < 60_000
        and asked.champion.measures["latency_milliseconds"] > 0
    )
    assert asked.gate_passed
    model = sum(
        file.stat().st_size
        for file in workshop.saved_models["good"].glob("saved_model/**/*")
        if file.is_file()
    )
    assert plain.challenger.measures["model_bytes"] == model
    assert plain.champion.measures["model_bytes"] == pytest.approx(
        model, rel=0.01
    )  # of the same shape


def test_the_surprises_are_what_the_models_judge_most_differently(workshop):
    workshop.publish("poor", evaluate__gate=[{"metric": "accuracy", "at_least": 0.1}])
    train = workshop.train("good")
    _, folder = workshop.run(
        workshop.plan("evaluate", train, evaluate__worst_mistakes=500, evaluate__batch=9)
    )
    every = json.loads((folder / METRICS).read_bytes())["surprises"]
    changes = [abs(s["label_probability"] - s["champion_label_probability"]) for s in every]
    assert len(every) == 100 and changes == sorted(changes, reverse=True)
    _, folder = workshop.run(workshop.plan("evaluate", train, evaluate__worst_mistakes=4))
    assert [s["key"] for s in json.loads((folder / METRICS).read_bytes())["surprises"]] == [
        s["key"] for s in every[:4]
    ]


def test_what_is_new_since_the_last_run_is_told_and_does_not_decide(workshop):
    first = workshop.plan("evaluate", workshop.train("fair"))
    workshop.run(first)
    plan = workshop.plan("evaluate", workshop.train("good"), evaluate__top_k=3)
    assert plan.request.inputs["last_evaluation"].uri == str(first.manifest)
    assert "last_evaluation" not in plan.request.fingerprint.inputs
    page = (workshop.run(plan)[1] / REPORT).read_text()
    assert (
        "config top_k: 5 -&gt; 3" in page
        and "config model: &#34;fair&#34; -&gt; &#34;good&#34;" in page
    )
    assert workshop.plan("evaluate", workshop.train("poor")).request.inputs[
        "last_evaluation"
    ].uri == str(plan.manifest)


def test_a_disk_without_room_for_the_probabilities_is_an_error_and_not_a_signal(tmp_path):
    program = """
import pathlib, resource, sys
from pipeline_ops.errors import MachineError
from pipeline_ops.evaluation.predictions import ask
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    ask([None], [], 1_000_000, 100, [], 0, pathlib.Path(sys.argv[1]), print)
except MachineError as error:
    print("refused:", error)
"""
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert output.startswith(f"refused: could not write {tmp_path}: ") and not list(
        tmp_path.iterdir()
    )


def test_nothing_is_left_beside_the_artifact(workshop):
    workshop.run(workshop.plan("evaluate", workshop.train("good")), attempt="attempt-1")
    assert {file.name for file in (workshop.root / "attempt-1").iterdir()} == {"progress.jsonl"}


def test_a_model_that_says_no_number_is_evaluated_and_fails(workshop):
    """What is left of a training that has diverged."""
    broken = workshop.root / "diverged"
    shutil.copytree(workshop.saved_models["good"], broken)
    write_model(
        broken,
        np.full((257, 10), np.nan),
        read_examples(shard_paths(workshop.dataset, read_manifest(workshop.dataset), "test"))[0][
            :2
        ],
    )
    shop = dataclasses.replace(workshop, saved_models={"diverged": broken})
    code, folder = shop.run(shop.plan("evaluate", shop.train("diverged")))
    metrics = figures_of(folder).challenger.metrics
    assert code == ExitCode.GATE_NOT_PASSED
    assert metrics["macro_roc_auc"] == 0.5 and all(np.isfinite(value) for value in metrics.values())


def test_a_worse_challenger_is_not_published_a_better_one_is_and_a_tie_as_configured(workshop):
    gate = [
        {"metric": "accuracy", "not_worse_than_champion_by_more_than": 0.01, "confidence": 0.95}
    ]
    workshop.publish("fair")
    for name in ("poor", "shuffled"):  # fewer examples than the champion; labels that say nothing
        code, folder = workshop.run(
            plan := workshop.plan("evaluate", train := workshop.train(name), evaluate__gate=gate)
        )
        assert code == ExitCode.GATE_NOT_PASSED and "refuted" in figures_of(folder).rules[0].text
        with pytest.raises(DataError, match="the gate was not passed, so nothing is published"):
            workshop.run(workshop.plan("export", train, str(plan.manifest), evaluate__gate=gate))
    assert workshop.registry.champion().number == 1 and len(workshop.registry.versions()) == 1
    workshop.publish("good", evaluate__gate=gate)
    assert workshop.registry.champion().number == 2
    tie = {"metric": "accuracy", "not_worse_than_champion_by_more_than": 0.02, "confidence": 0.95}
    for within_noise, expected in (
        ("fails", ExitCode.GATE_NOT_PASSED),
        ("passes", ExitCode.SUCCESS),
    ):
        code, folder = workshop.run(
            workshop.plan(
                "evaluate",
                workshop.train("nearly", tag=within_noise),
                evaluate__gate=[{**tie, "within_noise": within_noise}],
            )
        )
        assert code == expected and figures_of(folder).rules[0].is_within_noise, (
            figures_of(folder).rules[0].text
        )


def test_the_keys_of_the_mistakes_are_those_of_the_examples(workshop):
    import tensorflow as tf

    _, folder = workshop.run(
        workshop.plan("evaluate", workshop.train("poor"), evaluate__worst_mistakes=500)
    )
    records, _, labels = read_examples(
        shard_paths(workshop.dataset, read_manifest(workshop.dataset), "test")
    )
    keys = tf.io.parse_example(records, {KEY: tf.io.FixedLenFeature([], tf.string)})[KEY].numpy()
    label_of = {key.decode(): str(label) for key, label in zip(keys, labels, strict=True)}
    mistakes = json.loads((folder / METRICS).read_bytes())["worst_mistakes"]
    assert all(label_of[mistake["key"]] == mistake["label"] for mistake in mistakes)
