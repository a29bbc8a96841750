"""The run of a pipeline as one of its tasks sees it: its config and its folders in the store."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pipeline_ops.airflow_connections import use_airflow_connections
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.run_conf import apply_conf, load_author_config
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.jobs.task_record import TaskRecord, write_record
from pipeline_ops.storage.store import read_usage

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import DagRunProtocol

use_airflow_connections()


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """One run of a pipeline.

    Attributes:
      config: the config of this run.
      context: Airflow's context of the task.
    """

    config: PipelineConfig
    context: Context

    @classmethod
    def load(cls, config_file: str, context: Context) -> TaskRun:
        """Loads the run's config.

        A conf that the pipeline forbids fails the task for good. A YAML that cannot be used is
        retried, because it may be mended, as the tasks of its broken DAG are.
        """
        run = context["dag_run"]
        try:
            author = load_author_config(config_file, context["run_id"])
        except ConfigError as error:
            raise AirflowException(str(error)) from None
        try:
            config = apply_conf(author, run.conf, _read_data_interval(run))
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        return cls(config, context)

    @property
    def run_id(self) -> str:
        return self.context["run_id"]

    @property
    def layout(self) -> Layout:
        return Layout(self.config.root, self.config.pipeline)

    def write_record(self, task: str, record: TaskRecord) -> None:
        """Writes the record of a task, with the requests of this process and of its job."""
        counted = record.model_copy(update={"store": record.store + read_usage()})
        write_record(self.layout.task_record(self.run_id, task), counted)


def make_airflow_error(exit_code: ExitCode, message: str) -> AirflowException:
    """Makes the error that Airflow answers with a retry, or with a failure for good."""
    return (AirflowException if exit_code.is_retried else AirflowFailException)(message)


def _read_data_interval(run: DagRunProtocol) -> tuple[dt.datetime, dt.datetime] | None:
    """Reads the data interval of a run. A run by hand may have none."""
    start, end = getattr(run, "data_interval_start", None), getattr(run, "data_interval_end", None)
    return None if start is None or end is None else (start, end)
