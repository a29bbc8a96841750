"""The tasks of a search: the list of trials, one mapped task for each, and the choice of the best.

    preprocess, search >> trial [n of them] >> train >> evaluate >> export

The task `train` leaves the manifest of the best trial, so the later tasks know nothing of a search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowFailException

from pipeline_ops.contract.layout import format_trial_name
from pipeline_ops.contract.pruning import check_pruned, record_finished
from pipeline_ops.contract.results import Trial
from pipeline_ops.contract.task_record import TaskRecord, find_recorded_manifest, read_record
from pipeline_ops.errors import DataError, ExitCode, TrainyardError
from pipeline_ops.orchestration.run_end import record_outcome
from pipeline_ops.orchestration.task_run import TaskRun, make_airflow_error
from pipeline_ops.orchestration.tasks import JobOperator, TrainOperator
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.planning.trials import (
    TrialResult,
    build_trial_config,
    check_trials,
    choose_best_trial,
    get_monitor,
    plan_pruning,
    read_history,
    read_trial_result,
    read_trials,
)
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pipeline_ops.places.place import Place


class SearchOperator(JobOperator):
    """Draws the trials of the run, and checks each of them before the first one trains."""

    job = "search"
    ui_color = "#5a5a8f"

    def make_output(self, run: TaskRun, manifest: StorePath) -> list[dict[str, Any]]:
        """Returns the trials as JSON, each of which becomes a mapped task."""
        with self._fail_on_error(run):
            trials = read_trials(run.config, manifest)
            check_trials(run.config, trials)
        for trial in trials:
            self.log.info("%s: %s", trial.name, trial)
        return [trial.model_dump(mode="json") for trial in trials]


class TrialOperator(TrainOperator):
    """Runs one trial: a training like any other, except that a pruner may stop it early.

    Airflow shows a pruned trial as skipped.

    Args:
      trial: a Trial, as JSON. Only its number counts, because any user who may edit an XCom may
        have written it. The parameters are those of the artifact of `search`.
    """

    def __init__(self, *, trial: dict[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.trial = trial
        number = trial.get("number") if isinstance(trial, Mapping) else None
        self._number = number if isinstance(number, int) else -1
        self.record_name = format_trial_name(self._number)

    @property
    def trial_text(self) -> str:
        """The text that Airflow's UI shows instead of a number."""
        trial = Trial.model_validate(self.trial)
        return f"{trial.name}: {trial}"

    def on_failure(self, run: TaskRun, exit_code: ExitCode) -> None:
        """A trial that fails does not end its run."""

    def _load_run(self, context: Context) -> TaskRun:
        """Loads the run with the config of this trial."""
        run = super()._load_run(context)
        if getattr(context["ti"], "map_index", self._number) != self._number:
            raise AirflowFailException(
                f"the XCom of search gives this task the trial {self._number}, which belongs to "
                "another task. Clear the task search to draw the trials again."
            )
        try:
            trials = {trial.number: trial for trial in _read_trials(run)}
            if (trial := trials.get(self._number)) is None:
                raise DataError(
                    f"the search of {self.config_file} has no trial {self._number}. Clear the task "
                    "search to draw the trials again."
                )
            config = build_trial_config(run.config, trial)
        except TrainyardError as error:
            raise make_airflow_error(error.exit_code, str(error)) from None
        return dataclasses.replace(run, config=config, searched=run.config)

    def _plan_job(self, run: TaskRun, place: Place) -> JobPlan:
        """Plans the training as one of its study, which knows cached trainings from here.

        Raises Pruned if an earlier try, or the same trial of an unchanged run, was stopped.
        """
        plan = super()._plan_job(run, place)
        planned = plan_pruning(run.searched or run.config, plan.request.fingerprint)
        if planned is None:
            return plan
        if plan.is_cached:
            record_finished(planned, read_history(plan.manifest, planned.monitor))
            return plan
        check_pruned(planned)
        request = plan.request.model_copy(update={"trial": planned})
        return dataclasses.replace(plan, request=request)


def _read_trials(run: TaskRun) -> list[Trial]:
    """Reads the trials that the task `search` of the run has drawn, whatever its XCom says.

    Raises DataError if there are none, or they are not of the config's search.
    """
    manifest = find_recorded_manifest(run.layout, run.run_id, "search", "search")
    if manifest is None:
        raise DataError(
            "search has left no trials, so it was marked a success before it had ended. "
            "Clear search to run it again."
        )
    return read_trials(run.config, manifest)


class ChooseOperator(BaseOperator):
    """Takes the best trial. Failed and pruned ones do not fail the search if one was finished.

    It runs whatever the outcome of the trials, so it checks that there was data to train on.
    """

    ui_color = "#7a4fa3"
    ui_fgcolor = "#ffffff"

    def __init__(self, *, config_file: str, task_id: str = "train", **kwargs: Any):
        super().__init__(task_id=task_id, trigger_rule=TriggerRule.ALL_DONE, **kwargs)
        self.config_file = config_file

    def execute(self, context: Context) -> str | None:
        run = TaskRun.load(self.config_file, context)
        if not all(context["ti"].xcom_pull(task_ids=task) for task in ("search", "preprocess")):
            raise AirflowFailException(
                "there is no trial, because search or preprocess has failed. "
                "The log of that task has the reason."
            )
        try:
            trials = _read_trials(run)
        except TrainyardError as error:
            raise make_airflow_error(error.exit_code, str(error)) from None
        monitor = get_monitor(run.config)
        results = [_collect_result(run, trial, monitor) for trial in trials]
        found = choose_best_trial(results, monitor, run.config.train.find_mode(monitor))
        if found is None:
            message = "no trial was finished:\n" + "\n".join(
                f"{result.trial.name} ({result.trial}): {result.message}" for result in results
            )
            run.write_record(
                "train", TaskRecord(state="failed", message=message, exit_code=ExitCode.CONFIG)
            )
            record_outcome(run, failed="train")
            raise AirflowFailException(message)
        for line in found.format_table():
            self.log.info(line)
        winner = found.winner
        reason = (
            f"{winner.trial.name} of {len(results)} has the best {monitor}, "
            f"{winner.figure:.4f}: {winner.trial}"
        )
        run.layout.search_result(run.run_id).write(format_json(found.model_dump(mode="json")))
        record = TaskRecord(state="success", reason=reason, manifest=winner.manifest)
        run.write_record("train", record)
        return winner.manifest


def _collect_result(run: TaskRun, trial: Trial, monitor: str) -> TrialResult:
    try:
        manifest = find_recorded_manifest(run.layout, run.run_id, trial.name, "train")
        record = read_record(run.layout.task_record(run.run_id, trial.name))
    except DataError as error:
        return TrialResult(trial=trial, message=str(error))
    if manifest:
        return read_trial_result(trial, manifest, monitor)
    if record is None:
        return TrialResult(trial=trial, message="ended by Airflow, or by a user in its UI")
    return TrialResult(trial=trial, message=record.message, is_pruned=record.state == "pruned")
