"""The gate's verdicts, as sentences."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from pipeline_ops.artifacts.results import ClassFigures, ModelEvaluation
from pipeline_ops.config.evaluate import Bootstrap, Evaluate, Rule
from pipeline_ops.errors import ConfigError
from pipeline_ops.evaluation.bootstrap import BootstrapSamples
from pipeline_ops.evaluation.gate import NO_CHAMPION, Evidence, judge
from pipeline_ops.evaluation.groups import Group, slice_groups, whole_group
from pipeline_ops.evaluation.metrics import ModelAnswer, evaluate_model

NOTHING_DRAWN = BootstrapSamples({}, {})


def evidence(
    challenger: dict, champion: dict | None = None, why: str = NO_CHAMPION, **more
) -> Evidence:
    """Two models with these metrics."""
    models = [
        None
        if metrics is None
        else ModelEvaluation(metrics=metrics, classes=[], confusion=[], measures=metrics)
        for metrics in (challenger, champion)
    ]
    return Evidence(
        Group("", "", 100, *models, NOTHING_DRAWN, None if champion is None else NOTHING_DRAWN),
        why_no_champion=why,
        **more,
    )


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
            accuracy(not_worse_than_champion_by_more_than=0.005),
            0.972,
            0.9831,
            False,
            "accuracy 0.9720 is 0.0111 below the champion's 0.9831; at most 0.0050 is allowed",
        ),
        (
            accuracy(not_worse_than_champion_by_more_than=0.005),
            0.98,
            0.985,
            True,
            "accuracy 0.9800 is 0.0050 below the champion's 0.9850; at most 0.0050 is allowed",
        ),
        (
            accuracy(not_worse_than_champion_by_more_than=0.005),
            0.97999,
            0.985,
            False,
            "accuracy 0.9800 is 0.00501 below the champion's 0.9850; at most 0.00500 is allowed",
        ),
        (
            accuracy(not_worse_than_champion_by_more_than=0.005),
            0.985,
            0.98,
            True,
            (
                "accuracy 0.9850 is 0.0050 above the champion's 0.9800; "
                "a loss of at most 0.0050 is allowed"
            ),
        ),
        (
            accuracy(not_worse_than_champion_by_more_than=0.0),
            0.98,
            0.98,
            True,
            "accuracy 0.9800 equals the champion's; a loss of at most 0.0000 is allowed",
        ),
        (
            accuracy(not_worse_than_champion_by_more_than=0.005),
            0.5,
            None,
            True,
            "accuracy 0.5000 stands alone: there is no champion to compare it with",
        ),
    ],
)
def test_a_rule_is_judged_with_its_numbers(rule, challenger, champion, passed, text):
    [verdict] = judge(
        [rule],
        evidence({"accuracy": challenger}, None if champion is None else {"accuracy": champion}),
    )
    assert (verdict.passed, verdict.text) == (passed, text)


def test_each_bound_of_each_rule_gets_a_verdict_in_the_order_of_the_config():
    rules = [
        accuracy(at_least=0.9, not_worse_than_champion_by_more_than=0.01),
        Rule(metric="worst_class_recall", at_least=0.8),
    ]
    verdicts = judge(
        rules,
        evidence(
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
    [verdict] = judge([accuracy(not_worse_than_champion_by_more_than=0.1)], alone)
    assert verdict.text == "accuracy 0.5000 stands alone: the champion (version 3) does not know x"


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
            Rule(metric="calibration_error", not_worse_than_champion_by_more_than=0.01),
            0.06,
            0.04,
            False,
            (
                "calibration_error 0.0600 is 0.0200 above the champion's 0.0400; "
                "at most 0.0100 is allowed"
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
            Rule(metric="model_bytes", not_worse_than_champion_by_more_than=0),
            500,
            400,
            False,
            "model_bytes 500 is 100 above the champion's 400; at most 0 is allowed",
        ),
        (
            Rule(metric="accuracy", better_than_champion_by_more_than=0.0),
            0.98,
            0.97,
            True,
            "accuracy 0.9800 is 0.0100 above the champion's 0.9700; more by over 0.0000 is asked",
        ),
        (
            Rule(metric="accuracy", better_than_champion_by_more_than=0.0),
            0.97,
            0.97,
            False,
            "accuracy 0.9700 equals the champion's; more by over 0.0000 is asked",
        ),
    ],
)
def test_rules_where_less_is_better_and_rules_that_ask_for_more(
    rule, challenger, champion, passed, text
):
    [verdict] = judge(
        [rule],
        evidence({rule.metric: challenger}, None if champion is None else {rule.metric: champion}),
    )
    assert (verdict.passed, verdict.text) == (passed, text)
    assert (verdict.value, verdict.champion) == (challenger, champion)


def two_models(right: int, only_first: int, only_second: int, wrong: int) -> Group:
    """Two classes, all examples of the first; so many are right with both, with one, with none."""
    counts = (right, only_first, only_second, wrong)
    labels = np.zeros(sum(counts), int)
    first, second = (np.repeat(answers, counts) for answers in ((0, 0, 1, 1), (0, 1, 0, 1)))
    answers = [
        ModelAnswer(c, c, np.full(len(c), 0.9), np.stack([1.0 - c, c * 1.0]))
        for c in (first, second)
    ]
    evaluations = [evaluate_model(labels, answer, ["a", "b"], 1, 10)[0] for answer in answers]
    return whole_group(labels, answers, evaluations, 1, Bootstrap())


@pytest.mark.parametrize(
    "counts, bound, within_noise, passed, is_noise",
    [
        (
            (900, 10, 10, 80),
            {"not_worse_than_champion_by_more_than": 0.02},
            "fails",
            True,
            False,
        ),  # a tie that 1,000 examples show to be one
        (
            (90, 1, 1, 8),
            {"not_worse_than_champion_by_more_than": 0.005},
            "fails",
            False,
            True,
        ),  # a tie that 100 examples can't show
        ((90, 1, 1, 8), {"not_worse_than_champion_by_more_than": 0.005}, "passes", True, True),
        (
            (800, 20, 120, 60),
            {"not_worse_than_champion_by_more_than": 0.02},
            "passes",
            False,
            False,
        ),  # clearly worse
        (
            (800, 120, 20, 60),
            {"better_than_champion_by_more_than": 0.02},
            "fails",
            True,
            False,
        ),  # clearly better
        (
            (900, 14, 10, 76),
            {"better_than_champion_by_more_than": 0.0},
            "fails",
            False,
            True,
        ),  # better by the figures alone
        ((900, 14, 10, 76), {"better_than_champion_by_more_than": 0.0}, "passes", True, True),
        (
            (1000, 0, 0, 0),
            {"better_than_champion_by_more_than": 0.0},
            "passes",
            False,
            False,
        ),  # the same answers are no gain
    ],
)
def test_a_tie_within_noise_is_handled_as_configured(counts, bound, within_noise, passed, is_noise):
    [verdict] = judge(
        [accuracy(confidence=0.95, within_noise=within_noise, **bound)],
        Evidence(two_models(*counts)),
    )
    assert (verdict.passed, verdict.is_within_noise) == (passed, is_noise), verdict.text
    assert verdict.low <= verdict.value - verdict.champion <= verdict.high
    assert ("within noise" in verdict.text) == is_noise


def test_a_confident_verdict_lists_its_numbers():
    [verdict] = judge(
        [accuracy(confidence=0.95, not_worse_than_champion_by_more_than=0.02)],
        Evidence(two_models(800, 20, 120, 60)),
    )
    assert verdict.text == (
        "accuracy 0.8200 to the champion's 0.9200: the difference is "
        "at least −0.1200 and at most −0.0820, each with 95 % confidence; "
        "a loss of at most 0.0200 is allowed: refuted"
    )


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
    whole = Group("", "", 20, model, None, NOTHING_DRAWN, None)
    verdicts = judge([Rule(metric="recall", of_class="*", at_least=0.8)], Evidence(whole))
    assert [(v.subject, v.passed) for v in verdicts] == [
        ("class cat", True),
        ("class dog", False),
        ("class emu", True),
    ]
    assert verdicts[1].text == "recall of class dog 0.6000 is below 0.8000"
    assert (
        verdicts[2].text
        == "recall of class emu is not judged: 0 test examples, and the rule is for 1 or more"
    )
    with pytest.raises(
        ConfigError, match="there is no class 'dgo'; the nearest valid name is 'dog'"
    ):
        judge([Rule(metric="recall", of_class="dgo", at_least=0.8)], Evidence(whole))


def test_a_rule_for_a_slice_is_judged_on_its_examples_alone():
    labels, classes = np.array([0, 0, 1, 1, 0, 1]), np.array([0, 0, 1, 1, 1, 0])
    answer = ModelAnswer(
        classes, (classes != labels) * 1, np.full(6, 0.9), np.stack([1.0 - classes, classes * 1.0])
    )
    slices = slice_groups(
        labels,
        [answer],
        {"camera": np.array(["day"] * 4 + ["night"] * 2)},
        ["a", "b"],
        1,
        Bootstrap(samples=100),
    )
    night, day = (
        Rule(metric="accuracy", of_slice="camera=night", at_least=0.5),
        Rule(metric="accuracy", of_slice="camera", at_least=0.5),
    )
    found = Evidence(slices[0], slices)
    assert [(v.subject, v.passed, v.value) for v in judge([night, day], found)] == [
        ("camera=night", False, 0.0),
        ("camera=day", True, 1.0),
        ("camera=night", False, 0.0),
    ]
    [few] = judge([night.model_copy(update={"min_examples": 3})], found)
    assert few.passed and "2 test examples, and the rule is for 3 or more" in few.text
    with pytest.raises(
        ConfigError,
        match="no test example has camera=nigth; the nearest valid name is 'camera=night'",
    ):
        judge([night.model_copy(update={"of_slice": "camera=nigth"})], found)


@pytest.mark.parametrize(
    "drift, passed, text",
    [
        (0.05, True, "drift 0.0500 is at most 0.1000"),
        (0.2, False, "drift 0.2000 is above 0.1000"),
        (None, True, "drift can't be told: the data set has nothing to be compared with"),
    ],
)
def test_drift_is_held_to_a_bound(drift, passed, text):
    [verdict] = judge([Rule(metric="drift", at_most=0.1)], evidence({}, drift=drift))
    assert (verdict.passed, verdict.text) == (passed, text)


def test_a_metric_that_has_no_meaning_on_these_examples_fails_its_rule():
    [verdict] = judge([Rule(metric="macro_roc_auc", at_least=0.5)], evidence({}))
    assert (verdict.passed, verdict.text) == (
        False,
        "macro_roc_auc can't be told from these test examples",
    )


@pytest.mark.parametrize(
    "rule, reason",
    [
        ({"metric": "accuracy"}, "a rule needs"),
        ({"metric": "accuracy", "at_least": 1.5}, "lies between 0 and 1"),
        ({"metric": "accuracy", "at_most": 0.5}, "more is better"),
        ({"metric": "calibration_error", "at_least": 0.5}, "less is better"),
        ({"metric": "drift", "not_worse_than_champion_by_more_than": 0.1}, "bound it with at_most"),
        ({"metric": "accuracy", "at_least": 0.5, "confidence": 0.95}, "this rule has none"),
        (
            {
                "metric": "macro_roc_auc",
                "not_worse_than_champion_by_more_than": 0.1,
                "confidence": 0.95,
            },
            "made of counts",
        ),
        (
            {
                "metric": "accuracy",
                "not_worse_than_champion_by_more_than": 0.1,
                "within_noise": "passes",
            },
            "no confidence",
        ),
        ({"metric": "recall", "at_least": 0.5}, "they need it"),
        ({"metric": "accuracy", "at_least": 0.5, "of_class": "a"}, "of_class is for"),
        ({"metric": "calibration_error", "at_most": 0.5, "of_slice": "folder"}, "of_slice is for"),
    ],
)
def test_a_rule_that_can_not_work_is_refused_with_the_reason(rule, reason):
    with pytest.raises(ValidationError, match=reason):
        Rule.model_validate(rule)


def test_a_rule_of_a_slice_that_is_not_configured_is_refused():
    with pytest.raises(ValidationError, match="names no slice; evaluate.slices has folder"):
        Evaluate.model_validate(
            {
                "gate": [{"metric": "accuracy", "at_least": 0.5, "of_slice": "fodler"}],
                "slices": [{"by": "folder"}],
            }
        )


@pytest.mark.parametrize(
    "part, reason",
    [
        ({"by": "folder", "edges": [1.0]}, "a folder is none"),
        ({"by": "image_bytes"}, "needs edges"),
        ({"by": "image/width", "edges": [2.0, 1.0]}, "must rise"),
        ({"by": "image/width", "folder_depth": 1}, "folder_depth is for"),
        ({"by": "folder", "name": "a=b"}, "pattern"),
    ],
)
def test_a_slice_that_can_not_work_is_refused_with_the_reason(part, reason):
    with pytest.raises(ValidationError, match=reason):
        Evaluate.model_validate(
            {"gate": [{"metric": "accuracy", "at_least": 0.5}], "slices": [part]}
        )
