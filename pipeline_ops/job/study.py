"""Optuna: the job `search`, whose samplers draw all trials, and the pruner in a train job.

The samplers draw all trials of a search in advance, in memory. The pruner compares what the records
of a study have (`contract/pruning.py`). Nothing else of this project imports Optuna, and nothing of
Airflow's processes imports this module.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import StudyDirection

from pipeline_ops.config.search import Search, to_choice
from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.contract.pruning import (
    PlannedTrial,
    check_pruned,
    read_figures,
    record_epoch,
    record_pruned,
)
from pipeline_ops.contract.results import SearchFigures, Trial
from pipeline_ops.errors import ExitCode, Pruned
from pipeline_ops.job.runner import Job, run_job

REDUCTION_FACTOR = 4
"""One in this many trials goes on, to be compared again after this many times the epochs."""
_SEED = 1

optuna.logging.set_verbosity(optuna.logging.WARNING)


def search(job: Job) -> ExitCode:
    """Draws the trials of a search. They are the figures of an artifact without files."""
    trials = draw_trials(Search.model_validate(job.request.config))
    with job.artifact() as draft:
        draft.seeds["search"] = _SEED
        draft.figures.update(SearchFigures(trials=trials).model_dump(mode="json"))
    return ExitCode.SUCCESS


def draw_trials(search: Search) -> list[Trial]:
    """Draws the trials, each combination once. A longer random search begins with the same ones."""
    distributions = _make_distributions(search)
    sampler: optuna.samplers.BaseSampler
    if search.method == "grid":
        choices = {
            key: distribution.choices
            for key, distribution in distributions.items()
            if isinstance(distribution, CategoricalDistribution)
        }
        sampler = optuna.samplers.GridSampler(choices, _SEED)
    else:
        sampler = optuna.samplers.RandomSampler(_SEED)
    study, distinct = optuna.create_study(sampler=sampler), list[dict[str, Any]]()
    for _ in range(search.max_trials):
        parameters = {
            key: json.loads(value) if isinstance(search.parameters[key], list) else value
            for key, value in study.ask(distributions).params.items()
        }
        if parameters not in distinct:
            distinct.append(parameters)
    return [Trial(number=n, parameters=parameters) for n, parameters in enumerate(distinct)]


def _make_distributions(search: Search) -> dict[str, BaseDistribution]:
    """Optuna knows no lists and mappings among the values, so all values of a list are JSON."""
    made: dict[str, BaseDistribution] = {}
    for key, values in search.parameters.items():
        if isinstance(values, list):
            made[key] = CategoricalDistribution(list(dict.fromkeys(map(to_choice, values))))
        elif values.is_integer:
            made[key] = IntDistribution(int(values.low), int(values.high), values.scale == "log")
        else:
            made[key] = FloatDistribution(values.low, values.high, values.scale == "log")
    return made


class TrialReport:
    """Receives the chief's progress, records the figure of each epoch, and asks the pruner.

    A thread of its own talks to the store, so an outage does not keep the supervisor from its
    workers. A decision of the pruner reaches the gang with the next progress, unless the training
    ends first. A figure is recorded before the pruner decides: if the process is killed in between,
    the trial trains on until it is compared again. `forward` receives the progress, too.
    """

    def __init__(
        self, planned: PlannedTrial, last_epoch: int, forward: Callable[[ProgressEvent], None]
    ):
        self._planned, self._last_epoch, self._forward = planned, last_epoch, forward
        self._comparison = _Comparison(planned)
        self._thread = ThreadPoolExecutor(1)
        self._reports = deque[Future[None]]()
        check_pruned(planned)

    def __call__(self, event: ProgressEvent) -> None:
        """Raises Pruned if the trial is to stop, and DataError for an invalid record."""
        self._forward(event)
        figure = event.metrics.get(self._planned.monitor)
        if event.epoch is not None and figure is not None:
            self._reports.append(self._thread.submit(self._report, event.epoch, figure))
        while self._reports and self._reports[0].done():
            self._reports.popleft().result()

    def _report(self, epoch: int, figure: float) -> None:
        is_new = record_epoch(self._planned, epoch, figure)  # a restarted gang repeats an epoch
        if is_new and epoch < self._last_epoch and self._comparison.is_hopeless(epoch, figure):
            reason = f"pruned after epoch {epoch}: {self._planned.monitor} {figure:.4f}"
            record_pruned(self._planned, reason)
            raise Pruned(reason)


class _Comparison:
    """A study in memory, in which Optuna's pruner compares the figures of all trials so far.

    ASHA only looks at the figures at certain epochs, so the order in which they come plays no part.
    """

    def __init__(self, planned: PlannedTrial):
        is_lower = planned.better == "min"
        self._planned = planned
        self._study = optuna.create_study(
            direction=StudyDirection.MINIMIZE if is_lower else StudyDirection.MAXIMIZE,
            sampler=optuna.samplers.RandomSampler(),
            pruner=optuna.pruners.SuccessiveHalvingPruner(planned.min_epochs, REDUCTION_FACTOR),
        )
        self._trials = dict[str, optuna.Trial]()
        self._read, self._entered = set[str](), set[tuple[str, int]]()

    def is_hopeless(self, epoch: int, figure: float) -> bool:
        """Returns whether the pruner stops this trial, by its newest figure."""
        found = read_figures(self._planned, self._read)
        self._read.update(found)
        newest = (self._planned.training, epoch, figure)
        self._entered.add(newest[:2])
        figures = [each for listed in found.values() for each in listed]
        for each in sorted(figures, key=lambda each: each[1]):
            if each[:2] not in self._entered:
                self._entered.add(each[:2])
                self._enter(*each)
        return self._enter(*newest)

    def _enter(self, training: str, epoch: int, figure: float) -> bool:
        """Enters a figure as its trial would. Returns whether the pruner stops this trial."""
        if training not in self._trials:
            self._trials[training] = self._study.ask()
        trial = self._trials[training]
        # Optuna takes NaN for the worst figure.
        trial.report(figure if math.isfinite(figure) else math.nan, epoch)
        return trial.should_prune()


if __name__ == "__main__":
    run_job(search)
