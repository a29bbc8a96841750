"""One DAG per YAML file: preprocess >> train >> evaluate >> export.

If the YAML asks for approval, `approve` comes before export. If it asks for a search, several tasks
stand for `train`. A pipeline has one run at a time. With `approve` it may have more, because a run
that waits for a person must not block the next one.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import DAG

from pipeline_ops.config.base import TaskSection
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.yaml_view import without_secrets
from pipeline_ops.operators.assets import outlets_of, timetable_of
from pipeline_ops.operators.chain import OPERATORS, TrainOperator
from pipeline_ops.operators.form import form_params
from pipeline_ops.operators.notices import terms_of_dag, terms_of_tasks
from pipeline_ops.operators.search import ChooseOperator, SearchOperator, TrialOperator

_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_RETRIES = {
    "retry_delay": dt.timedelta(seconds=5),
    "retry_exponential_backoff": 6,
    "max_retry_delay": dt.timedelta(minutes=5),
}
"""Arguments for the retries of a task.

The first retry comes at once, because the usual cause is a killed process. Later ones give a slow
Airflow time to recover. A try that cannot reach its API server is lost, though the job continues.
"""
_RUNS_WITH_APPROVAL = 16
"""The limit on active runs, including those that wait for approval.

The next run starts when one of them has been answered or has timed out.
"""


def make_dag(config: PipelineConfig) -> DAG:
    """Makes the DAG of a pipeline whose config, stages and notifiers are checked."""
    with DAG(
        config.pipeline,
        description=config.description,
        schedule=timetable_of(config),
        start_date=_START,
        catchup=False,
        max_active_runs=_RUNS_WITH_APPROVAL if config.evaluate.approval else 1,
        tags=["trainyard", *config.tags],
        doc_md=_describe(config),
        default_args={"owner": config.owner, **_RETRIES},
        fail_fast=False,
        **terms_of_dag(config),
    ) as dag:
        tasks = [
            _add_search(config)
            if config.search and operator is TrainOperator
            else operator(
                config_file=str(config.file),
                outlets=outlets_of(config, operator.job),
                **_terms(getattr(config, operator.job)),
                **terms_of_tasks(config),
            )
            for operator in OPERATORS
        ]
        if config.evaluate.approval:
            from pipeline_ops.operators.approval import (
                ApproveOperator,  # no other DAG needs what it imports
            )

            tasks.insert(
                -1,
                ApproveOperator(
                    config_file=str(config.file),
                    approval=config.evaluate.approval,
                    **terms_of_tasks(config),
                ),
            )
        for earlier, later in zip(tasks, tasks[1:], strict=False):
            earlier >> (
                dag.get_task("trial") if config.search and later.task_id == "train" else later
            )
    dag.params.update(
        form_params(config)
    )  # only now: each task gets a copy of the DAG's params, and Airflow checks every copy
    return dag


def _terms(section: TaskSection) -> dict[str, Any]:
    """Scheduling arguments of the task. Unset ones use Airflow's defaults."""
    given = {"pool": section.pool, "executor": section.executor}
    return {
        "retries": section.retries,
        "priority_weight": section.priority,
        "weight_rule": "absolute",
    } | {k: v for k, v in given.items() if v}


def _add_search(config: PipelineConfig) -> ChooseOperator:
    """Adds the tasks of a search, which stand for `train`, and returns the last one.

    The tasks are search >> trial >> train, with one mapped task for each trial. A failed trial does
    not fail the run, so it causes no notification.
    """
    file = str(config.file)
    search = SearchOperator(config_file=file, **terms_of_tasks(config))
    trial = TrialOperator.partial(
        task_id="trial",
        config_file=file,
        **_terms(config.train),
        max_active_tis_per_dagrun=config.search.max_parallel,
        map_index_template="{{ task.trial_text }}",
    ).expand(trial=search.output)
    train = ChooseOperator(config_file=file, **terms_of_tasks(config))
    trial >> train
    return train


def _describe(config: PipelineConfig) -> str:
    text = without_secrets(config.file.read_text(encoding="utf-8"))
    return f"# {config.pipeline}\n{config.description}\n\n```yaml\n{text.strip()}\n```\n"
