"""States of a training in an Airflow, the actions that end it, and tables of both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli.digits_airflow import Airflow, Run

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.storage.store_path import StorePath

ENDED_SECONDS = 60.0
"""The end takes 1 to 4 seconds on an idle machine. A job that is not ended trains for an hour."""

PEOPLE = {
    "task failed": ("PATCH", "{run}/taskInstances/train", {"new_state": "failed"}),
    "task success": ("PATCH", "{run}/taskInstances/train", {"new_state": "success"}),
    "run failed": ("PATCH", "{run}", {"state": "failed"}),
    "clear": (
        "POST",
        "clearTaskInstances",
        {"dry_run": False, "task_ids": ["train"], "only_failed": False, "reset_dag_runs": True},
    ),
    "run clear": ("POST", "{run}/clear", {"dry_run": False, "only_failed": False}),
}
"""The actions of a person in the UI or by REST, as calls of Airflow's API."""


EXECUTORS = ("local", "celery")


def table(*rows: tuple) -> Callable:
    """Parametrizes a test by rows and executors.

    Args:
      rows: the values of `when`, `way` and `dead`. Each row runs with one executor, so that each
        value runs with both. A test without rows runs with both executors.
    """
    names = ["airflow", "when", "way", "dead"][: 1 + len(rows[0])] if rows else ["airflow"]
    cells = [(executor,) for executor in EXECUTORS]
    if rows:
        columns = [list(dict.fromkeys(column)) for column in zip(*rows, strict=True)]
        cells = [
            (EXECUTORS[sum(map(list.index, columns, row)) % len(EXECUTORS)], *row) for row in rows
        ]
    ids = ["-".join(cell).replace(" ", "_") for cell in cells]
    return pytest.mark.parametrize(names, cells, ids=ids, indirect=["airflow"], scope="module")


def bring_to(run: Run, when: str) -> Attempt[StorePath]:
    """Waits until the task of a run is in that state. Returns its attempt."""
    if when == "running":
        attempt = run.wait_for_job()
        assert run.task()["state"] == "running", "the action must come before the task defers"
        return attempt
    run.wait_for("deferred")
    return run.wait_for_steps()


def act(airflow: Airflow, run: Run, way: str) -> None:
    method, path, body = PEOPLE[way]
    body = body | ({"dag_run_id": run.run_id} if way == "clear" else {})
    answer = airflow.call(method, path.format(run=run.path), body)
    assert answer.is_success, answer.text
