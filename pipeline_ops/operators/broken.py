"""The DAG of a pipeline whose YAML cannot be used.

It keeps the DAG id and the history, shows the problem and refuses every run. It has the tasks of
the pipeline, as far as the file can be read, so a run in progress keeps its task instances. None of
its tasks starts before the file is fixed, because the DAG allows no active task. Airflow checks the
parameters of a DAG before it makes a run and before it starts a task. One parameter of this DAG has
a value that no rule allows: the message.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowException

from pipeline_ops.operators.chain import APPROVE, OPERATORS
from pipeline_ops.operators.reading import Pipeline

BROKEN = "broken"
"""The tag of such a DAG, and its only parameter."""

_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_MAX_MESSAGE = 10_000


def make_broken_dag(pipeline: Pipeline) -> DAG:
    """Makes the DAG that stands for a pipeline until its file is fixed."""
    message = pipeline.problem[:_MAX_MESSAGE]
    with DAG(
        pipeline.name,
        description=f"Broken: {message.splitlines()[0][:500]}",
        schedule=None,
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        max_active_tasks=0,
        # For a task that was queued when the file broke.
        default_args={"retries": 1, "retry_delay": dt.timedelta(0)},
        tags=["trainyard", BROKEN],
        doc_md=_describe_problem(pipeline, message),
    ) as dag:
        before: BrokenOperator | None = None
        for task_id in _list_task_ids(pipeline.values):
            task = BrokenOperator(
                task_id=task_id, config_file=str(pipeline.file.absolute()), message=message
            )
            if before is not None:
                before >> task
            before = task
    # Only now, because each task would get a copy.
    dag.params.update({BROKEN: _make_blocking_param(message)})
    return dag


class BrokenOperator(BaseOperator):
    """Fails with the message of a broken pipeline.

    Args:
      config_file: the pipeline's YAML, which the UI's pages use to find the pipeline of a run.
      message: the problem with the YAML.
    """

    ui_color = "#b3b3b3"
    template_fields = ("config_file",)

    def __init__(self, *, config_file: str, message: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.config_file, self.message = config_file, message

    def execute(self, context: Mapping[str, Any]) -> NoReturn:
        raise AirflowException(self.message)


def _make_blocking_param(message: str) -> Param:
    """Makes a parameter without any valid value.

    Airflow's refusal shows the title, whatever value was given.
    """
    schema: dict[str, Any] = {"type": "string", "not": {}}
    return Param(
        message,
        title=f"Broken: {message.splitlines()[0][:500]}",
        description="No run can start until the config is fixed.",
        **schema,
    )


def _list_task_ids(values: Mapping[str, Any]) -> Iterator[str]:
    evaluate = values.get("evaluate")
    for operator in OPERATORS:
        if operator.job == "train" and values.get("search"):
            yield from ("search", "trial")
        if (
            operator.job == "export"
            and isinstance(evaluate, Mapping)
            and evaluate.get("approval") is not None
        ):
            yield APPROVE
        yield operator.job


def _describe_problem(pipeline: Pipeline, message: str) -> str:
    """Describes the problem. The message is indented, so that it is not read as Markdown."""
    indented = "\n".join(f"    {line}" for line in message.splitlines())
    return (
        f"# {pipeline.name} is broken\n\nIts config is not valid, so no run can start. "
        "The history stays. The pipeline returns when the file is fixed.\n\n"
        f"{indented}\n\nCheck the file with\n\n    trainyard validate {pipeline.file}\n"
    )
