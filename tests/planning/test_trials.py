"""Which trials a search has, and which of them is the best."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.results import Trial
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.study import draw_trials
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.planning.trials import (
    SearchResult,
    TrialResult,
    build_trial_config,
    check_trials,
    choose_best_trial,
    get_monitor,
    plan_pruning,
)

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
RATE, BATCH = "train.optimizer.learning_rate", "train.global_batch_size"
RANDOM = {"method": "random", "trials": 1}


def config(**search):
    return load_config(DIGITS, {"search": search})


def drawn(config) -> list[Trial]:
    """The trials, each of which the search takes for one of its own."""
    trials = draw_trials(config.search)
    assert all(config.search.includes(trial.parameters) for trial in trials)
    assert len(trials) <= config.search.max_trials
    return trials


def random_trials(count: int, values: dict) -> list[Trial]:
    return drawn(config(method="random", trials=count, parameters=values))


def test_a_grid_has_every_combination_in_an_order_that_stays():
    grid = {"parameters": {RATE: [0.001, 0.01], BATCH: [32, 64]}}
    trials = drawn(config(**grid))
    combinations = sorted(tuple(trial.parameters.values()) for trial in trials)
    assert combinations == [(0.001, 32), (0.001, 64), (0.01, 32), (0.01, 64)]
    assert trials == drawn(config(**grid))
    assert [trial.name for trial in trials] == ["trial-000", "trial-001", "trial-002", "trial-003"]
    assert str(trials[0]) == "optimizer.learning_rate 0.01, global_batch_size 64"


def test_a_grid_may_have_any_values_of_the_yaml():
    augment = [[], [{"name": "flip"}], None]
    trials = drawn(config(parameters={"train.input.augment": augment}))
    assert len(trials) == 3
    assert all(trial.parameters["train.input.augment"] in augment for trial in trials)


def test_the_same_combination_is_tried_once():
    assert len(drawn(config(parameters={BATCH: [32, 64, 32]}))) == 2


def test_more_random_trials_keep_those_that_were_there():
    values = {RATE: {"low": 1e-4, "high": 1e-1, "scale": "log"}, BATCH: {"low": 16, "high": 256}}
    assert random_trials(20, values)[:5] == random_trials(5, values)


def test_a_range_is_kept_to_evenly_on_its_scale():
    trials = random_trials(
        200, {RATE: {"low": 1e-4, "high": 1e-2, "scale": "log"}, BATCH: {"low": 16, "high": 18}}
    )
    rates = [trial.parameters[RATE] for trial in trials]
    assert 1e-4 <= min(rates) < max(rates) <= 1e-2
    assert 0.4 < statistics.mean(rate < 1e-3 for rate in rates) < 0.6
    batches = {trial.parameters[BATCH] for trial in trials}
    assert batches == {16, 17, 18}
    assert all(isinstance(batch, int) for batch in batches)


@pytest.mark.parametrize(
    ("parameters", "more", "message"),
    [
        ({}, {}, "search.parameters"),
        ({"preprocess.shards": [1]}, {}, "is not a key of train"),
        ({RATE: []}, {}, "has no values"),
        ({RATE: {"low": 1.0, "high": 2.0}}, {}, f"has lists of values, got a range for {RATE}"),
        ({RATE: [1.0]}, {"trials": 3}, "The method random needs a number of trials"),
        ({RATE: [1.0]}, {"method": "random"}, "The method random needs a number of trials"),
        ({RATE: {"low": 2.0, "high": 1.0}}, RANDOM, "low must be less than high"),
        ({RATE: {"low": 0, "high": 1.0, "scale": "log"}}, RANDOM, "log is for values above 0"),
    ],
)
def test_a_search_that_can_not_be_is_refused(parameters, more, message):
    with pytest.raises(ConfigError, match=message):
        config(parameters=parameters, **more)


def test_a_grid_that_is_too_large_is_refused():
    ten = list(range(1, 11))
    with pytest.raises(ConfigError, match="1000 combinations, more than 256"):
        config(parameters={BATCH: ten, RATE: ten, "train.seed": ten})


def test_every_trial_that_can_not_be_trained_is_named_before_any_is():
    trials = drawn(config(parameters={"train.golbal_batch": [32], RATE: [0.001, -1.0]}))
    with pytest.raises(ConfigError) as error:
        check_trials(load_config(DIGITS), trials)
    assert "trial-000 (golbal_batch 32" in str(error.value)
    assert "the nearest valid name is 'global_batch_size'" in str(error.value)
    assert "trial-001" in str(error.value)


def test_a_trial_is_a_training_of_its_own_and_the_search_is_no_part_of_it(dataset):
    """So a trial that was trained in another search, or as the only training, is found."""
    trial = Trial(number=3, parameters={RATE: 0.005})
    searched = load_config(DIGITS, {"search": {"parameters": {RATE: [0.005]}}, RATE: 0.9})
    configs = build_trial_config(searched, trial), load_config(DIGITS, {RATE: 0.005})
    assert configs[0].train == configs[1].train
    of_trial, alone = (plan_job("train", each, "a", {"preprocess": dataset}) for each in configs)
    assert of_trial.request.fingerprint == alone.request.fingerprint


def test_a_change_of_a_callbacks_code_is_another_training(dataset, tmp_path):
    file = tmp_path / "digits.yaml"
    file.write_text(DIGITS.read_text())
    (tmp_path / "my_callback.py").write_text("def tell():\n    pass\n")

    def digest() -> str:
        config = load_config(file, {"train.callbacks": ["my_callback:tell"]})
        return plan_job("train", config, "a", {"preprocess": dataset}).request.fingerprint.digest

    first = digest()
    (tmp_path / "my_callback.py").write_text("def tell():\n    pass  # a comment\n")
    assert digest() == first
    (tmp_path / "my_callback.py").write_text("def tell():\n    return 1\n")
    assert digest() != first


def results(*figures: float | None) -> list[TrialResult]:
    return [
        TrialResult(
            trial=Trial(number=i, parameters={BATCH: i}),
            figure=figure,
            manifest=f"{i}",
            message="it broke\nbadly" if figure is None else "",
        )
        for i, figure in enumerate(figures)
    ]


@pytest.mark.parametrize(
    ("monitor", "figures", "best"),
    [
        ("validation_accuracy", (0.5, 0.9, 0.7), 1),
        ("validation_accuracy", (math.inf, 0.9, math.nan), 1),
        ("validation_loss", (math.nan, 0.9, -math.inf), 1),
        ("validation_loss", (0.5, 0.9, 0.7), 0),
        ("validation_accuracy", (0.9, 0.9), 0),
        ("validation_accuracy", (None, 0.1), 1),
        ("validation_loss", (None, 0.1, None), 1),
    ],
)
def test_the_best_is_the_earliest_of_the_best_and_a_failed_one_never(monitor, figures, best):
    assert choose_best_trial(results(*figures), monitor).best == best


@pytest.mark.parametrize(("mode", "best"), [("min", 1), ("max", 0)])
def test_the_mode_of_an_own_metric_decides_and_not_its_name(mode, best):
    found = choose_best_trial(results(0.5, 0.1), "validation_my_error", mode)
    assert found.best == best
    assert SearchResult.model_validate_json(found.model_dump_json()) == found
    assert found.format_table()[0].startswith(f"* {found.winner.trial.name}")


def test_where_all_have_failed_there_is_no_best():
    assert choose_best_trial(results(None, None), "validation_loss") is None


def test_the_table_has_the_best_first_and_says_why_one_failed():
    table = choose_best_trial(results(0.5, None, 0.9), "validation_accuracy").format_table()
    assert table == [
        "* trial-002  validation_accuracy 0.9000  global_batch_size 2",
        "  trial-000  validation_accuracy 0.5000  global_batch_size 0",
        "  trial-001  failed: it broke  global_batch_size 1",
    ]


def test_what_is_monitored_is_what_the_best_checkpoint_goes_by():
    search = {"parameters": {BATCH: [32]}}
    without_best = load_config(DIGITS, {"search": search, "train.best_checkpoint": None})
    assert get_monitor(config(**search)) == get_monitor(without_best) == "validation_loss"
    assert get_monitor(config(**search, monitor="validation_accuracy")) == "validation_accuracy"


def study(dataset: str, trial: int = 0, **changes) -> str:
    """The study of a trial's training."""
    search = {"method": "random", "trials": 5, "pruner": "asha", "parameters": {RATE: [0.1, 0.01]}}
    values = {"search": search | changes.pop("search", {})} | changes
    searched = load_config(DIGITS, values)
    trial_config = build_trial_config(searched, draw_trials(searched.search)[trial])
    plan = plan_job("train", trial_config, "a", {"preprocess": dataset})
    planned = plan_pruning(searched, plan.request.fingerprint)
    assert planned.training == plan.request.fingerprint.digest
    return planned.study


def test_a_trial_names_its_study_by_what_all_trials_have_in_common(dataset):
    assert study(dataset) == study(dataset, 1) == study(dataset, search={"trials": 9})
    assert study(dataset) != study(dataset, search={"min_epochs": 3})
    assert study(dataset) != study(dataset, **{"train.epochs": 3})


def test_without_a_pruner_there_is_no_study(dataset):
    searched = config(parameters={RATE: [0.1]})
    plan = plan_job("train", searched, "a", {"preprocess": dataset})
    assert plan_pruning(searched, plan.request.fingerprint) is None


def test_a_metric_of_the_gate_is_monitored_where_the_training_computes_it():
    search = {"trials": 2, "method": "random", "parameters": {"train.seed": [1, 2, 3]}}
    monitored = {"train.best_checkpoint": {"monitor": "validation_macro_f1"}}
    with pytest.raises(ConfigError, match="search.monitor: must be one of validation_loss, .* got"):
        load_config(DIGITS, {"search": search | {"monitor": "validation_macro_f1"}})
    found = load_config(DIGITS, {"search": search | {"monitor": "validation_macro_f1"}} | monitored)
    assert get_monitor(found) == "validation_macro_f1"
    assert get_monitor(load_config(DIGITS, {"search": search} | monitored)) == "validation_macro_f1"
