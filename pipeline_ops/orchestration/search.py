"""The tasks of a search: the list of trials, one mapped task for each, and the choice of the best.

    preprocess, search >> trial [n of them] >> train >> evaluate >> export

The task `train` leaves the manifest of the best trial, so the later tasks know nothing of a search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.request import PlannedTrial, read_request
from pipeline_ops.contract.results import TrainingFigures
from pipeline_ops.contract.task_record import TaskRecord, find_recorded_manifest, read_record
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.task_run import TaskRun
from pipeline_ops.orchestration.tasks import TrainOperator
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.planning.trials import (
    Trial,
    TrialResult,
    build_trial_config,
    check_trials,
    choose_best_trial,
    get_monitor,
    plan_pruning,
    plan_trials,
    read_trial_result,
)
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.store_path import StorePath

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pipeline_ops.places.place import Place


class SearchOperator(BaseOperator):
    """Lists the trials of the run and checks each of them."""

    ui_color = "#5a5a8f"
    ui_fgcolor = "#ffffff"

    def __init__(self, *, config_file: str, task_id: str = "search", **kwargs: Any):
        super().__init__(task_id=task_id, **kwargs)
        self.config_file = config_file

    def execute(self, context: Context) -> list[dict[str, Any]]:
        run = TaskRun.load(self.config_file, context)
        search = run.config.search
        if search is None:
            raise AirflowFailException(
                f"{self.config_file} has no search any longer, so there are no trials. "
                "Trigger a new run."
            )
        try:
            trials = plan_trials(run.config)
            check_trials(run.config, trials)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        for trial in trials:
            self.log.info("%s: %s", trial.name, trial)
        reason = f"{len(trials)} trials ({search.method})"
        run.write_record(self.task_id, TaskRecord(state="success", reason=reason))
        return [trial.model_dump(mode="json") for trial in trials]


class TrialOperator(TrainOperator):
    """Runs one trial: a training like any other, except that a pruner may stop it early.

    Airflow shows a pruned trial as skipped.

    Args:
      trial: a Trial, as JSON.
    """

    ui_color = "#7a4fa3"

    def __init__(self, *, trial: dict[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.trial = trial
        self._planned: PlannedTrial | None = None

    @property
    def record_name(self) -> str:
        return self._trial.name

    @property
    def trial_text(self) -> str:
        """The text that Airflow's UI shows instead of a number."""
        return f"{self._trial.name}: {self._trial}"

    @property
    def _trial(self) -> Trial:
        return Trial.model_validate(self.trial)

    def _load_run(self, context: Context) -> TaskRun:
        """Loads the run with the config of this trial.

        Only the trial's number comes from the task before. The rest is planned again, because any
        user who may edit an XCom may have written it.
        """
        run, problem = super()._load_run(context), ""
        number = self.trial.get("number") if isinstance(self.trial, Mapping) else None
        trial = next((trial for trial in plan_trials(run.config) if trial.number == number), None)
        if getattr(context["ti"], "map_index", number) != number:
            problem = (
                f"the XCom of search gives this task the trial {number!r}, "
                "which belongs to another task"
            )
        elif trial is None:
            problem = f"the search of {self.config_file} has no trial {number!r}"
        if problem or trial is None:
            raise AirflowFailException(
                f"{problem}. Clear the task search to plan the trials again."
            )
        try:
            return dataclasses.replace(run, config=build_trial_config(run.config, trial))
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None

    def _plan_job(self, run: TaskRun, place: Place) -> JobPlan:
        """Plans the training, and enters all trials into the journal of the pruner.

        Raises Pruned if an earlier try, or the same trial of an unchanged run, was stopped.
        """
        plan, search = super()._plan_job(run, place), run.config.search
        if search is None or search.pruner == "none":
            return plan
        from pipeline_ops.job.study import check_pruned, create_study

        trials = plan_trials(run.config)
        first_run = dataclasses.replace(run, config=build_trial_config(run.config, trials[0]))
        first = super()._plan_job(first_run, place).request.fingerprint
        self._planned = plan_pruning(run.config, search, self._trial.number, first)
        create_study(self._planned, search, [trial.parameters for trial in trials])
        if plan.is_cached:
            return plan
        check_pruned(self._planned)
        request = plan.request.model_copy(update={"trial": self._planned})
        return dataclasses.replace(plan, request=request)

    def on_result(self, run: TaskRun, manifest: StorePath) -> None:
        """Enters the figures into the journal, which lacks them for a cached training."""
        planned = self._planned
        if planned is None and self._handle:  # the job of an earlier try, or a deferred one
            planned = read_request(self._handle.attempt.request).trial
        if planned:
            from pipeline_ops.job.study import tell_finished

            figures = TrainingFigures.model_validate(read_manifest(manifest).figures)
            history = [epoch.metrics[planned.monitor] for epoch in figures.history]
            tell_finished(planned, history, history[figures.best_epoch])

    def _fail(
        self, run: TaskRun, exit_code: ExitCode, message: str, handle: JobHandle | None = None
    ) -> NoReturn:
        if exit_code is not ExitCode.PRUNED:
            super()._fail(run, exit_code, message, handle)
        attempt = str(handle.attempt.folder) if handle else None
        record = TaskRecord(state="pruned", reason=message, exit_code=exit_code, attempt=attempt)
        run.write_record(self.record_name, record)
        raise AirflowSkipException(message)


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
        monitor = get_monitor(run.config)
        results = [_collect_result(run, trial, monitor) for trial in plan_trials(run.config)]
        found = choose_best_trial(results, monitor, run.config.train.find_mode(monitor))
        if found is None:
            message = "no trial was finished:\n" + "\n".join(
                f"{result.trial.name} ({result.trial}): {result.message}" for result in results
            )
            run.write_record(
                "train", TaskRecord(state="failed", message=message, exit_code=ExitCode.CONFIG)
            )
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
    is_pruned = record.state == "pruned"
    message = record.reason if is_pruned else record.message
    return TrialResult(trial=trial, message=message, is_pruned=is_pruned)
