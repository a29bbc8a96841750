"""What a run leaves at its end: its summary in the store, and its sentence for Airflow's note."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping
from typing import Any

from pipeline_ops.contract.outcome import OUTCOME_KEY, read_facts
from pipeline_ops.contract.run_summary import summarize, write_summary
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.task_run import TaskRun

_MAX_VALUES, _MAX_CHARS = 50, 200
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
            values=_shorten(dag_run.conf or {}),
        )
        write_summary(run.layout, summary)
    except TrainyardError as error:
        _log.warning("This run has no summary, and pages read its records: %s", error)
        return
    _log.info("%s", summary.outcome.sentence)
    run.context["ti"].xcom_push(OUTCOME_KEY, summary.outcome.sentence)


def _shorten(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a table can show of a run's conf, which may be large and of any kind."""
    values = {}
    for key, value in itertools.islice(conf.items(), _MAX_VALUES):
        is_short = value is None or isinstance(value, bool | int | float)
        values[str(key)[:_MAX_CHARS]] = value if is_short else str(value)[:_MAX_CHARS]
    return values
