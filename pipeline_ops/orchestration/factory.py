"""One DAG per YAML file: preprocess >> train >> evaluate >> export.

If the YAML asks for approval, `approve` comes before export. If it asks for a search, several tasks
replace `train`. A pipeline has one run at a time. With `approve` it may have more, because a run
that waits for a person must not block the next one.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG, BaseOperator

from pipeline_ops.config.fields import TaskSection
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.pipeline_ref import PipelineRef
from pipeline_ops.config.reading import hide_secrets
from pipeline_ops.config.search import Search
from pipeline_ops.orchestration.assets import make_outlets, make_timetable
from pipeline_ops.orchestration.form import make_form_params
from pipeline_ops.orchestration.notification import build_task_callback_kwargs
from pipeline_ops.orchestration.search import ChooseOperator, SearchOperator, TrialOperator
from pipeline_ops.orchestration.tasks import OPERATORS, TrainOperator

_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_RETRY_KWARGS = {
    "retry_delay": dt.timedelta(seconds=5),
    "retry_exponential_backoff": 6,
    "max_retry_delay": dt.timedelta(minutes=5),
}
"""The first retry comes at once, because the usual cause is a killed process.

Later ones give a slow Airflow time to recover.
"""
_RUNS_WITH_APPROVAL = 16
"""The limit on active runs, including those that wait for approval."""


def make_dag(config: PipelineConfig) -> DAG:
    """Makes the DAG of a pipeline whose config, stages and notifiers are checked."""
    yaml = hide_secrets(config.file.read_text(encoding="utf-8"))
    ref = PipelineRef.from_config(config).to_json()
    with DAG(
        config.pipeline,
        auto_register=False,  # or Airflow would take a DAG that `make_dags` has dropped
        description=config.description,
        schedule=make_timetable(config),
        start_date=_START,
        catchup=False,
        max_active_runs=_RUNS_WITH_APPROVAL if config.evaluate.approval else 1,
        tags=["trainyard", *config.tags],
        doc_md=f"# {config.pipeline}\n{config.description}\n\n```yaml\n{yaml.strip()}\n```\n",
        default_args={"owner": config.owner, **_RETRY_KWARGS},
        fail_fast=False,
    ) as dag:
        tasks: list[BaseOperator] = [
            _add_search(config, config.search)
            if config.search and operator is TrainOperator
            else operator(
                config_file=str(config.file),
                pipeline_ref=ref,
                outlets=make_outlets(config, operator.job),
                **_build_scheduling_kwargs(getattr(config, operator.job)),
                **build_task_callback_kwargs(config),
            )
            for operator in OPERATORS
        ]
        if config.evaluate.approval:
            # Its imports are slow, and only a DAG with approval needs them.
            from pipeline_ops.orchestration.approval import ApproveOperator

            approve = ApproveOperator(
                config_file=str(config.file),
                approval=config.evaluate.approval,
                **build_task_callback_kwargs(config),
            )
            tasks.insert(-1, approve)
        for earlier, later in zip(tasks, tasks[1:], strict=False):
            earlier >> (
                dag.get_task("trial") if config.search and later.task_id == "train" else later
            )
    # After the tasks, each of which would get a copy of the params for Airflow to check.
    dag.params.update(make_form_params(config))
    return dag


def _build_scheduling_kwargs(section: TaskSection) -> dict[str, Any]:
    """Builds the scheduling arguments of a task. Unset ones use Airflow's defaults."""
    pool = {"pool": section.pool} if section.pool else {}
    return {"retries": section.retries, **pool}


def _add_search(config: PipelineConfig, search: Search) -> ChooseOperator:
    """Adds search >> trial >> train, with one mapped task for each trial, and returns the last one.

    The job of `search` runs where those of the trials run.

    A failed trial does not fail the run, so it causes no notification.
    """
    file = str(config.file)
    callback_kwargs = build_task_callback_kwargs(config)
    scheduling_kwargs = _build_scheduling_kwargs(config.train)
    search_task = SearchOperator(config_file=file, **scheduling_kwargs, **callback_kwargs)
    trial = TrialOperator.partial(
        task_id="trial",
        config_file=file,
        **scheduling_kwargs,
        max_active_tis_per_dagrun=search.max_parallel,
        map_index_template="{{ task.trial_text }}",
    ).expand(trial=search_task.output)
    train = ChooseOperator(config_file=file, **callback_kwargs)
    trial >> train
    return train
