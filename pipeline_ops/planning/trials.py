"""The trials of a search, and the choice of the best one. Runs no job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict

from pipeline_ops.config.evaluate import Mode, find_mode, rank_figure
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.search import MAX_TRIALS, Search
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout, format_trial_name
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.request import PlannedTrial
from pipeline_ops.contract.results import TrainingFigures
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.parsing import JsonModel, read_json_as
from pipeline_ops.storage.store_path import StorePath


class Trial(JsonModel):
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


class TrialResult(JsonModel):
    """The figure of a finished trial, or the message of a pruned or failed one."""

    model_config = ConfigDict(frozen=True)

    trial: Trial
    manifest: str | None = None
    figure: float | None = None
    message: str = ""
    is_pruned: bool = False


class SearchResult(JsonModel):
    """All trials of a run, in order, and the number of the best one."""

    model_config = ConfigDict(frozen=True)

    monitor: str
    results: list[TrialResult]
    best: int
    mode: Mode | None = None
    """The better direction of the monitored figure. Null is that of a built-in one."""

    @property
    def winner(self) -> TrialResult:
        return next(result for result in self.results if result.trial.number == self.best)

    def format_table(self) -> list[str]:
        """Formats the results as lines for display, the best first."""
        lines = []
        for result in _rank(self.results, self.monitor, self.mode):
            trial, text = result.trial, (result.message.strip().splitlines() or ["no message"])[0]
            if result.figure is not None:
                figure = f"{self.monitor} {result.figure:.4f}"
            else:
                figure = f"{'' if result.is_pruned else 'failed: '}{text[:200]}"
            mark = "*" if trial.number == self.best else " "
            lines.append(f"{mark} {trial.name}  {figure}  {trial}")
        return lines


def read_search(layout: Layout, run_id: str) -> SearchResult | None:
    """Returns the result of a run's search. Raises DataError if the file is not one."""
    return read_json_as(SearchResult, layout.search_result(run_id))


def plan_trials(config: PipelineConfig) -> list[Trial]:
    """Returns the trials of a config's search, always in the same order.

    A longer random search begins with the same trials, so their trainings are cached. Raises
    ConfigError if there are too many, or if Optuna is not installed.
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
        from pipeline_ops.job.study import draw_parameters
    except ImportError as error:
        raise ConfigError(
            f"search: Optuna is not installed here ({error}). "
            "Install the extra search: pip install '.[search]' in a clone of Trainyard."
        ) from None
    distinct = list[dict[str, Any]]()
    for parameters in draw_parameters(search):
        if parameters not in distinct:
            distinct.append(parameters)
    return [Trial(number=n, parameters=parameters) for n, parameters in enumerate(distinct)]


def plan_pruning(
    config: PipelineConfig, search: Search, number: int, first: Fingerprint
) -> PlannedTrial:
    """Names the study of the pruner that a trial belongs to.

    Runs with the same search, data and code share a study, so an unchanged run finds its pruned
    trials again. More trials of a random search join it. `first` is the fingerprint of the first
    trial's training.
    """
    compared = search.model_copy(update={"trials": None}).to_fingerprint_dict()
    artifact = compute_digest([compared, first.digest])
    return PlannedTrial(
        study=str(Layout(config.root, config.pipeline).artifact("train", artifact)),
        number=number,
        monitor=get_monitor(config),
        min_epochs=search.min_epochs,
        mode=config.train.find_mode(get_monitor(config)),
    )


def build_trial_config(config: PipelineConfig, trial: Trial) -> PipelineConfig:
    """Sets the values of a trial in the config of a run. Raises ConfigError with its name."""
    try:
        return config.with_overrides(trial.parameters)
    except ConfigError as error:
        raise error.at(f"search, {trial.name} ({trial})")


def check_trials(config: PipelineConfig, trials: Sequence[Trial]) -> None:
    """Raises ConfigError with all trials whose configs are not valid, before the first trains."""
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
    """Reads the figure of the epoch whose weights became the model.

    One that is not finite counts as a failure.
    """
    figures = TrainingFigures.model_validate(read_manifest(manifest).figures)
    figure = figures.history[figures.best_epoch].metrics[monitor]
    if not math.isfinite(figure):
        return TrialResult(trial=trial, message=f"its {monitor} is not finite ({figure})")
    return TrialResult(trial=trial, manifest=str(manifest), figure=figure)


def choose_best_trial(
    results: Sequence[TrialResult], monitor: str, mode: Mode | None = None
) -> SearchResult | None:
    """Chooses the best trial, and of equal ones the first. None if none was finished.

    `mode` is the better direction of the figure, None that of a built-in one.
    """
    best = _rank(results, monitor, mode)[0]
    if best.figure is None:
        return None
    return SearchResult(monitor=monitor, results=list(results), best=best.trial.number, mode=mode)


def _rank(results: Sequence[TrialResult], monitor: str, mode: Mode | None) -> list[TrialResult]:
    """Sorts the results: the best first, then the pruned ones, and the failed ones last."""
    better = mode or find_mode(monitor) or "max"
    return sorted(
        results,
        key=lambda result: (
            math.inf if result.figure is None else -rank_figure(result.figure, better),
            not result.is_pruned,
            result.trial.number,
        ),
    )
