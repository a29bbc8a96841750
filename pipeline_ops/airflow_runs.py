"""Finds a pipeline and its runs in Airflow's database.

It returns the config that a DAG was made from, the overrides that a run was started with, and the
state of its tasks. Only this module queries the database for the UI plugin. `ui/app.py` checks the
user's permissions first, by Airflow's own rules.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline_ops.airflow_connections import use_airflow_connections
from pipeline_ops.airflow_internals import DagModel, DagRun, DagTag, SerializedDagModel
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.config.reading import ConfigFile, YamlCopy, find_yaml
from pipeline_ops.config.run_conf import load_run_config_or_author
from pipeline_ops.errors import TrainyardError

use_airflow_connections()

TAG = "trainyard"
"""The tag that the factory gives its DAGs."""


_MAX_PLANS = 1000


class NotFound(TrainyardError):
    """A DAG or a run that does not exist here. The message is for the user who asked for it."""


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The parts of a version of a DAG that the pages need.

    `text` is the YAML as the DAG's documentation shows it. `tasks` are in order.
    """

    config_file: str
    text: str
    tasks: tuple[str, ...]


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


@dataclasses.dataclass(frozen=True)
class PipelineRun:
    """One run of a pipeline. The tasks are in the order of the DAG."""

    config: PipelineConfig
    run_id: str
    state: str
    tasks: tuple[TaskState, ...]

    @property
    def layout(self) -> Layout:
        return Layout(self.config.root, self.config.pipeline)

    @property
    def is_finished(self) -> bool:
        return self.state in ("success", "failed")


def find_pipeline(dag_id: str, session: Session) -> PipelineConfig:
    """The config of a DAG that the factory has made.

    Raises:
      NotFound: there is no such DAG, or the factory has not made it.
      ConfigError: its YAML is no longer valid.
    """
    return load_config(find_config_file(dag_id, session))


def find_run_config(dag_id: str, run_id: str, session: Session) -> PipelineConfig:
    """The config of a run, or the author's if the run's conf is refused.

    Raises as `find_pipeline` does.
    """
    run = DagRun.find_duplicate(dag_id, run_id, session=session)
    file, _ = _find_plan(dag_id, session, run)
    return load_run_config_or_author(file, run.conf if run else None)


def find_config_file(dag_id: str, session: Session) -> ConfigFile:
    """The YAML that a DAG was made from. Raises NotFound as `find_pipeline` does."""
    return _find_plan(dag_id, session)[0]


def find_run(dag_id: str, run_id: str, session: Session) -> PipelineRun:
    """The run of a DAG, with its config and its tasks.

    Raises:
      NotFound: there is no such DAG or run.
      ConfigError: the YAML of the DAG is no longer valid.
    """
    run = DagRun.find_duplicate(dag_id, run_id, session=session)
    if run is None:
        raise NotFound(f"There is no run {run_id} of {dag_id}.")
    config_file, order = _find_plan(dag_id, session, run)
    tasks = [
        TaskState(
            task.task_id,
            task.map_index,
            str(task.state or ""),
            task.try_number,
            task.start_date,
            task.end_date,
        )
        for task in DagRun.fetch_task_instances(dag_id=dag_id, run_id=run_id, session=session)
    ]
    positions = {task_id: position for position, task_id in enumerate(order)}
    tasks.sort(key=lambda task: (positions.get(task.task_id, len(positions)), task.map_index))
    return PipelineRun(
        load_run_config_or_author(config_file, run.conf), run_id, str(run.state), tuple(tasks)
    )


def find_pipelines(dag_ids: Iterable[str], session: Session) -> list[str]:
    """The pipelines among some DAGs, sorted by name."""
    tagged = (
        select(DagTag.dag_id)
        .join(DagModel, DagModel.dag_id == DagTag.dag_id)
        .where(DagTag.name == TAG, ~DagModel.is_stale)
    )
    return sorted(set(session.scalars(tagged)) & set(dag_ids))


def _find_plan(
    dag_id: str, session: Session, run: DagRun | None = None
) -> tuple[ConfigFile, tuple[str, ...]]:
    """The config file and the tasks, in order, of a DAG.

    A run that has a version of a DAG bundle has the DAG and the YAML of that version. The others
    have the newest ones, as their tasks do. If this host does not have the file, the copy in the
    DAG's documentation stands for it.
    """
    version = run.created_dag_version if run is not None and run.bundle_version else None
    serialized = version.serialized_dag if version else None
    serialized = serialized or SerializedDagModel.get(dag_id, session=session)
    plan = _read_plan(serialized) if serialized else None
    if serialized is None or plan is None:
        raise NotFound(
            f"{dag_id} is not a pipeline of Trainyard, so there is nothing to show here."
        )
    is_here = serialized.dag_version.bundle_version is None and os.path.lexists(plan.config_file)
    is_here = is_here or not plan.text
    file = plan.config_file if is_here else YamlCopy(Path(plan.config_file), plan.text)
    return file, plan.tasks


def _read_plan(serialized: SerializedDagModel) -> _Plan | None:
    """Reads a DAG's config file and tasks, and caches them by the DAG's hash.

    Deserializing a DAG takes tens of milliseconds, and a page asks every two seconds.
    """
    if serialized.dag_hash not in _plans:
        tasks = sorted(
            serialized.dag.tasks, key=lambda task: len(task.get_flat_relative_ids(upstream=True))
        )  # each task after its upstream tasks
        files = [file for task in tasks if (file := getattr(task, "config_file", None))]
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        text = find_yaml(serialized.dag.doc_md or "")
        _plans[serialized.dag_hash] = (
            _Plan(files[0], text, tuple(task.task_id for task in tasks)) if files else None
        )
    return _plans[serialized.dag_hash]
