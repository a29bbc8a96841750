"""The trials of a search as Optuna sees them: its samplers, its ASHA pruner, and its journal.

The samplers draw all trials of a search in advance, in memory. Only a search with a pruner has a
journal in the store, from which its trials on all hosts learn each other's figures. Optuna is slow
to import, so importers of this module import it where they need it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages.journal import BaseJournalBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState

from pipeline_ops.config.search import Search
from pipeline_ops.contract.layout import lock_file, work_folder
from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.contract.request import PlannedTrial
from pipeline_ops.errors import DataError, Pruned
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import hold_lease

REDUCTION_FACTOR = 4
"""One in this many trials goes on, to be compared again after this many times the epochs."""
_STUDY, _SEED = "search", 1
_CREATE_SECONDS = 120.0
_ENTRY_ERRORS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RecursionError,
)
"""What Optuna raises, now or later, for an entry of a journal that it has not written."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


def draw_parameters(search: Search) -> list[dict[str, Any]]:
    """Draws the parameters of all trials. A longer random search begins with the same ones."""
    distributions = _make_distributions(search)
    sampler: optuna.samplers.BaseSampler
    if search.method == "grid":
        choices = {
            key: distribution.choices
            for key, distribution in distributions.items()
            if isinstance(distribution, CategoricalDistribution)
        }
        sampler = optuna.samplers.GridSampler(choices, _SEED)
        count = math.prod(map(len, choices.values()))
    else:
        sampler, count = optuna.samplers.RandomSampler(_SEED), search.trials or 0
    study = optuna.create_study(sampler=sampler)
    drawn = (study.ask(distributions).params for _ in range(count))
    return [
        {
            key: json.loads(value) if isinstance(search.parameters[key], list) else value
            for key, value in parameters.items()
        }
        for parameters in drawn
    ]


def create_study(
    planned: PlannedTrial, search: Search, parameters: Sequence[Mapping[str, Any]]
) -> None:
    """Enters all trials of a search into the journal, in order, unless they are there."""
    artifact = open_path(planned.study)
    with _open_storage(planned) as storage:
        if len(_read_trials(storage, planned)) >= len(parameters):
            return
    lease = hold_lease(lock_file(artifact), "the journal of a search", _CREATE_SECONDS)
    with lease, _open_storage(planned) as storage:
        if not storage.get_all_studies():
            is_lower = planned.better == "min"
            direction = StudyDirection.MINIMIZE if is_lower else StudyDirection.MAXIMIZE
            optuna.create_study(storage=storage, study_name=_STUDY, direction=direction)
        study, distributions = _load_study(storage, planned), _make_distributions(search)
        for values in parameters[len(study.trials) :]:
            trial = optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params={
                    key: _to_choice(value) if isinstance(search.parameters[key], list) else value
                    for key, value in values.items()
                },
                distributions=distributions,
            )
            study.add_trial(trial)


def find_pruned(planned: PlannedTrial) -> dict[int, str]:
    """Returns where the trials of a search were pruned, by number. Empty without a journal."""
    with _open_storage(planned) as storage:
        return {
            trial.number: f"pruned after epoch {trial.last_step}: "
            f"{planned.monitor} {trial.intermediate_values[trial.last_step]:.4f}"
            for trial in _read_trials(storage, planned)
            if trial.state is TrialState.PRUNED and trial.last_step is not None
        }


def check_pruned(planned: PlannedTrial) -> None:
    """Raises Pruned if the trial was stopped before."""
    if reason := find_pruned(planned).get(planned.number):
        raise Pruned(reason)


def tell_finished(planned: PlannedTrial, figures: Sequence[float], final: float) -> None:
    """Enters a trial whose training was finished, by this run or by an earlier one.

    `figures` are the monitored figure after each epoch, and `final` is that of the trial.
    """
    with _open_storage(planned) as storage:
        study, trial = _open_trial(storage, planned)
        if study.trials[planned.number].state.is_finished():
            return
        known = study.trials[planned.number].intermediate_values
        for epoch, figure in enumerate(figures, 1):
            if epoch not in known:
                trial.report(_replace_non_finite(figure), epoch)
                trial.should_prune()  # enters the figure that later trials are compared with
        state = TrialState.COMPLETE if math.isfinite(final) else TrialState.FAIL
        study.tell(planned.number, final if math.isfinite(final) else None, state)


def _replace_non_finite(figure: float) -> float:
    """Returns the figure, and NaN for one that is not finite, which Optuna takes for the worst."""
    return figure if math.isfinite(figure) else math.nan


class TrialReport:
    """Receives the chief's progress and enters the figure of each epoch into the journal.

    A thread of its own talks to the store, so an outage does not keep the supervisor from its
    workers. A decision of the pruner reaches the gang with the next progress, unless the training
    ends first. ASHA notes that a trial has reached a rung before it decides: if the process is
    killed in between, the trial trains to the next rung. `forward` receives the progress, too.
    """

    def __init__(
        self, planned: PlannedTrial, last_epoch: int, forward: Callable[[ProgressEvent], None]
    ):
        self._planned, self._last_epoch, self._forward = planned, last_epoch, forward
        self._journal = _find_journal(planned)
        with self._journal.naming_invalid_entries():
            storage = optuna.storages.JournalStorage(self._journal)
            self._study, self._trial = _open_trial(storage, planned)
        self._thread = ThreadPoolExecutor(1)
        self._reports = deque[Future[None]]()
        check_pruned(planned)

    def __call__(self, event: ProgressEvent) -> None:
        """Raises Pruned if the trial is to stop."""
        self._forward(event)
        figure = event.metrics.get(self._planned.monitor)
        if event.epoch is not None and figure is not None:
            self._reports.append(self._thread.submit(self._report, event.epoch, figure))
        while self._reports and self._reports[0].done():
            self._reports.popleft().result()

    def _report(self, epoch: int, figure: float) -> None:
        number = self._planned.number
        with self._journal.naming_invalid_entries():
            found = self._study.trials[number]
            # Another run may have finished it, and a restarted gang repeats an epoch.
            if found.state.is_finished() or epoch in found.intermediate_values:
                return
            self._trial.report(_replace_non_finite(figure), epoch)
            if epoch < self._last_epoch and self._trial.should_prune():
                self._study.tell(number, state=TrialState.PRUNED)
                check_pruned(self._planned)


class StoreJournal(BaseJournalBackend):
    """A journal of Optuna in the store: a folder of numbered files with one entry each.

    Each file is created once, so of two writers at the same moment one takes the next number.
    """

    def __init__(self, folder: StorePath):
        self._folder, self._next = folder, 0
        self._newest = folder

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yields the entries without a gap. A listing may show a file and not the one before."""
        names = {entry.name for entry in self._folder.list_folder()}
        numbers = itertools.takewhile(
            lambda number: _name_entry(number) in names, itertools.count(log_number_from)
        )
        files = [self._folder / _name_entry(number) for number in numbers]
        self._next = log_number_from + len(files)
        for file, content in zip(files, map_requests(lambda file: file.read(), files), strict=True):
            self._newest = file
            yield parse_json_as(dict[str, Any], content, file)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        for log in logs:
            is_written = False
            while not is_written:
                with contextlib.suppress(FileExistsError):  # another process was faster
                    (self._folder / _name_entry(self._next)).create(json.dumps(log).encode())
                    is_written = True
                self._next += 1

    @contextlib.contextmanager
    def naming_invalid_entries(self) -> Iterator[None]:
        """Turns errors of Optuna, which believes every entry, into a DataError.

        It names the last file that was read, which is the invalid one or comes after it.
        """
        try:
            yield
        except _ENTRY_ERRORS as error:
            raise DataError(
                f"{self._newest}: this entry, or one before it, is not a valid entry of a journal "
                f"of Optuna: {error!r}. Remove {self._folder}, and the search starts a new one"
            ) from None


def _open_trial(
    storage: optuna.storages.JournalStorage, planned: PlannedTrial
) -> tuple[optuna.Study, optuna.Trial]:
    study = _load_study(storage, planned)
    return study, optuna.Trial(study, planned.number)


def _find_journal(planned: PlannedTrial) -> StoreJournal:
    return StoreJournal(work_folder(open_path(planned.study)))


@contextlib.contextmanager
def _open_storage(planned: PlannedTrial) -> Iterator[optuna.storages.JournalStorage]:
    """Opens the journal. The block raises DataError if an entry is invalid."""
    journal = _find_journal(planned)
    with journal.naming_invalid_entries():
        yield optuna.storages.JournalStorage(journal)


def _load_study(storage: optuna.storages.JournalStorage, planned: PlannedTrial) -> optuna.Study:
    """Loads the study. It must be the only one there ever was, so that ids are numbers."""
    if [study._study_id for study in storage.get_all_studies()] != [0]:
        raise ValueError("the journal is not of one study alone")
    return optuna.load_study(
        study_name=_STUDY,
        storage=storage,
        sampler=optuna.samplers.RandomSampler(),
        pruner=optuna.pruners.SuccessiveHalvingPruner(planned.min_epochs, REDUCTION_FACTOR),
    )


def _read_trials(
    storage: optuna.storages.JournalStorage, planned: PlannedTrial
) -> list[optuna.trial.FrozenTrial]:
    return _load_study(storage, planned).trials if storage.get_all_studies() else []


def _make_distributions(search: Search) -> dict[str, BaseDistribution]:
    made: dict[str, BaseDistribution] = {}
    for key, values in search.parameters.items():
        if isinstance(values, list):
            made[key] = CategoricalDistribution(list(dict.fromkeys(map(_to_choice, values))))
        elif values.is_integer:
            made[key] = IntDistribution(int(values.low), int(values.high), values.scale == "log")
        else:
            made[key] = FloatDistribution(values.low, values.high, values.scale == "log")
    return made


def _to_choice(value: Any) -> str:
    """Optuna knows no lists and mappings among the values, so all values of a list are JSON."""
    return json.dumps(value, default=str)


def _name_entry(number: int) -> str:
    return f"{number:08d}.json"
