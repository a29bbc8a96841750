"""All DAGs of a folder of pipelines, for a DAG file of this repository or of a user.

    from beam_jobs.stages import check_stages
    # Airflow looks for DAGs only in files that contain the words "airflow" and "dag".
    from pipeline_ops.operators.dags import make_dags

    globals().update(make_dags(["/data/pipelines"], check_stages))

Airflow marks all DAGs of a file stale when the file has an import error. Nothing raises here for
that reason. A pipeline whose YAML cannot be used becomes a DAG that shows the problem. A second DAG
file, with `report_broken`, lists all of them as its import error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from airflow.sdk import DAG

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.yaml_source import nearest, place_in
from pipeline_ops.errors import ConfigError
from pipeline_ops.operators.broken import make_broken_dag
from pipeline_ops.operators.factory import make_dag
from pipeline_ops.operators.models_dag import DAG_ID, make_models_dag
from pipeline_ops.operators.reading import ANY_ERROR, Pipeline, explain, read_pipelines
from pipeline_ops.planning.job_kinds import JOBS

_CheckStages = Callable[[Preprocess, Path], None]
_Places = Iterable[str | os.PathLike]


def make_dags(
    places: _Places, check_stages: _CheckStages, models_dag: str = DAG_ID
) -> dict[str, DAG]:
    """Makes one DAG per config, by name, and one DAG that moves their models in and out of service.

    A config that cannot be used does not affect the others. Its DAG is tagged `broken`, shows the
    reason, and cannot be triggered.

    Args:
      places: YAML files, and folders of them.
      check_stages: `beam_jobs.stages.check_stages`, which operators may not import.
      models_dag: the id of the DAG that moves models. Each DAG file of an Airflow needs its own,
        because Airflow keeps only one DAG per id. In an Airflow of several teams, a shared DAG
        would change its team whenever a file is parsed.
    """
    pipelines = read_pipelines(places, check_stages, reserved=[models_dag])
    dags = {pipeline.name: _make_dag(pipeline) for pipeline in pipelines}
    return dags | _make_models_dag(
        [pipeline.config for pipeline in pipelines if pipeline.config], models_dag
    )


def report_broken(places: _Places, check_stages: _CheckStages, models_dag: str = DAG_ID) -> None:
    """Raises one ConfigError for all configs that cannot be used.

    It is meant for a DAG file without DAGs. The UI and `airflow dags list-import-errors` show its
    import error.
    """
    problems = [
        pipeline.problem
        for pipeline in read_pipelines(places, check_stages, reserved=[models_dag])
        if pipeline.problem
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _make_dag(pipeline: Pipeline) -> DAG:
    if pipeline.config is not None:
        try:
            _check_executors(pipeline.config)
            return _accepted(make_dag(pipeline.config))
        except ANY_ERROR as error:
            pipeline = pipeline.broken(explain(pipeline.file, error))
    return make_broken_dag(pipeline)


def _accepted(dag: DAG) -> DAG:
    """Returns the same DAG after those Airflow checks that would otherwise fail the whole file."""
    dag.validate()
    dag.check_cycle()
    return dag


def _check_executors(config: PipelineConfig) -> None:
    """Raises ConfigError for an executor that this Airflow does not have, for any of its teams."""
    wanted = {job: executor for job in JOBS if (executor := getattr(config, job).executor)}
    if not wanted:
        return
    from airflow.executors.executor_loader import (
        ExecutorLoader,  # every process that reads DAG files has imported it
    )

    names = ExecutorLoader.get_executor_names(validate_teams=False)
    known = {
        name
        for executor in names
        for name in (executor.alias, executor.module_path, executor.module_path.rpartition(".")[2])
        if name
    }
    for job, executor in wanted.items():
        if executor not in known:
            raise ConfigError(
                f"{place_in(config.file, (job, 'executor'))}: {job}.executor: "
                f"this Airflow has no executor {executor!r}; {nearest(executor, known)}"
            )


def _make_models_dag(configs: Sequence[PipelineConfig], models_dag: str) -> dict[str, DAG]:
    return {models_dag: make_models_dag(configs, models_dag)} if configs else {}
