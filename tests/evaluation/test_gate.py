"""The gate's verdicts, as sentences."""

from __future__ import annotations

import pytest

from pipeline_ops.contracts.config_evaluate import Rule
from pipeline_ops.evaluation.gate import judge


def accuracy(**bounds) -> Rule:
    return Rule(metric="accuracy", **bounds)


@pytest.mark.parametrize("rule, challenger, champion, passed, text", [
    (accuracy(at_least=0.975), 0.9831, None, True, "accuracy 0.9831 is at least 0.9750"),
    (accuracy(at_least=0.975), 0.975, None, True, "accuracy 0.9750 is at least 0.9750"),
    (accuracy(at_least=0.975), 0.9631, None, False, "accuracy 0.9631 is below 0.9750"),
    (accuracy(at_least=0.975), 0.97496, None, False, "accuracy 0.97496 is below 0.97500"),
    (accuracy(not_worse_than_champion_by_more_than=0.005), 0.972, 0.9831, False,
     "accuracy 0.9720 is 0.0111 below the champion's 0.9831; at most 0.0050 is allowed"),
    (accuracy(not_worse_than_champion_by_more_than=0.005), 0.98, 0.985, True,
     "accuracy 0.9800 is 0.0050 below the champion's 0.9850; at most 0.0050 is allowed"),
    (accuracy(not_worse_than_champion_by_more_than=0.005), 0.97999, 0.985, False,
     "accuracy 0.9800 is 0.00501 below the champion's 0.9850; at most 0.00500 is allowed"),
    (accuracy(not_worse_than_champion_by_more_than=0.005), 0.985, 0.98, True,
     "accuracy 0.9850 is 0.0050 above the champion's 0.9800; a loss of at most 0.0050 is allowed"),
    (accuracy(not_worse_than_champion_by_more_than=0.0), 0.98, 0.98, True,
     "accuracy 0.9800 equals the champion's; a loss of at most 0.0000 is allowed"),
    (accuracy(not_worse_than_champion_by_more_than=0.005), 0.5, None, True,
     "accuracy 0.5000 stands alone: there is no champion to compare it with"),
])
def test_a_rule_is_judged_with_its_numbers(rule, challenger, champion, passed, text):
    [verdict] = judge([rule], {"accuracy": challenger}, None if champion is None else {"accuracy": champion})
    assert (verdict.passed, verdict.text) == (passed, text)


def test_each_bound_of_each_rule_gets_a_verdict_in_the_order_of_the_config():
    rules = [accuracy(at_least=0.9, not_worse_than_champion_by_more_than=0.01), Rule(metric="worst_class_recall", at_least=0.8)]
    verdicts = judge(rules, {"accuracy": 0.95, "worst_class_recall": 0.7}, {"accuracy": 0.97, "worst_class_recall": 0.1})
    assert [(v.metric, v.passed) for v in verdicts] == [("accuracy", True), ("accuracy", False), ("worst_class_recall", False)]


def test_why_there_is_no_comparison_is_part_of_the_sentence():
    [verdict] = judge([accuracy(not_worse_than_champion_by_more_than=0.1)], {"accuracy": 0.5}, None, "the champion (version 3) does not know x")
    assert verdict.text == "accuracy 0.5000 stands alone: the champion (version 3) does not know x"
