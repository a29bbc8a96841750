"""Finds a pipeline and its runs in Airflow's database.

It returns where a pipeline keeps what, and the state of a run's tasks. Only this module queries the
database for the UI plugin. `ui/app.py` checks the user's permissions first, by Airflow's own rules.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.contract.layout import Layout
from pipeline_ops.errors import TrainyardError
from pipeline_ops.orchestration.airflow_connections import use_airflow_connections
from pipeline_ops.orchestration.airflow_models import (
    TAG,
    DagModel,
    DagRun,
    DagTag,
    SerializedDagModel,
    TaskInstance,
)

use_airflow_connections()

_MAX_PLANS, _MAX_VERSIONS = 1000, 100
ACTIVE = ("running", "deferred", "awaiting_input", "queued", "up_for_retry", "restarting")
"""The states of a task whose turn has come."""


class NotFound(TrainyardError):
    """A DAG or a run that does not exist here. The message is for the user who asked for it."""


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The parts of a version of a DAG that the pages need. `tasks` are in order."""

    ref: PipelineRef
    tasks: tuple[str, ...]

    def sort(self, tasks: Iterable[TaskState]) -> list[TaskState]:
        positions = {task_id: position for position, task_id in enumerate(self.tasks)}
        return sorted(
            tasks,
            key=lambda task: (positions.get(task.task_id, len(positions)), task.map_index),
        )


_plans: dict[str, _Plan | None] = {}


@dataclasses.dataclass(frozen=True)
class TaskState:
    """The state of one task of a run in Airflow.

    `map_index` distinguishes the tasks that were mapped from one task.
    """

    task_id: str
    map_index: int
    state: str
    tries: int
    started: dt.datetime | None
    ended: dt.datetime | None
    timeout: dt.datetime | None = None
    """Until when the task waits for its trigger, or for an answer."""

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE


@dataclasses.dataclass(frozen=True)
class PipelineRun:
    """One run of a pipeline. The tasks are in the order of the DAG."""

    ref: PipelineRef
    dag_id: str
    run_id: str
    state: str
    tasks: tuple[TaskState, ...]
    started: dt.datetime | None = None

    @property
    def layout(self) -> Layout:
        return Layout(self.ref.root, self.ref.pipeline)

    @property
    def is_finished(self) -> bool:
        return self.state in ("success", "failed")


def find_pipeline(dag_id: str, session: Session) -> PipelineRef:
    """The locations of a pipeline. Raises NotFound: there is no such DAG, or it is not ours."""
    return _find_plan(dag_id, session).ref


def find_run_layout(dag_id: str, run_id: str, session: Session) -> Layout:
    """Returns the layout with the records of a run. Raises as `find_pipeline` does."""
    run = DagRun.find_duplicate(dag_id, run_id, session=session)
    ref = _find_plan(dag_id, session, run).ref
    return Layout(ref.root, ref.pipeline)


def find_run(dag_id: str, run_id: str, session: Session) -> PipelineRun:
    """The run of a DAG, with its tasks. Raises NotFound: there is no such DAG or run."""
    run = DagRun.find_duplicate(dag_id, run_id, session=session)
    if run is None:
        raise NotFound(f"There is no run {run_id} of {dag_id}.")
    plan = _find_plan(dag_id, session, run)
    found = DagRun.fetch_task_instances(dag_id=dag_id, run_id=run_id, session=session)
    tasks = plan.sort(map(_view_task, found))
    return PipelineRun(plan.ref, dag_id, run_id, str(run.state), tuple(tasks), run.start_date)


def list_runs(
    dag_id: str, session: Session, limit: int, offset: int
) -> list[tuple[DagRun, list[TaskState]]]:
    """Lists runs of a DAG, the newest first, with their tasks in the order of the DAG."""
    plan = _find_plan(dag_id, session)
    runs = session.scalars(
        select(DagRun)
        .where(DagRun.dag_id == dag_id)
        .order_by(DagRun.run_after.desc(), DagRun.id.desc())
        .limit(limit)
        .offset(offset)
        .options(selectinload(DagRun.dag_run_note))
    ).all()
    tasks = defaultdict[str, list[TaskState]](list)
    instances = select(
        TaskInstance.run_id,
        TaskInstance.task_id,
        TaskInstance.map_index,
        TaskInstance.state,
        TaskInstance.try_number,
        TaskInstance.start_date,
        TaskInstance.end_date,
        TaskInstance.trigger_timeout,
    ).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_([run.run_id for run in runs]))
    for instance in session.execute(instances):  # columns only: thousands of tasks
        tasks[instance.run_id].append(_view_task(instance))
    return [(run, plan.sort(tasks[run.run_id])) for run in runs]


def _view_task(task: Any) -> TaskState:
    """Views a task instance, or a row of its columns."""
    return TaskState(
        task.task_id,
        task.map_index,
        str(task.state or ""),
        task.try_number,
        task.start_date,
        task.end_date,
        task.trigger_timeout,
    )


def find_pipelines(dag_ids: Iterable[str], session: Session) -> list[str]:
    """The pipelines among some DAGs, sorted by name."""
    tagged = (
        select(DagTag.dag_id)
        .join(DagModel, DagModel.dag_id == DagTag.dag_id)
        .where(DagTag.name == TAG, ~DagModel.is_stale)
    )
    return sorted(set(session.scalars(tagged)) & set(dag_ids))


def _find_plan(dag_id: str, session: Session, run: DagRun | None = None) -> _Plan:
    """Finds the newest version of a DAG that a valid YAML has made.

    A run that has a version of a DAG bundle has the DAG of that version. The others have the newest
    one, as their tasks do.
    """
    version = run.created_dag_version if run is not None and run.bundle_version else None
    if version and version.serialized_dag and (plan := _read_plan(version.serialized_dag)):
        return plan
    versions = session.execute(
        select(SerializedDagModel.id, SerializedDagModel.dag_hash)
        .where(SerializedDagModel.dag_id == dag_id)
        .order_by(SerializedDagModel.created_at.desc())
        .limit(_MAX_VERSIONS)
    )
    for key, digest in versions.all():  # a version that is known is not loaded again
        serialized = None if digest in _plans else session.get(SerializedDagModel, key)
        if plan := _read_plan(serialized) if serialized else _plans.get(digest):
            return plan
    raise NotFound(f"{dag_id} is not a pipeline of Trainyard, so there is nothing to show here.")


def _read_plan(serialized: SerializedDagModel) -> _Plan | None:
    """Reads the locations and the tasks of a version of a DAG, and caches them by its hash.

    Returns None if a broken YAML or somebody else has made it. Deserializing a DAG takes tens of
    milliseconds, and a page asks every two seconds.
    """
    if serialized.dag_hash not in _plans:
        tasks = sorted(
            serialized.dag.tasks, key=lambda task: len(task.get_flat_relative_ids(upstream=True))
        )  # each task after its upstream tasks
        refs = [ref for task in tasks if (ref := _parse_ref(task))]
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[serialized.dag_hash] = (
            _Plan(refs[0], tuple(task.task_id for task in tasks)) if refs else None
        )
    return _plans[serialized.dag_hash]


def _parse_ref(task: object) -> PipelineRef | None:
    """Returns the locations that a task of ours has, or None for any other task."""
    try:
        return PipelineRef.model_validate(getattr(task, "pipeline_ref", None))
    except ValidationError:
        return None
