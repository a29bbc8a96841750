"""The gate's verdicts, as sentences."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_ops.config.evaluate import Rule
from pipeline_ops.contract.results import (
    ClassFigures,
    ModelEvaluation,
    RuleVerdict,
    ServingFigures,
    SkewDistance,
)
from pipeline_ops.errors import ConfigError
from pipeline_ops.evaluation.gate import judge
from pipeline_ops.evaluation.metrics import ExampleGroup


def evidence(
    challenger: dict,
    champion: dict | None = None,
    why: str = "there is no champion to compare it with",
    baseline: dict | None = None,
    **more,
) -> dict[str, Any]:
    """The arguments of `judge` for two models with these metrics."""
    models = [
        None
        if metrics is None
        else ModelEvaluation(metrics=metrics, classes=[], confusion=[], measures=metrics)
        for metrics in (challenger, champion)
    ]
    whole = ExampleGroup(100, *models, baseline=baseline or {})
    return {"whole": whole, "no_champion_reason": why, **more}


def asked(**distances: float) -> ServingFigures:
    """Requests at these distances from the training data, the largest one first."""
    found = [
        SkewDistance(feature=feature, jensen_shannon=value, l_infinity=value, is_above=False)
        for feature, value in distances.items()
    ]
    return ServingFigures(num_images=500, distances=found)


def judge_values(rule: Rule, challenger: float, champion: float | None) -> RuleVerdict:
    """The verdict on two models with these values of the rule's metric."""
    champion_metrics = None if champion is None else {rule.metric: champion}
    [verdict] = judge([rule], **evidence({rule.metric: challenger}, champion_metrics))
    return verdict


def accuracy(**bounds) -> Rule:
    return Rule(metric="accuracy", **bounds)


@pytest.mark.parametrize(
    "rule, challenger, champion, passed, text",
    [
        (accuracy(at_least=0.975), 0.9831, None, True, "accuracy 0.9831 is at least 0.9750"),
        (accuracy(at_least=0.975), 0.975, None, True, "accuracy 0.9750 is at least 0.9750"),
        (accuracy(at_least=0.975), 0.9631, None, False, "accuracy 0.9631 is below 0.9750"),
        (accuracy(at_least=0.975), 0.97496, None, False, "accuracy 0.97496 is below 0.97500"),
        (
            accuracy(max_regression=0.005),
            0.972,
            0.9831,
            False,
            "accuracy 0.9720 is 0.0111 below the champion's 0.9831 (allowed loss: 0.0050)",
        ),
        (
            accuracy(max_regression=0.005),
            0.98,
            0.985,
            True,
            "accuracy 0.9800 is 0.0050 below the champion's 0.9850 (allowed loss: 0.0050)",
        ),
        (
            accuracy(max_regression=0.005),
            0.97999,
            0.985,
            False,
            "accuracy 0.9800 is 0.00501 below the champion's 0.9850 (allowed loss: 0.00500)",
        ),
        (
            accuracy(max_regression=0.005),
            0.985,
            0.98,
            True,
            ("accuracy 0.9850 is 0.0050 above the champion's 0.9800 (allowed loss: 0.0050)"),
        ),
        (
            accuracy(max_regression=0.0),
            0.98,
            0.98,
            True,
            "accuracy 0.9800 equals the champion's (allowed loss: 0.0000)",
        ),
        (
            accuracy(max_regression=0.005),
            0.5,
            None,
            True,
            "accuracy 0.5000 is not compared: there is no champion to compare it with",
        ),
    ],
)
def test_a_rule_is_judged_with_its_numbers(rule, challenger, champion, passed, text):
    verdict = judge_values(rule, challenger, champion)
    assert (verdict.passed, verdict.text) == (passed, text)


@pytest.mark.parametrize(
    "metric, value, baseline, passed, text",
    [
        (
            "accuracy",
            0.97,
            0.1147,
            True,
            "accuracy 0.9700 is better than a model that has not looked at the images (0.1147): "
            "skill 0.9661 is at least 0.1000",
        ),
        (
            "accuracy",
            0.955,
            0.95,
            True,
            "accuracy 0.9550 is better than a model that has not looked at the images (0.9500): "
            "skill 0.1000 is at least 0.1000",
        ),
        (
            "map_50",
            0.09,
            0.02,
            False,
            "map_50 0.0900 is better than a model that has not looked at the images (0.0200): "
            "skill 0.0714 is below 0.1000",
        ),
        (
            "macro_f1",
            0.2,
            0.25,
            False,
            "macro_f1 0.2000 is not better than a model that has not looked at the images "
            "(0.2500): skill −0.0667 is below 0.1000",
        ),
        *(
            (
                "accuracy",
                1.0,
                baseline,
                False,
                "accuracy 1.0000 cannot show skill: on this test split, a model that has not "
                f"looked at the images {reason}. Add test images of other classes, or use at_least",
            )
            for baseline, reason in ((1.0, "is perfect"), (None, "has no value"))
        ),
    ],
)
def test_skill_is_the_part_of_the_way_from_the_baseline_to_a_perfect_score(
    metric, value, baseline, passed, text
):
    found = evidence({metric: value}, baseline={} if baseline is None else {metric: baseline})
    [verdict] = judge([Rule(metric=metric, min_skill=0.1)], **found)
    assert (verdict.passed, verdict.text, verdict.bound) == (passed, text, 0.1)


def test_each_bound_of_each_rule_gets_a_verdict_in_the_order_of_the_config():
    rules = [
        accuracy(at_least=0.9, max_regression=0.01),
        Rule(metric="worst_class_recall", at_least=0.8),
    ]
    verdicts = judge(
        rules,
        **evidence(
            {"accuracy": 0.95, "worst_class_recall": 0.7},
            {"accuracy": 0.97, "worst_class_recall": 0.1},
        ),
    )
    assert [(v.metric, v.passed) for v in verdicts] == [
        ("accuracy", True),
        ("accuracy", False),
        ("worst_class_recall", False),
    ]


def test_why_there_is_no_comparison_is_part_of_the_sentence():
    alone = evidence({"accuracy": 0.5}, why="the champion (version 3) does not know x")
    [verdict] = judge([accuracy(max_regression=0.1)], **alone)
    assert (
        verdict.text == "accuracy 0.5000 is not compared: the champion (version 3) does not know x"
    )


@pytest.mark.parametrize(
    "rule, challenger, champion, passed, text",
    [
        (
            Rule(metric="calibration_error", at_most=0.1),
            0.04,
            None,
            True,
            "calibration_error 0.0400 is at most 0.1000",
        ),
        (
            Rule(metric="calibration_error", at_most=0.1),
            0.14,
            None,
            False,
            "calibration_error 0.1400 is above 0.1000",
        ),
        (
            Rule(metric="calibration_error", max_regression=0.01),
            0.06,
            0.04,
            False,
            (
                "calibration_error 0.0600 is 0.0200 above the champion's 0.0400 "
                "(allowed loss: 0.0100)"
            ),
        ),
        (
            Rule(metric="latency_milliseconds", at_most=50),
            12.5,
            None,
            True,
            "latency_milliseconds 12.5000 is at most 50.0000",
        ),
        (
            Rule(metric="model_bytes", at_most=5_000_000),
            6_100_000,
            None,
            False,
            "model_bytes 6,100,000 is above 5,000,000",
        ),
        (
            Rule(metric="model_bytes", max_regression=0),
            500,
            400,
            False,
            "model_bytes 500 is 100 above the champion's 400 (allowed loss: 0)",
        ),
        (
            Rule(metric="accuracy", min_improvement=0.0),
            0.98,
            0.97,
            True,
            (
                "accuracy 0.9800 is 0.0100 above the champion's 0.9700 "
                "(required gain: more than 0.0000)"
            ),
        ),
        (
            Rule(metric="accuracy", min_improvement=0.0),
            0.97,
            0.97,
            False,
            "accuracy 0.9700 equals the champion's (required gain: more than 0.0000)",
        ),
    ],
)
def test_rules_where_less_is_better_and_rules_that_ask_for_more(
    rule, challenger, champion, passed, text
):
    verdict = judge_values(rule, challenger, champion)
    assert (verdict.passed, verdict.text) == (passed, text)
    assert (verdict.value, verdict.champion) == (challenger, champion)


def class_figures(name: str, recall: float, support: int) -> ClassFigures:
    return ClassFigures(name=name, precision=0.5, recall=recall, f1=0.5, support=support)


def test_a_rule_for_every_class_has_a_verdict_for_each_and_one_without_examples_is_not_judged():
    model = ModelEvaluation(
        metrics={},
        confusion=[],
        classes=[
            class_figures("cat", 0.9, 10),
            class_figures("dog", 0.6, 10),
            class_figures("emu", 0.0, 0),
        ],
    )
    whole = ExampleGroup(20, model)
    verdicts = judge([Rule(metric="recall", of_class="*", at_least=0.8)], whole)
    assert [(v.subject, v.passed) for v in verdicts] == [
        ("class cat", True),
        ("class dog", False),
        ("class emu", True),
    ]
    assert verdicts[1].text == "recall of class dog 0.6000 is below 0.8000"
    assert (
        verdicts[2].text
        == "recall of class emu is not judged: 0 test examples, the rule needs 1 or more"
    )
    with pytest.raises(
        ConfigError, match="there is no class 'dgo' .the nearest valid name is 'dog'"
    ):
        judge([Rule(metric="recall", of_class="dgo", at_least=0.8)], whole)


@pytest.mark.parametrize(
    "drift, passed, text",
    [
        (0.05, True, "drift 0.0500 is at most 0.1000"),
        (0.2, False, "drift 0.2000 is above 0.1000"),
        (None, True, "drift is unknown: the data set has no reference"),
    ],
)
def test_drift_is_held_to_a_bound(drift, passed, text):
    [verdict] = judge([Rule(metric="drift", at_most=0.1)], **evidence({}, drift=drift))
    assert (verdict.passed, verdict.text) == (passed, text)


@pytest.mark.parametrize(
    "serving, passed, text",
    [
        (asked(brightness=0.05), True, "serving_skew of brightness 0.0500 is at most 0.1000"),
        (asked(image_width=0.2), False, "serving_skew of image width 0.2000 is above 0.1000"),
        (asked(labels=0.2), False, "serving_skew of classes 0.2000 is above 0.1000"),
        (
            ServingFigures(num_images=3, problem="3 images were requested"),
            True,
            "serving_skew is unknown: 3 images were requested",
        ),
        (
            None,
            True,
            "serving_skew is unknown: no requests to the model in service were counted",
        ),
    ],
)
def test_the_largest_distance_of_requests_is_held_to_a_bound(serving, passed, text):
    rule = Rule(metric="serving_skew", at_most=0.1)
    [verdict] = judge([rule], **evidence({}, serving=serving))
    assert (verdict.passed, verdict.text) == (passed, text)


def test_a_metric_that_has_no_meaning_on_these_examples_fails_its_rule():
    [verdict] = judge([Rule(metric="macro_roc_auc", at_least=0.5)], **evidence({}))
    assert (verdict.passed, verdict.text) == (
        False,
        "macro_roc_auc is undefined on these test examples",
    )


@pytest.mark.parametrize("champion, is_compared", [(None, False), (0.4, True)])
def test_a_rule_about_the_champion_is_only_compared_with_one(champion, is_compared):
    verdict = judge_values(accuracy(max_regression=0.1), 0.5, champion)
    assert (verdict.passed, verdict.is_compared) == (True, is_compared)
