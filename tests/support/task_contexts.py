"""Airflow's context of a task, for tests that execute an operator without Airflow."""

from __future__ import annotations

import datetime as dt
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
    pushed = dict[str, Any]()
    values = {
        "id": "1",
        "task_id": "",
        "try_number": 1,
        "max_tries": 2,
        "pushed": pushed,
        "xcom_push": pushed.__setitem__,
        "xcom_pull": lambda task_ids: manifests.get(task_ids),
    }
    started = dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)
    run = {"conf": conf or {}, "clear_number": 0, "start_date": started, "run_type": "manual"}
    return {
        "ti": SimpleNamespace(**(values | task)),
        "dag_run": SimpleNamespace(**run),
        "run_id": run_id,
        "task_state_store": Store() if store is None else store,
    }
