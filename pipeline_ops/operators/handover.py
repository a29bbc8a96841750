"""The handover between the tasks of a run: the manifests of their artifacts, by XCom.

Every user who may edit task instances can edit an XCom. Therefore its value counts only if the
store's own record of that task and run has the same value. A record names an artifact of the
pipeline, below the root in the author's config. An XCom alone never causes a file to be opened or
fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import DataError
from pipeline_ops.jobs.task_record import recorded_manifest

_SHOWN = 200


def manifests_of(
    config: PipelineConfig, context: Mapping[str, Any], tasks: Iterable[str]
) -> dict[str, str]:
    """The manifests that some tasks of this run have left, by task.

    Each task makes the artifact of its own name.

    Raises:
      DataError: a task has left no manifest, for example because a person has marked it a success,
        or its XCom differs from its record.
    """
    layout, run_id = Layout(config.root, config.pipeline), context["run_id"]
    return {
        task: _manifest_of(layout, run_id, task, context["ti"].xcom_pull(task_ids=task))
        for task in tasks
    }


def _manifest_of(layout: Layout, run_id: str, task: str, handed: Any) -> str:
    recorded = recorded_manifest(layout, run_id, task, task)
    if not handed or recorded is None:
        raise DataError(
            f"{task} has left no manifest, so it was marked a success before it had ended; "
            "clear it, and it runs again"
        )
    if handed != recorded:
        raise DataError(
            f"the XCom of {task} is {str(handed)[:_SHOWN]!r}, but the task has left {recorded}: "
            f"the XCom was edited; clear {task}, and it runs again"
        )
    return recorded
