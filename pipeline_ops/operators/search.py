"""The tasks of a search: the list of trials, one mapped task for each, and the choice of the best.

    preprocess, search >> trial [n of them] >> train >> evaluate >> export

The last of them is called `train`. It leaves the manifest of the chosen training, so the later
tasks know nothing of a search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowFailException

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_config import run_config
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.jobs.task_record import TaskRecord, read_record, recorded_manifest, write_record
from pipeline_ops.operators.chain import TrainOperator
from pipeline_ops.planning.trials import (
    Result,
    SearchResult,
    Trial,
    check_trials,
    choose,
    monitor_of,
    plan_trials,
    result_of,
    trial_config,
)
from pipeline_ops.storage.atomic import write_json


class SearchOperator(BaseOperator):
    """Lists the trials of the run and checks each of them."""

    ui_color = "#5a5a8f"
    ui_fgcolor = "#ffffff"

    def __init__(self, *, config_file: str, task_id: str = "search", **kwargs: Any):
        super().__init__(task_id=task_id, **kwargs)
        self.config_file = config_file

    def execute(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            config = run_config(self.config_file, context["dag_run"].conf, context["run_id"])
            trials = plan_trials(config)
            check_trials(config, trials)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        for trial in trials:
            self.log.info("%s: %s", trial.name, trial)
        record = TaskRecord(
            state="success", reason=f"{len(trials)} trials ({config.search.method})"
        )
        write_record(
            Layout(config.root, config.pipeline).task_record(context["run_id"], self.task_id),
            record,
        )
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

    def _config(self, context: Mapping[str, Any]) -> PipelineConfig:
        """The config of this trial.

        Only the trial's number comes from the task before. The rest is planned again, because any
        user who may edit an XCom may have written it.
        """
        config = super()._config(context)
        number = self.trial.get("number") if isinstance(self.trial, Mapping) else None
        if getattr(context["ti"], "map_index", number) != number:
            raise AirflowFailException(
                f"the XCom of search gives this task the trial {number!r}, "
                "which is another task's; clear the task search"
            )
        trial = next((trial for trial in plan_trials(config) if trial.number == number), None)
        if trial is None:
            raise AirflowFailException(
                f"the search of {self.config_file} has no trial {number!r}; clear the task search"
            )
        try:
            return trial_config(config, trial)
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

    def execute(self, context: Mapping[str, Any]) -> str:
        try:
            config = run_config(self.config_file, context["dag_run"].conf, context["run_id"])
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        layout, run_id = Layout(config.root, config.pipeline), context["run_id"]
        if not context["ti"].xcom_pull(task_ids="search") or not context["ti"].xcom_pull(
            task_ids="preprocess"
        ):
            raise AirflowFailException(
                "there is no trial: a task before this one has failed, and its log says why"
            )
        trials, monitor = plan_trials(config), monitor_of(config)
        results = [_result(layout, run_id, trial, monitor) for trial in trials]
        found = choose(results, monitor)
        if found is None:
            message = "all trials have failed:\n" + "\n".join(
                f"{result.trial.name} ({result.trial}): {result.message}" for result in results
            )
            write_record(
                layout.task_record(run_id, "train"),
                TaskRecord(state="failed", message=message, exit_code=ExitCode.CONFIG),
            )
            raise AirflowFailException(message)
        return self._go_on(layout, run_id, found)

    def _go_on(self, layout: Layout, run_id: str, found: SearchResult) -> str:
        for line in found.table():
            self.log.info(line)
        winner = found.winner
        reason = (
            f"{winner.trial.name} of {len(found.results)} has the best {found.monitor}, "
            f"{winner.figure:.4f}: {winner.trial}"
        )
        write_json(layout.search_result(run_id), found.model_dump(mode="json"))
        write_record(
            layout.task_record(run_id, "train"),
            TaskRecord(state="success", reason=reason, manifest=winner.manifest),
        )
        return winner.manifest


def _result(layout: Layout, run_id: str, trial: Trial, monitor: str) -> Result:
    try:
        manifest = recorded_manifest(layout, run_id, trial.name, "train")
        record = read_record(layout.task_record(run_id, trial.name), layout.root)
    except DataError as error:
        return Result(trial=trial, message=str(error))
    if manifest is None:
        return Result(
            trial=trial,
            message=record.message if record else "ended by Airflow, or by a person in its UI",
        )
    return result_of(trial, manifest, monitor)
