"""The DAG `trainyard_gc`: runs `trainyard gc` once a day for each pipeline with `storage.keep`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.task_run import make_airflow_error

if TYPE_CHECKING:
    from airflow.sdk import Context

DAG_ID = "trainyard_gc"
_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_SCHEDULE = "17 3 * * *"


def make_gc_dag(configs: Sequence[PipelineConfig], dag_id: str = DAG_ID) -> DAG:
    """Makes the DAG, for at least one pipeline."""
    with DAG(
        dag_id,
        auto_register=False,
        description="Removes runs and artifacts that nothing needs, as storage.keep asks.",
        schedule=_SCHEDULE,
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        max_active_tasks=1,
        tags=["trainyard"],
        doc_md=__doc__,
    ) as dag:
        for config in configs:
            CollectOperator(task_id=config.pipeline, config_file=str(config.file), retries=2)
    return dag


class CollectOperator(BaseOperator):
    """Removes what one pipeline does not need. Pushes the number of removed bytes."""

    ui_color = "#7a6a4f"
    ui_fgcolor = "#ffffff"

    def __init__(self, *, config_file: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.config_file = config_file

    def execute(self, context: Context) -> int:
        # Imported here, so that the DAG file is parsed quickly.
        from pipeline_ops.retention.collector import Options, collect

        try:
            report = collect(load_config(Path(self.config_file)), Options())
        except TrainyardError as error:
            raise make_airflow_error(error.exit_code, str(error)) from None
        for problem in report.problems:
            self.log.warning("No artifact is removed, because %s", problem)
        for problem in report.others:
            self.log.warning("A problem of others: %s", problem)
        for path in report.foreign:
            self.log.info("Not ours, stays: %s", path)
        for verb, totals in (("too young, or in use", report.waiting), ("removed", report.removed)):
            for kind, total in totals.items():
                self.log.info(
                    "%s: %s: %d files, %d bytes", verb, kind, total.num_files, total.num_bytes
                )
        return sum(total.num_bytes for total in report.removed.values())
