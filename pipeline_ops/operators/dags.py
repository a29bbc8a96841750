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
from collections.abc import Callable, Iterable
from pathlib import Path

from airflow.sdk import DAG

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.reading import locate_in_file, suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.operators.broken import make_broken_dag
from pipeline_ops.operators.factory import make_dag
from pipeline_ops.operators.gc_dag import DAG_ID as GC_DAG_ID
from pipeline_ops.operators.gc_dag import make_gc_dag
from pipeline_ops.operators.models_dag import DAG_ID, make_models_dag
from pipeline_ops.operators.reading import ANY_ERROR, Pipeline, explain, read_pipelines
from pipeline_ops.planning.job_kinds import JOBS

_CheckStages = Callable[[Preprocess, Path], None]
_Paths = Iterable[str | os.PathLike[str]]


def make_dags(
    paths: _Paths,
    check_stages: _CheckStages,
    models_dag: str = DAG_ID,
    gc_dag: str = GC_DAG_ID,
) -> dict[str, DAG]:
    """Makes one DAG per config, by name, and one DAG that moves their models in and out of service.

    If a config sets `storage.keep`, another DAG removes what it does not ask for.

    A config that cannot be used does not affect the others. Its DAG is tagged `broken`, shows the
    reason, and cannot be triggered.

    Args:
      paths: YAML files, and folders of them.
      check_stages: `beam_jobs.stages.check_stages`, which operators may not import.
      models_dag: the id of the DAG that moves models. Each DAG file of an Airflow needs its own,
        because Airflow keeps only one DAG per id. In an Airflow of several teams, a shared DAG
        would change its team whenever a file is parsed.
      gc_dag: the id of the DAG that removes what is not needed, likewise.
    """
    pipelines = read_pipelines(paths, check_stages, reserved=[models_dag, gc_dag])
    dags = {pipeline.name: _make_dag(pipeline) for pipeline in pipelines}
    if configs := [pipeline.config for pipeline in pipelines if pipeline.config]:
        dags[models_dag] = make_models_dag(configs, models_dag)
        if keeping := [config for config in configs if config.storage.keep]:
            dags[gc_dag] = make_gc_dag(keeping, gc_dag)
    return dags


def report_broken(
    paths: _Paths,
    check_stages: _CheckStages,
    models_dag: str = DAG_ID,
    gc_dag: str = GC_DAG_ID,
) -> None:
    """Raises one ConfigError for all configs that cannot be used.

    It is meant for a DAG file without DAGs. The UI and `airflow dags list-import-errors` show its
    import error.
    """
    problems = [
        pipeline.problem
        for pipeline in read_pipelines(paths, check_stages, reserved=[models_dag, gc_dag])
        if pipeline.problem
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _make_dag(pipeline: Pipeline) -> DAG:
    if pipeline.config is not None:
        try:
            _check_executors(pipeline.config)
            dag = make_dag(pipeline.config)
            # Airflow checks both itself, where an error fails the whole file.
            dag.validate()  # type: ignore[no-untyped-call]
            dag.check_cycle()
            return dag
        except ANY_ERROR as error:
            pipeline = pipeline.with_problem(explain(pipeline.file, error))
    return make_broken_dag(pipeline)


def _check_executors(config: PipelineConfig) -> None:
    """Raises ConfigError for an executor that this Airflow does not have, for any of its teams."""
    requested = {job: executor for job in JOBS if (executor := getattr(config, job).executor)}
    if not requested:
        return
    # Every process that reads DAG files has imported it.
    from airflow.executors.executor_loader import ExecutorLoader

    names = ExecutorLoader.get_executor_names(validate_teams=False)
    known = {
        name
        for executor in names
        for name in (executor.alias, executor.module_path, executor.module_path.rpartition(".")[2])
        if name
    }
    for job, executor in requested.items():
        if executor not in known:
            raise ConfigError(
                f"{locate_in_file(config.file, (job, 'executor'))}: {job}.executor: "
                f"this Airflow has no executor {executor!r}; {suggest_name(executor, known)}"
            )
