"""Plans of a search: its trials, and the best of them.

The plans are pure. The operators and `trainyard explain` act on the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.layout import Layout, format_trial_name
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import TrainingFigures
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.search import MAX_TRIALS, Search
from pipeline_ops.config.train import is_lower_better
from pipeline_ops.errors import ConfigError
from pipeline_ops.jobs.request import PlannedTrial
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath


class Trial(BaseModel):
    """One combination of parameters, by dotted key."""

    model_config = ConfigDict(frozen=True)

    number: int
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its record and of the folder of its attempts."""
        return format_trial_name(self.number)

    def __str__(self) -> str:
        return ", ".join(
            f"{key.removeprefix('train.')} "
            f"{format(value, 'g') if isinstance(value, float) else value}"
            for key, value in self.parameters.items()
        )


class TrialResult(BaseModel):
    """The end of a trial: its figure, or the message of a pruned or failed one."""

    model_config = ConfigDict(frozen=True)

    trial: Trial
    manifest: str | None = None
    figure: float | None = None
    message: str = ""
    is_pruned: bool = False


class SearchResult(BaseModel):
    """All trials of a run, in order, and the number of the one that goes on."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    monitor: str
    results: list[TrialResult]
    best: int

    @property
    def winner(self) -> TrialResult:
        return next(result for result in self.results if result.trial.number == self.best)

    def format_table(self) -> list[str]:
        """Formats the results as lines for display, the best first."""
        lines = []
        for result in rank_results(self.results, self.monitor):
            text = (result.message.strip().splitlines() or ["no message"])[0][:200]
            figure = text if result.is_pruned else f"failed: {text}"
            if result.figure is not None:
                figure = f"{self.monitor} {result.figure:.4f}"
            lines.append(
                f"{'*' if result.trial.number == self.best else ' '} {result.trial.name}  "
                f"{figure}  {result.trial}"
            )
        return lines


def read_search(layout: Layout, run_id: str) -> SearchResult | None:
    """Returns the result of a run's search. Raises DataError if the file is not one."""
    return read_json_as(SearchResult, layout.search_result(run_id))


def plan_trials(config: PipelineConfig) -> list[Trial]:
    """Returns the trials of a config's search, in an order that does not change.

    Trial number n of a random search does not depend on the number of trials. More trials keep the
    earlier trainings.

    Raises:
      ConfigError: there are too many, or Optuna is not installed.
    """
    search = config.search
    if search is None:
        return []
    if search.method == "grid":
        lists = (values for values in search.parameters.values() if isinstance(values, list))
        if (count := math.prod(map(len, lists))) > MAX_TRIALS:
            raise ConfigError(
                f"search: the grid has {count} combinations, more than {MAX_TRIALS}. "
                "Take fewer values, or method: random."
            )
    try:
        from pipeline_ops.jobs.study import draw_parameters
    except ImportError as error:
        raise ConfigError(
            f"search: Optuna is not installed here ({error}). "
            "Install the extra search: pip install '.[search]' in a clone of Trainyard."
        ) from None
    distinct = list[dict[str, Any]]()
    for parameters in draw_parameters(search):
        if parameters not in distinct:
            distinct.append(parameters)
    return [
        Trial(number=number, parameters=parameters) for number, parameters in enumerate(distinct)
    ]


def plan_pruning(
    config: PipelineConfig, search: Search, number: int, first: Fingerprint
) -> PlannedTrial:
    """Returns how the pruner of a search follows a trial.

    Trials compete across runs as long as search, data and code are the same, so an unchanged run
    finds its pruned trials as they were. More trials of a random search join the earlier ones.

    Args:
      first: the fingerprint of the first trial's training.
    """
    layout = Layout(config.root, config.pipeline)
    compared = search.model_copy(update={"trials": None}).to_fingerprint_dict()
    return PlannedTrial(
        study=str(layout.artifact("train", compute_digest([compared, first.digest]))),
        number=number,
        monitor=get_monitor(config),
        min_epochs=search.min_epochs,
    )


def build_trial_config(config: PipelineConfig, trial: Trial) -> PipelineConfig:
    """Returns the config of the run with the values of one trial.

    Raises ConfigError if they are not valid together. The message names the trial.
    """
    try:
        return config.with_overrides(trial.parameters)
    except ConfigError as error:
        raise ConfigError(f"search, {trial.name} ({trial}): {error}") from None


def check_trials(config: PipelineConfig, trials: Sequence[Trial]) -> None:
    """Checks all trials before the first one trains.

    Raises ConfigError with the name of each trial that cannot be trained.
    """
    problems = []
    for trial in trials:
        try:
            build_trial_config(config, trial)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))


def get_monitor(config: PipelineConfig) -> str:
    """Returns the name of the metric that decides which trial is the best."""
    searched = config.search and config.search.monitor
    return searched or config.train.best_monitor or "validation_loss"


def read_trial_result(trial: Trial, manifest: StorePath, monitor: str) -> TrialResult:
    """Returns the result of a trial that ended well.

    The figure is that of the epoch whose weights became the model. A figure that is not a number
    loses to all others.
    """
    figures = TrainingFigures.model_validate(read_manifest(manifest).figures)
    figure = figures.history[figures.best_epoch].metrics[monitor]
    if math.isnan(figure):
        return TrialResult(trial=trial, message=f"its {monitor} is not a number")
    return TrialResult(trial=trial, manifest=str(manifest), figure=figure)


def choose_best_trial(results: Sequence[TrialResult], monitor: str) -> SearchResult | None:
    """Returns the result with the earliest of the best trials, or None if none was finished."""
    best = rank_results(results, monitor)[0]
    if best.figure is None:
        return None
    return SearchResult(monitor=monitor, results=list(results), best=best.trial.number)


def rank_results(results: Sequence[TrialResult], monitor: str) -> list[TrialResult]:
    """Returns the results with the best first, then the pruned ones, and the failed ones last.

    A loss or an error is better when it is lower, anything else when it is higher.
    """
    sign = 1 if is_lower_better(monitor) else -1
    return sorted(
        results,
        key=lambda result: (
            math.inf if result.figure is None else sign * result.figure,
            not result.is_pruned,
            result.trial.number,
        ),
    )
