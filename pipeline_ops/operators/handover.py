"""The handover between the tasks of a run: the manifests of their artifacts, by XCom.

Every user who may edit task instances can edit an XCom. Therefore its value counts only if the
store's own record of that task and run has the same value. A record names an artifact of the
pipeline, below the root in the author's config. An XCom alone never causes a file to be opened or
fetched.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline_ops.errors import DataError
from pipeline_ops.jobs.task_record import find_recorded_manifest
from pipeline_ops.operators.task_run import TaskRun
from pipeline_ops.storage.snapshot import map_requests
from pipeline_ops.storage.store_path import StorePath

_MAX_SHOWN_CHARS = 200


def pull_manifests(run: TaskRun, tasks: Iterable[str]) -> dict[str, str]:
    """Pulls the manifests that some tasks of a run have left, by task.

    Each task makes the artifact of its own name.

    Raises:
      DataError: a task has left no manifest, for example because a person has marked it a success,
        or its XCom differs from its record.
    """
    tasks = list(tasks)
    recorded = map_requests(
        lambda task: find_recorded_manifest(run.layout, run.run_id, task, task), tasks
    )
    return {task: _check(run, task, found) for task, found in zip(tasks, recorded, strict=True)}


def _check(run: TaskRun, task: str, recorded: StorePath | None) -> str:
    """Returns the recorded manifest of a task, if its XCom has the same value."""
    pulled = run.context["ti"].xcom_pull(task_ids=task)
    if not pulled or recorded is None:
        raise DataError(
            f"{task} has left no manifest, so it was marked a success before it had ended. "
            f"Clear {task} to run it again."
        )
    if pulled != str(recorded):
        raise DataError(
            f"the XCom of {task} is {str(pulled)[:_MAX_SHOWN_CHARS]!r}, "
            f"but the task has left {recorded}, so the XCom was edited. "
            f"Clear {task} to run it again."
        )
    return str(recorded)
