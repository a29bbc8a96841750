"""Answers that are not finite: counted, named and refused by the gate."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from evaluation.evaluations import read_figures
from evaluation.test_gate import accuracy, judge_values
from evaluation.test_missing_boxes import NAMES, answer, make_scene
from linear_models import DIGITS, fit, read_examples, write_served_model
from sandbox import NUM_REFERENCES
from small_datasets import blacken

from pipeline_ops.config.evaluate import Rule
from pipeline_ops.contract.dataset import list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import REPORT, NotFinite
from pipeline_ops.errors import ExitCode
from pipeline_ops.evaluation import as_served
from pipeline_ops.evaluation.detector import compute_findings
from pipeline_ops.evaluation.gate import judge_answers
from pipeline_ops.served.client import ImageDetections

BLACK = (3, 40, 41)


@pytest.fixture(scope="module")
def black_tests(dataset, tmp_path_factory) -> tuple[str, list[str]]:
    return blacken(dataset, tmp_path_factory.mktemp("black") / "dataset", "test", BLACK)


@pytest.fixture(scope="module")
def standardizing_model(dataset, tmp_path_factory) -> Path:
    """A good model that divides each image by its largest value, which is 0 for a black one."""
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.served.model import ServedClassifier, add_assets

    manifest = read_manifest(dataset)
    _, images, labels = read_examples(list_shard_paths(dataset, manifest, "train"))
    weights = fit(images / images.max(axis=1, keepdims=True), labels)
    tests, _, _ = read_examples(list_shard_paths(dataset, manifest, "test"))

    class Standardizing(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(weights, dtype=tf.float32)

        def __call__(self, images, training):
            flat = tf.reshape(images, [-1, weights.shape[0] - 1])
            flat = flat / tf.reduce_max(flat, axis=1, keepdims=True)
            return 8.0 * tf.pad(flat, [[0, 0], [0, 1]], constant_values=1.0) @ self.weights

    folder = tmp_path_factory.mktemp("models") / "standardizing"
    served = ServedClassifier(Standardizing(), (16, 16, 1), DIGITS)
    with tempfile.TemporaryDirectory() as work:
        add_assets(served, [str(n) for n in range(10)], DIGITS, Path(work))
        write_served_model(folder, served, tests[:NUM_REFERENCES])
    return folder


@pytest.fixture
def shop(sandbox, black_tests, standardizing_model):
    models = {**sandbox.saved_models, "standardizing": standardizing_model}
    return dataclasses.replace(sandbox, saved_models=models, dataset=black_tests[0])


@pytest.mark.models
def test_a_challenger_with_such_answers_is_refused_with_their_keys(shop, black_tests):
    slices = [{"by": "image_bytes", "edges": [90], "name": "size"}]
    plan = shop.plan("evaluate", shop.train("standardizing"), evaluate__slices=slices)
    code, folder = shop.run(plan)
    figures = read_figures(folder)
    assert code == ExitCode.GATE_NOT_PASSED
    rule, answers = figures.rules
    assert rule.passed and not answers.passed
    keys = black_tests[1]
    assert answers.text == (
        f"the answers of the challenger to 3 of 100 test images are not finite ({', '.join(keys)}) "
        "and count as wrong. Make the model return numbers for every image, or take these out of "
        "the data set"
    )
    assert answers.text.split(".")[0] in (folder / REPORT).read_text()
    assert figures.challenger.not_finite == NotFinite(count=3, keys=keys)
    black, *_ = figures.slices
    assert (black.num_examples, black.challenger["accuracy"]) == (3, 0.0)
    assert black.challenger["top_k_accuracy"] == 0.0


def test_such_answers_of_a_champion_are_stated_and_count_as_wrong(shop, sandbox, black_tests):
    dataclasses.replace(shop, dataset=sandbox.dataset).publish("standardizing")
    code, folder = shop.run(shop.plan("evaluate", shop.train("good")))
    figures = read_figures(folder)
    assert code == ExitCode.SUCCESS
    assert figures.champion.not_finite.keys == black_tests[1]
    *_, stated = figures.rules
    assert stated.passed
    assert stated.text == (
        "the answers of the champion to 3 of 100 test images are not finite "
        f"({', '.join(black_tests[1])}) and count as wrong"
    )


def test_a_detection_that_is_not_finite_finds_nothing_and_is_counted():
    box = [[0.1, 0.1, 0.5, 0.5]]
    scenes = [make_scene(f"{n}.png", box, [0]) for n in range(4)]
    good = answer(box, [0])
    broken = [
        ImageDetections(good.boxes * math.nan, good.classes, good.scores),
        ImageDetections(good.boxes, good.classes, good.scores * math.inf),
    ]
    found = compute_findings(
        scenes, [[*broken, good, good], [good] * 4], (64, 64), NAMES, [{}, {}], lambda keys: {}
    )
    challenger = found.whole.challenger
    assert challenger.not_finite == NotFinite(count=2, keys=["0.png", "1.png"])
    assert challenger.metrics["mar_100"] == 0.5 and found.whole.champion.metrics["mar_100"] == 1
    [verdict] = judge_answers(found.whole)
    assert not verdict.passed
    assert "challenger to 2 of 4 test images are not finite (0.png, 1.png)" in verdict.text


def test_an_answer_to_a_raw_file_that_is_not_finite_fails_the_gate():
    labels = np.arange(40) % 2
    probabilities = np.eye(2)[labels]
    keys = [f"{n}.png" for n in range(40)]
    probabilities[7] = math.nan
    outputs = {"probabilities": probabilities, "classes": np.where(np.arange(40) == 7, 0, labels)}
    files = [SimpleNamespace(file=b"", examples=[key]) for key in keys]
    tests = SimpleNamespace(reason="", iterate=lambda: files)
    parts = iter([slice(0, 16), slice(16, 32), slice(32, 40)])

    def call_signature(signature, **inputs):
        part = next(parts)
        return {name: values[part] for name, values in outputs.items()}

    client = SimpleNamespace(call_signature=call_signature)
    rows = {key: row for row, key in enumerate(keys)}
    found = as_served.compare_classes(client, tests, rows, labels, labels)
    assert found.not_finite == NotFinite(count=1, keys=["7.png"])
    [verdict] = as_served.to_verdict(found)
    assert not verdict.passed
    assert "The answers to 1 of 40 test images are not finite (7.png)" in verdict.text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_the_worst_in_the_gate(value):
    rules = accuracy(at_least=0.5), Rule(metric="calibration_error", at_most=0.5)
    for rule in (*rules, accuracy(max_regression=0.9)):
        verdict = judge_values(rule, value, 0.5)
        assert not verdict.passed
        assert "is not finite" in verdict.text and "counts as the worst value" in verdict.text
    for rule in (accuracy(max_regression=0.0), accuracy(min_improvement=0.1)):
        verdict = judge_values(rule, 0.4, value)
        assert verdict.passed
        assert "0.4000 is better than the champion's, which is not finite" in verdict.text
