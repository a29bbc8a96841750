"""Airflow's context of a task, for tests that execute an operator without Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


class Store(dict):
    """Airflow's task state store, as a task sees it: it outlives a try."""

    set = dict.__setitem__


def make_context(
    manifests: Mapping[str, Any],
    run_id: str = "manual__1",
    conf: Mapping[str, Any] | None = None,
    store: Store | None = None,
    **task: Any,
) -> dict[str, Any]:
    """Makes the context of a task.

    Args:
      manifests: the XComs of the earlier tasks, by task.
      task: attributes of the task instance.
    """
    task = {"id": "1", "max_tries": 2} | task
    return {
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: manifests.get(task_ids), **task),
        "dag_run": SimpleNamespace(conf=conf or {}, clear_number=0),
        "run_id": run_id,
        "task_state_store": Store() if store is None else store,
    }
