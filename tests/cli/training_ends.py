"""The table of `test_durable.py`: states of a training, and the actions that end it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli.digits_airflow import Airflow, Run

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.storage.store_path import StorePath

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


def table(*rows: tuple, fast: tuple = ()) -> Callable:
    """Parametrizes a test by rows and executors.

    Args:
      rows: the values of `when` and `way`.
      fast: rows that belong to `make test` with Celery.
    """
    executors = pytest.mark.parametrize(
        "airflow",
        [
            pytest.param("local", marks=pytest.mark.faults),
            "celery",
        ],
        indirect=True,
        scope="module",
    )
    if not rows:
        return lambda test: executors(pytest.mark.faults(test))
    cells = [
        pytest.param(
            *row,
            marks=() if row in fast else pytest.mark.faults,
            id="-".join(row).replace(" ", "_"),
        )
        for row in rows
    ]
    return lambda test: executors(
        pytest.mark.parametrize(["when", "way"][: len(rows[0])], cells)(test)
    )


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
