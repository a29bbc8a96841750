"""What a run leaves at its end: its summary in the store, and its sentence for Airflow's note."""

from __future__ import annotations

import dataclasses
import logging

from pipeline_ops.contract.outcome import OUTCOME_KEY, read_facts
from pipeline_ops.contract.run_summary import summarize, write_summary
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.task_run import TaskRun

_log = logging.getLogger(__name__)


def record_outcome(run: TaskRun, failed: str = "") -> None:
    """Called by the task that ends its run, after its record. `failed` is the task if it failed.

    Without a summary, readers read the records. So a store that does not answer fails nothing.
    """
    dag_run = run.context["dag_run"]
    try:
        facts = read_facts(run.layout, run.run_id)
        summary = summarize(
            dataclasses.replace(facts, failed=failed),
            run.run_id,
            started=dag_run.start_date.timestamp() if dag_run.start_date else None,
            triggered_by=getattr(dag_run, "triggering_user_name", None) or str(dag_run.run_type),
            values=dag_run.conf or {},
        )
        write_summary(run.layout, summary)
    except TrainyardError as error:
        _log.warning("This run has no summary, and pages read its records: %s", error)
        return
    _log.info("%s", summary.outcome.sentence)
    run.context["ti"].xcom_push(OUTCOME_KEY, summary.outcome.sentence)
