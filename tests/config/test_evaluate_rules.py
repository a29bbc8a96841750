"""The rules and slices of `evaluate` that the config refuses."""

from __future__ import annotations

from typing import Literal, get_args

import pytest
import yaml
from config.cases import parse_cases
from config.conftest import SMALL
from pydantic import ValidationError

from pipeline_ops.config.evaluate import (
    ClassMetric,
    CountedMetric,
    DetectionMetric,
    Evaluate,
    Measure,
    Rule,
    ScoreMetric,
    find_mode,
)
from pipeline_ops.config.model_catalogue import CATALOGUE

GATE = {"metric": "accuracy", "at_least": 0.5}
WRONG = """
metric: accuracy
    a rule needs
metric: accuracy, at_least: 1.5
    lies between 0 and 1
metric: accuracy, at_most: 0.5
    higher-is-better
metric: calibration_error, at_least: 0.5
    lower-is-better
metric: drift, max_regression: 0.1
    Use at_most
metric: accuracy, at_least: 0.5, confidence: 0.95
    in the same rule
metric: macro_roc_auc, max_regression: 0.1, confidence: 0.95
    made of counts
metric: accuracy, max_regression: 0.1, within_noise: passes
    this rule has none
metric: recall, at_least: 0.5
    need it
metric: accuracy, at_least: 0.5, of_class: a
    with of_class
metric: calibration_error, at_most: 0.5, of_slice: folder
    of_slice is for
metric: 'my_metrics:top_2', at_least: 0.5, of_class: a
    my_metrics:top_2 with of_class
metric: 'my_metrics:top_2', min_skill: 0.5
    min_skill is for .* got it with my_metrics:top_2
metric: 'my_metrics:brier', at_least: 0.5, mode: min
    lower-is-better
metric: 'my_metrics:accuracy', at_least: 0.5
    accuracy is a metric of the gate. Give my_metrics:accuracy another name
metric: 'my_metrics.top_2:', at_least: 0.5
    a function of your own is named as
metric: nothing_alike, at_least: 0.5
    valid names are accuracy, .* map, .* worst_class_recall, and a metric of your own is named as
metric: [accuracy], at_least: 0.5
    Input should be 'accuracy'
metric: accuracy, min_skill: 0.0
    greater than 0
metric: accuracy, min_skill: 1.1
    less than or equal to 1
metric: serving_skew, max_regression: 0.1
    serving_skew is already a distance to the requests in production. Use at_most
metric: serving_skew, at_least: 0.1
    lower-is-better
metric: serving_skew, at_most: 1.5
    lies between 0 and 1
metric: drift, min_skill: 0.1
    got it with drift. Use at_most
metric: calibration_error, min_skill: 0.1
    calibration_error. Use at_most
metric: recall, min_skill: 0.1, of_class: a
    min_skill is for metrics of the whole test split .* got it with recall. Use at_least
metric: mar_1, min_skill: 0.1
    got it with mar_1. Use at_least
metric: accuracy, min_skill: 0.1, of_slice: folder
    accuracy and of_slice. Use at_least
"""


@pytest.mark.parametrize("rule, reason", parse_cases(WRONG))
def test_a_rule_that_can_not_work_is_refused_with_the_reason(rule, reason):
    with pytest.raises(ValidationError, match=reason):
        Rule.model_validate(yaml.safe_load(f"{{{rule}}}"))


@pytest.mark.parametrize("metric", ["accuracy", "macro_roc_auc", "map_50"])
def test_skill_is_a_bound_by_itself(metric):
    assert Rule(metric=metric, min_skill=1.0).min_skill == 1.0


def test_a_rule_on_an_own_metric_stays_the_same_in_a_request():
    rule = Rule(metric="my.metrics:brier", mode="min", max_regression=0.1, confidence=0.9)
    assert rule.name == "brier"
    assert Rule.model_validate(rule.model_dump(mode="json")) == rule


def test_two_own_metrics_of_one_name_are_refused():
    gate = [{"metric": f"{module}:top_2", "at_least": 0.5} for module in ("one", "two")]
    with pytest.raises(ValidationError, match="one:top_2 and two:top_2 have the same name"):
        Evaluate.model_validate({"gate": gate})


def test_a_rule_of_a_slice_that_is_not_configured_is_refused():
    gate = [GATE | {"of_slice": "fodler"}]
    with pytest.raises(ValidationError, match="names no slice. The slices are folder"):
        Evaluate.model_validate({"gate": gate, "slices": [{"by": "folder"}]})


@pytest.mark.parametrize(
    "part, reason",
    [
        ({"by": "folder", "edges": [1.0]}, "a folder is not a number"),
        ({"by": "image_bytes"}, "needs edges"),
        ({"by": "image/width", "edges": [2.0, 1.0]}, "must be ascending"),
        ({"by": "image/width", "folder_depth": 1}, "folder_depth is for"),
        ({"by": "folder", "name": "a=b"}, "pattern"),
    ],
)
def test_a_slice_that_can_not_work_is_refused_with_the_reason(part, reason):
    with pytest.raises(ValidationError, match=reason):
        Evaluate.model_validate({"gate": [GATE], "slices": [part]})


def test_every_figure_of_ours_has_its_direction():
    names = {name for model in CATALOGUE.values() for name in ("loss", *model.metrics)}
    gate = get_args(Literal[CountedMetric, ScoreMetric, ClassMetric, DetectionMetric, Measure])
    lower = {name for name in names | {*gate, "top_3_accuracy"} if find_mode(name) == "min"}
    assert lower == {"loss", "heat_loss", "class_loss", "calibration_error", *get_args(Measure)}
    assert all(find_mode(f"validation_{name}") for name in names)
    assert all(map(find_mode, gate))


@pytest.mark.parametrize("name", ["my_loss", "mean_error", "brier"])
def test_a_name_says_nothing_about_a_metric_of_ones_own(name):
    assert find_mode(f"validation_{name}") is None
    assert find_mode(f"val_{name}", {name: "min"}) == find_mode(name, {name: "min"}) == "min"


def test_a_rule_takes_the_mode_of_train_metrics(load, complaint):
    rule = "metric: my.metrics:brier, max_regression: 0.1"
    new = "digits_cnn\n  metrics: [my.metrics:brier: {mode: min}]"
    text = SMALL.replace("metric: accuracy, at_least: 0.9", rule).replace("digits_cnn", new)
    [found] = load(text=text).evaluate.gate
    assert (found.mode, found.better) == ("min", "min")
    assert Rule.model_validate(found.model_dump(mode="json")) == found
    message = complaint(text=text.replace(rule, f"{rule}, mode: max"))
    assert "evaluate.gate.0.mode: is max, and train.metrics says min of my.metrics:brier" in message


def test_a_search_for_a_metric_of_ones_own_needs_its_mode(load, complaint):
    search = "search: {parameters: {train.seed: [1, 2]}, monitor: validation_brier}\nevaluate:"
    text = SMALL.replace("evaluate:", search)
    without = text.replace("digits_cnn", "digits_cnn\n  metrics: [my.metrics:brier]")
    message = complaint(text=without)
    assert "search.monitor: is validation_brier. Nothing says whether my.metrics:brier" in message
    found = load(text=without.replace("metrics:brier]", "metrics:brier: {mode: min}]"))
    assert found.train.find_mode("validation_brier") == "min"
