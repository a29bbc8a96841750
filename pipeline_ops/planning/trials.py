"""The trials of a search, and the choice of the best one. Runs no job."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import ConfigDict

from pipeline_ops.config.evaluate import Mode, find_mode, rank_figure
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.pruning import PlannedTrial
from pipeline_ops.contract.results import SearchFigures, TrainingFigures, Trial
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.planning.job_kinds import find_job_code
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.parsing import JsonModel, read_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.user_code.models import read_user_code


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


def read_trials(config: PipelineConfig, manifest: StorePath) -> list[Trial]:
    """Reads the trials that the job `search` has drawn.

    Raises DataError if one of them is not of the config's search. The search may have changed, and
    everybody who can write to the storage may have written the file.
    """
    trials = SearchFigures.model_validate(read_manifest(manifest).figures).trials
    for number, trial in enumerate(trials):
        if (
            config.search is None
            or trial.number != number
            or not config.search.includes(trial.parameters)
        ):
            raise DataError(
                f"{manifest}: the trial {trial.number} is not one of the search in {config.file}. "
                "Clear the task search to draw the trials again."
            )
    return trials


def plan_pruning(config: PipelineConfig, training: Fingerprint) -> PlannedTrial | None:
    """Plans the pruning of a trial. Returns None without a pruner.

    Runs with the same search, data and code share a study, so an unchanged run finds its pruned
    trials again. More trials of a random search join it. `config` is that of the search, without
    the parameters of a trial. `training` is the fingerprint of the trial.
    """
    search, train = config.search, config.train
    if search is None or search.pruner == "none":
        return None
    monitor = get_monitor(config)
    compared = search.model_copy(update={"trials": None}).to_fingerprint_dict()
    own = read_user_code(train, config.file.parent).digests
    # The versions are those of the trial. Trials whose own code imports other packages are compared
    # among themselves.
    common = Fingerprint(
        config=training.config | train.to_fingerprint_dict(),
        inputs=training.inputs,
        code=find_job_code("train", config) | own,
        versions=training.versions,
    )
    study = Layout(config.root, config.pipeline).artifact(
        "train", compute_digest([compared, common.digest])
    )
    return PlannedTrial(
        study=str(study),
        training=training.digest,
        monitor=monitor,
        min_epochs=search.min_epochs,
        mode=train.find_mode(monitor),
    )


def read_history(manifest: StorePath, monitor: str) -> list[float]:
    """Reads the monitored figure after each epoch of a training."""
    figures = TrainingFigures.model_validate(read_manifest(manifest).figures)
    return [epoch.metrics[monitor] for epoch in figures.history]


def build_trial_config(config: PipelineConfig, trial: Trial) -> PipelineConfig:
    """Sets the values of a trial in the config of a run. Raises ConfigError with its name."""
    try:
        return config.with_overrides(trial.parameters)
    except ConfigError as error:
        error.add_location(f"search, {trial.name} ({trial})")
        raise


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
