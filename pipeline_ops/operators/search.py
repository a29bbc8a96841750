"""The tasks of a search: the list of trials, one mapped task for each, and the choice of the best.

    preprocess, search >> trial [n of them] >> train >> evaluate >> export

The last of them is called `train`. It leaves the manifest of the chosen training, so the later
tasks are not aware of a search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowFailException

from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.jobs.task_record import TaskRecord, find_recorded_manifest, read_record
from pipeline_ops.operators.chain import TrainOperator
from pipeline_ops.operators.task_run import TaskRun
from pipeline_ops.planning.trials import (
    SearchResult,
    Trial,
    TrialResult,
    build_trial_config,
    check_trials,
    choose_best_trial,
    get_monitor,
    plan_trials,
    read_trial_result,
)
from pipeline_ops.storage.atomic import format_json

if TYPE_CHECKING:
    from airflow.sdk import Context


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
    """Runs one trial: a training like any other.

    Args:
      trial: a Trial, as JSON.
    """

    ui_color = "#7a4fa3"

    def __init__(self, *, trial: dict[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.trial = trial

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
        run = super()._load_run(context)
        number = self.trial.get("number") if isinstance(self.trial, Mapping) else None
        if getattr(context["ti"], "map_index", number) != number:
            raise AirflowFailException(
                f"the XCom of search gives this task the trial {number!r}, "
                "which belongs to another task. Clear the task search to plan the trials again."
            )
        trial = next((trial for trial in plan_trials(run.config) if trial.number == number), None)
        if trial is None:
            raise AirflowFailException(
                f"the search of {self.config_file} has no trial {number!r}. "
                "Clear the task search to plan the trials again."
            )
        try:
            return dataclasses.replace(run, config=build_trial_config(run.config, trial))
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None


class ChooseOperator(BaseOperator):
    """Takes the best trial. A failed trial does not fail the search, unless all have failed.

    It runs whatever the outcome of the trials, so it has to check if there was any data to train
    on.
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
        found = choose_best_trial(results, monitor)
        if found is None:
            message = "all trials have failed:\n" + "\n".join(
                f"{result.trial.name} ({result.trial}): {result.message}" for result in results
            )
            run.write_record(
                "train", TaskRecord(state="failed", message=message, exit_code=ExitCode.CONFIG)
            )
            raise AirflowFailException(message)
        for line in found.format_table():
            self.log.info(line)
        return _record_winner(run, found)


def _record_winner(run: TaskRun, found: SearchResult) -> str | None:
    winner = found.winner
    reason = (
        f"{winner.trial.name} of {len(found.results)} has the best {found.monitor}, "
        f"{winner.figure:.4f}: {winner.trial}"
    )
    run.layout.search_result(run.run_id).write(format_json(found.model_dump(mode="json")))
    run.write_record("train", TaskRecord(state="success", reason=reason, manifest=winner.manifest))
    return winner.manifest


def _collect_result(run: TaskRun, trial: Trial, monitor: str) -> TrialResult:
    layout, run_id = run.layout, run.run_id
    try:
        manifest = find_recorded_manifest(layout, run_id, trial.name, "train")
        record = read_record(layout.task_record(run_id, trial.name))
    except DataError as error:
        return TrialResult(trial=trial, message=str(error))
    if manifest is None:
        return TrialResult(
            trial=trial,
            message=record.message if record else "ended by Airflow, or by a user in its UI",
        )
    return read_trial_result(trial, manifest, monitor)
