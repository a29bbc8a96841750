"""The gate's verdicts on the answers of two models: with confidence, and by slice."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.config.evaluate import Rule
from pipeline_ops.errors import ConfigError
from pipeline_ops.evaluation.gate import judge
from pipeline_ops.evaluation.metrics import (
    ExampleGroup,
    ModelPredictions,
    build_group,
    build_slice_groups,
    evaluate_model,
)


def answer(labels: np.ndarray, classes: np.ndarray) -> ModelPredictions:
    """The answers of a model of two classes."""
    return ModelPredictions(
        classes,
        classes == labels,
        np.full(len(classes), 0.9),
        np.stack([1.0 - classes, classes * 1.0]),
    )


def two_models(right: int, only_first: int, only_second: int, wrong: int) -> ExampleGroup:
    """The counts of examples that both models, one model, or no model gets right.

    There are two classes. All examples are of the first.
    """
    counts = (right, only_first, only_second, wrong)
    labels = np.zeros(sum(counts), int)
    first, second = (np.repeat(answers, counts) for answers in ((0, 0, 1, 1), (0, 1, 0, 1)))
    answers = [answer(labels, first), answer(labels, second)]
    evaluations = [evaluate_model(labels, each, ["a", "b"])[0] for each in answers]
    return build_group(labels, answers, evaluations)


@pytest.mark.parametrize(
    "counts, bound, within_noise, passed, is_noise",
    [
        (
            (900, 10, 10, 80),
            {"max_regression": 0.02},
            "fails",
            True,
            False,
        ),  # a tie that 1,000 examples show to be one
        (
            (90, 1, 1, 8),
            {"max_regression": 0.005},
            "fails",
            False,
            True,
        ),  # a tie that 100 examples cannot show
        ((90, 1, 1, 8), {"max_regression": 0.005}, "passes", True, True),
        ((800, 20, 120, 60), {"max_regression": 0.02}, "passes", False, False),  # clearly worse
        ((800, 120, 20, 60), {"min_improvement": 0.02}, "fails", True, False),  # clearly better
        (
            (900, 14, 10, 76),
            {"min_improvement": 0.0},
            "fails",
            False,
            True,
        ),  # better by the figures alone
        ((900, 14, 10, 76), {"min_improvement": 0.0}, "passes", True, True),
        (
            (1000, 0, 0, 0),
            {"min_improvement": 0.0},
            "passes",
            False,
            False,
        ),  # the same answers are no gain
    ],
)
def test_a_tie_within_noise_is_handled_as_configured(counts, bound, within_noise, passed, is_noise):
    [verdict] = judge(
        [Rule(metric="accuracy", confidence=0.95, within_noise=within_noise, **bound)],
        two_models(*counts),
    )
    assert (verdict.passed, verdict.is_within_noise) == (passed, is_noise), verdict.text
    assert verdict.low <= verdict.value - verdict.champion <= verdict.high
    assert ("within noise" in verdict.text) == is_noise


def test_a_confident_verdict_lists_its_numbers():
    [verdict] = judge(
        [Rule(metric="accuracy", confidence=0.95, max_regression=0.02)],
        two_models(800, 20, 120, 60),
    )
    assert verdict.text == (
        "accuracy 0.8200 to the champion's 0.9200: the difference is "
        "at least −0.1200 and at most −0.0820, each with 95 % confidence "
        "(allowed loss: 0.0200): refuted"
    )


def test_a_rule_for_a_slice_is_judged_on_its_examples_alone():
    labels, classes = np.array([0, 0, 1, 1, 0, 1]), np.array([0, 0, 1, 1, 1, 0])
    slices = build_slice_groups(
        labels,
        [answer(labels, classes)],
        {"camera": np.array(["day"] * 4 + ["night"] * 2)},
        ["a", "b"],
    )
    night, day = (
        Rule(metric="accuracy", of_slice="camera=night", at_least=0.5),
        Rule(metric="accuracy", of_slice="camera", at_least=0.5),
    )
    assert [(v.subject, v.passed, v.value) for v in judge([night, day], slices[0], slices)] == [
        ("camera=night", False, 0.0),
        ("camera=day", True, 1.0),
        ("camera=night", False, 0.0),
    ]
    [few] = judge([night.model_copy(update={"min_examples": 3})], slices[0], slices)
    assert few.passed and "2 test examples, the rule needs 3 or more" in few.text
    with pytest.raises(
        ConfigError,
        match="no test example has camera=nigth .the nearest valid name is 'camera=night'",
    ):
        judge([night.model_copy(update={"of_slice": "camera=nigth"})], slices[0], slices)
