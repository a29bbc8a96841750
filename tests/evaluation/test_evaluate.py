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
from evaluation.evaluations import LENIENT, read_figures
from linear_models import DIGITS, read_examples, write_model

from pipeline_ops.contract.dataset import StageFigures, list_shard_paths
from pipeline_ops.contract.manifest import NAME, find_damage, read_manifest
from pipeline_ops.contract.predictions import read_answers
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.request import read_status
from pipeline_ops.contract.results import (
    ANSWERS,
    ANSWERS_BY_THRESHOLD,
    METRICS,
    PREDICTIONS,
    REPORT,
)
from pipeline_ops.contract.thresholds import ThresholdCounts
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.served.client import SavedModelClient, read_encoded_batches
from pipeline_ops.served.preprocessing import Preprocessing
from pipeline_ops.storage.open_store import open_root

WRITTEN = (REPORT, METRICS, PREDICTIONS, ANSWERS, ANSWERS_BY_THRESHOLD)
STRICT = [{"metric": "accuracy", "at_least": 0.99}]


def test_champion_and_challenger_answer_for_the_same_examples(sandbox):
    sandbox.publish("fair")
    code, folder = sandbox.run(
        sandbox.plan("evaluate", sandbox.train("good"), evaluate__gate=LENIENT)
    )
    figures, metrics = read_figures(folder), json.loads((folder / METRICS).read_bytes())
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
        "accuracy 0.8700 is 0.1300 above the champion's 0.7400 (allowed loss: 0.0500)",
    ]
    assert metrics["baseline"] == figures.baseline
    assert figures.baseline["accuracy"] == max(rows[0]) / 100
    assert list(figures.baseline) == list(figures.challenger.metrics)


def test_the_answers_of_both_models_are_in_the_artifact(sandbox):
    sandbox.publish("fair")
    _, folder = sandbox.run(sandbox.plan("evaluate", sandbox.train("good"), evaluate__gate=LENIENT))
    text = (folder / ANSWERS_BY_THRESHOLD).read_bytes()
    counts = ThresholdCounts.model_validate_json(text)
    answers = read_answers(open_root(str(folder)) / ANSWERS, 10)
    figures = read_figures(folder)
    assert {ANSWERS, ANSWERS_BY_THRESHOLD} <= {
        each.path for each in read_manifest(folder / NAME).files
    }
    assert counts.champion_version == 1 and len(text) < 30_000
    for model, found, classes in zip(
        (figures.challenger, figures.champion),
        counts.models,
        (answers.answers, answers.champion_answers),
        strict=True,
    ):
        assert found.trace_total()[0].precision == model.metrics["accuracy"]
        assert found.trace_mean_f1()[0] == pytest.approx(model.metrics["macro_f1"])
        assert [[cell[0] for cell in row] for row in found.count_confusions()] == model.confusion
        right = sum(map(int.__eq__, classes, answers.labels))
        assert right == round(model.metrics["accuracy"] * 100)
    names, mistakes = counts.class_names, json.loads((folder / METRICS).read_bytes())
    rows = {answers.read_key(row): row for row in range(100)}
    for mistake in mistakes["worst_mistakes"]:
        answer = answers.read_answer(rows[mistake["key"]])
        assert names[answer.index] == mistake["prediction"]
        assert answer.confidence == np.float16(mistake["confidence"])
        assert answer.label_probability == np.float16(mistake["label_probability"])


def test_the_figures_are_those_of_the_saved_model_asked_one_by_one(sandbox):
    import tensorflow as tf

    _, folder = sandbox.run(sandbox.plan("evaluate", sandbox.train("good"), evaluate__batch_size=7))
    records, _, labels = read_examples(
        list_shard_paths(sandbox.dataset, read_manifest(sandbox.dataset), "test")
    )
    model = tf.saved_model.load(str(sandbox.saved_models["good"] / "saved_model")).signatures[
        "serving_default"
    ]
    images = tf.io.parse_example(records, {"image/encoded": tf.io.FixedLenFeature([], tf.string)})[
        "image/encoded"
    ]
    answers = np.concatenate(
        [model(image_bytes=images[i : i + 1])["classes"].numpy() for i in range(len(labels))]
    )
    assert read_figures(folder).challenger.metrics["accuracy"] == (answers == labels).mean()


def test_a_gate_that_is_not_passed_exits_3_and_leaves_the_whole_artifact(sandbox):
    process, attempt = sandbox.start(
        plan := sandbox.plan("evaluate", sandbox.train("good"), evaluate__gate=STRICT)
    )
    assert process.wait(180) == 3, attempt.log.read_text()
    folder = Path(plan.request.artifact)
    files = {file.path for file in read_manifest(folder / NAME).files}
    assert files == set(WRITTEN)
    assert find_damage(folder / NAME, read_manifest(folder / NAME), checksums=True) == []
    assert not read_figures(folder).gate_passed
    assert read_status(attempt).manifest == str(folder / NAME)


def test_a_passed_gate_exits_0_and_progress_counts_the_images(sandbox):
    process, attempt = sandbox.start(sandbox.plan("evaluate", sandbox.train("good")))
    assert process.wait(180) == 0, attempt.log.read_text()
    events = ProgressReader(attempt.progress).read_new()
    assert [(e.phase, e.done, e.total, e.unit) for e in events] == [
        ("evaluate", done, 100, "images") for done in (0, 32, 64, 96, 100)
    ]


def test_the_same_evaluation_gives_the_same_bytes_wherever_and_whenever_it_runs(sandbox, tmp_path):
    elsewhere = dataclasses.replace(sandbox, root=tmp_path / "elsewhere")
    pages = []
    for shop, run_id in ((sandbox, "run-1"), (elsewhere, "another run")):
        plan = shop.plan("evaluate", shop.train("good"))
        plan = dataclasses.replace(plan, request=plan.request.model_copy(update={"run_id": run_id}))
        folder = shop.run(plan)[1]
        pages.append([(folder / name).read_bytes() for name in WRITTEN])
    assert pages[0] == pages[1]
    assert b"another run" not in pages[1][0] and str(tmp_path).encode() not in pages[1][0]


@pytest.mark.parametrize("signature", ["images", "serving_default"])
def test_a_model_of_another_image_size_is_asked_about_the_images_as_they_are(
    signature, sandbox, tmp_path
):
    """Versions that were published before their stages were an asset only have
    `serving_default`."""
    import tensorflow as tf

    from pipeline_ops.models.digits_cnn import build
    from pipeline_ops.served.model import ServedClassifier, add_assets

    served = ServedClassifier(build((28, 28, 1), 10), (28, 28, 1))  # the images have 16 x 16
    if signature == "images":
        add_assets(served, list("0123456789"), stretch_to(28, 28), tmp_path)
    folder = tmp_path / "model"
    signatures = {name: getattr(served, name) for name in {signature, "images"}}
    tf.saved_model.save(served, str(folder), signatures=signatures)
    batch = read_test_images(sandbox)
    images = np.stack([tf.io.decode_png(image).numpy() for image in batch.images])
    resized = tf.round(tf.image.resize(images, (28, 28)))
    np.testing.assert_allclose(
        SavedModelClient(folder, "the champion", 10).classify(batch)[0],
        served.images(resized)["probabilities"],
        atol=1e-6,
    )


def test_boxes_of_a_detector_with_another_image_size_are_parts_of_the_images(sandbox, tmp_path):
    """It sees images of 16 x 16 with bars, in the middle third of its own 16 x 48."""
    import tensorflow as tf

    from pipeline_ops.served.contract import DETECTOR_OUTPUTS
    from pipeline_ops.served.model import ServedImages, add_assets

    class Middle(ServedImages):
        def _predict(self, images):
            number = tf.shape(images)[0]
            box = tf.constant([[0.25, 0.5, 0.5, 0.9], [0.0, 0.0, 0.0, 0.0]])
            return {
                "boxes": tf.tile(box[tf.newaxis], [number, 1, 1]),
                "scores": tf.tile([[0.9, 0.0]], [number, 1]),
                "classes": tf.zeros([number, 2], tf.int64),
                "num_detections": tf.ones([number], tf.int32),
            }

    preprocessing = dataclasses.replace(stretch_to(16, 48, mode="letterbox"), has_boxes=True)
    served = Middle(tf.Module(), (16, 48, 1), preprocessing)
    add_assets(served, ["digit"], preprocessing, tmp_path)
    tf.saved_model.save(served, str(tmp_path / "model"), signatures=served.signatures)
    client = SavedModelClient(tmp_path / "model", "the champion", 1, DETECTOR_OUTPUTS)
    boxes = client.predict(read_test_images(sandbox))["boxes"]
    wanted = [[0.25, 3 * (0.5 - 1 / 3), 0.5, 1.0], [0.0, 0.0, 0.0, 0.0]]
    np.testing.assert_allclose(boxes, [wanted] * 8, atol=1e-6)


def stretch_to(height, width, mode="stretch"):
    parameters = {"height": height, "width": width, "mode": mode}
    figures = StageFigures(name="resize", parameters=parameters, served="in_graph")
    return Preprocessing((DIGITS.stages[0], figures))


def read_test_images(sandbox):
    manifest = read_manifest(sandbox.dataset)
    return next(read_encoded_batches(list_shard_paths(sandbox.dataset, manifest, "test"), 8))


def test_slices_are_of_what_is_stored_with_the_examples(sandbox):
    parts = [
        {"by": "image/class/label", "name": "digit"},
        {"by": "image_bytes", "edges": [140, 150]},
    ]
    _, folder = sandbox.run(
        sandbox.plan(
            "evaluate",
            sandbox.train("good"),
            evaluate__slices=parts,
            evaluate__batch_size=7,
            evaluate__gate=[
                {"metric": "accuracy", "of_slice": "digit=3", "at_least": 0.2},
                {"metric": "accuracy", "of_slice": "image_bytes", "at_least": 0.0},
            ],
        )
    )
    figures = read_figures(folder)
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


@pytest.mark.models
def test_a_latency_is_measured_only_for_a_rule_that_asks_for_it(sandbox):
    sandbox.publish("fair")
    rules = [
        {"metric": "latency_milliseconds", "at_most": 60_000},
        {"metric": "model_bytes", "max_regression": 1000},
    ]
    plain = read_figures(sandbox.run(sandbox.plan("evaluate", sandbox.train("good")))[1])
    asked = read_figures(
        sandbox.run(
            sandbox.plan("evaluate", sandbox.train("good", tag="again"), evaluate__gate=rules)
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
        for file in sandbox.saved_models["good"].glob("saved_model/**/*")
        if file.is_file()
    )
    assert plain.challenger.measures["model_bytes"] == model
    assert plain.champion.measures["model_bytes"] == pytest.approx(
        model, rel=0.01
    )  # of the same shape


def test_what_is_new_since_the_last_run_is_told_and_does_not_decide(sandbox):
    first = sandbox.plan("evaluate", sandbox.train("fair"))
    sandbox.run(first)
    plan = sandbox.plan("evaluate", sandbox.train("good"), evaluate__top_k=3)
    assert plan.request.inputs["last_evaluation"].uri == str(first.manifest)
    assert "last_evaluation" not in plan.request.fingerprint.inputs
    page = (sandbox.run(plan)[1] / REPORT).read_text()
    assert (
        "config top_k: 5 -&gt; 3" in page
        and "config model: &#34;fair&#34; -&gt; &#34;good&#34;" in page
    )
    assert sandbox.plan("evaluate", sandbox.train("poor")).request.inputs[
        "last_evaluation"
    ].uri == str(plan.manifest)


def test_a_disk_without_room_for_the_probabilities_is_an_error_and_not_a_signal(tmp_path):
    program = """
import pathlib, resource, sys
from pipeline_ops.errors import MachineError
from pipeline_ops.evaluation.classifier import Answers
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    Answers(1, 1_000_000, "x" * 100, 5, pathlib.Path(sys.argv[1]))
except MachineError as error:
    print("refused:", error)
"""
    output = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert output.startswith(f"refused: cannot write {tmp_path}: ") and not list(tmp_path.iterdir())


def test_nothing_is_left_beside_the_artifact(sandbox):
    sandbox.run(sandbox.plan("evaluate", sandbox.train("good")), attempt="attempt-1")
    assert {file.name for file in (sandbox.root / "attempt-1").iterdir()} == {"progress.jsonl"}


def test_a_model_that_says_no_number_is_evaluated_and_fails(sandbox):
    """What is left of a training that has diverged."""
    broken = sandbox.root / "diverged"
    shutil.copytree(sandbox.saved_models["good"], broken)
    write_model(
        broken,
        np.full((257, 10), np.nan),
        read_examples(list_shard_paths(sandbox.dataset, read_manifest(sandbox.dataset), "test"))[0][
            :2
        ],
    )
    shop = dataclasses.replace(sandbox, saved_models={"diverged": broken})
    code, folder = shop.run(shop.plan("evaluate", shop.train("diverged")))
    metrics = read_figures(folder).challenger.metrics
    assert code == ExitCode.GATE_NOT_PASSED
    assert metrics["macro_roc_auc"] == 0.5 and all(np.isfinite(value) for value in metrics.values())


def test_a_worse_challenger_is_not_published_a_better_one_is_and_a_tie_as_configured(sandbox):
    gate = [{"metric": "accuracy", "max_regression": 0.01, "confidence": 0.95}]
    sandbox.publish("fair")
    for name in ("poor", "shuffled"):  # fewer examples than the champion; meaningless labels
        code, folder = sandbox.run(
            plan := sandbox.plan("evaluate", train := sandbox.train(name), evaluate__gate=gate)
        )
        assert code == ExitCode.GATE_NOT_PASSED and "refuted" in read_figures(folder).rules[0].text
        with pytest.raises(DataError, match="the gate was not passed, so nothing is published"):
            sandbox.run(sandbox.plan("export", train, str(plan.manifest), evaluate__gate=gate))
    assert (
        sandbox.registry.find_champion().number == 1 and len(sandbox.registry.list_versions()) == 1
    )
    sandbox.publish("good", evaluate__gate=gate)
    assert sandbox.registry.find_champion().number == 2
    tie = {"metric": "accuracy", "max_regression": 0.02, "confidence": 0.95}
    for within_noise, expected in (
        ("fails", ExitCode.GATE_NOT_PASSED),
        ("passes", ExitCode.SUCCESS),
    ):
        code, folder = sandbox.run(
            sandbox.plan(
                "evaluate",
                sandbox.train("nearly", tag=within_noise),
                evaluate__gate=[{**tie, "within_noise": within_noise}],
            )
        )
        assert code == expected and read_figures(folder).rules[0].is_within_noise, (
            read_figures(folder).rules[0].text
        )
