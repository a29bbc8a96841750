"""All DAGs of a folder of pipelines, for a DAG file of this repository or of a user.

    from beam_jobs.stages import check_stages
    # Airflow looks for DAGs only in files that contain the words "airflow" and "dag".
    from pipeline_ops.orchestration.dags import make_dags

    globals().update(make_dags(["/data/pipelines"], check_stages))

Airflow marks all DAGs of a file stale when the file has an import error, so `make_dags` raises
none. A pipeline whose YAML cannot be used becomes a broken DAG, which keeps the DAG id and the
history, shows the problem and refuses every run. It has the tasks of the pipeline, as far as the
file can be read, so a run in progress keeps its task instances. No task of it starts, because the
DAG allows no active task and has a parameter that no value satisfies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import inspect
import logging
import os
import re
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import DAG, BaseOperator, Param, TriggerRule, chain
from airflow.sdk.exceptions import AirflowException

from pipeline_ops.config.pipeline import PipelineConfig, find_config_files, load_config
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.reading import ConfigText, suggest_name
from pipeline_ops.contract.layout import APPROVE
from pipeline_ops.errors import ConfigError
from pipeline_ops.orchestration.factory import make_dag
from pipeline_ops.orchestration.gc_dag import DAG_ID as GC_DAG_ID
from pipeline_ops.orchestration.gc_dag import make_gc_dag
from pipeline_ops.orchestration.tasks import OPERATORS

BROKEN = "broken"
"""The tag of such a DAG, and its only parameter."""

ANY_ERROR = (Exception, SystemExit)
"""The errors that can come from a file that imports code of its author.

Airflow's own time limit is not one of them and passes.
"""

_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_MAX_MESSAGE = 10_000
_MAX_ID = 200
_CheckStages = Callable[[Preprocess, Path], None]
_Customize = Callable[[DAG, PipelineConfig], object]
_Paths = Iterable[str | os.PathLike[str]]
_log = logging.getLogger(__name__)


def make_dags(
    paths: _Paths,
    check_stages: _CheckStages,
    gc_dag: str = GC_DAG_ID,
    customize: _Customize | None = None,
) -> dict[str, DAG]:
    """Makes one DAG per config, by name, and one for all configs with `storage.keep`.

    Args:
      paths: YAML files, and folders of them.
      check_stages: `beam_jobs.stages.check_stages`, which operators may not import.
      gc_dag: the id of the DAG for `storage.keep`. Each DAG file of an Airflow needs its own,
        because Airflow keeps only one DAG per id.
      customize: is called with each pipeline's DAG and config, and may add tasks and set whatever
        Airflow offers. An error that it raises breaks that pipeline alone.
    """
    pipelines = _read_pipelines(paths, check_stages, gc_dag)
    dags = {pipeline.name: _make_dag(pipeline, customize) for pipeline in pipelines}
    configs = [pipeline.config for pipeline in pipelines if pipeline.config]
    if keeping := [config for config in configs if config.storage.keep]:
        dags[gc_dag] = make_gc_dag(keeping, gc_dag)
    return dags


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    """A config file. If it cannot be used, `config` is None, and `problem` gives the reason.

    `values` are then the values of the file, as far as it is valid YAML.
    """

    file: Path
    name: str
    config: PipelineConfig | None
    problem: str = ""
    values: dict[str, Any] = dataclasses.field(default_factory=dict)


def _read_pipelines(paths: _Paths, check_stages: _CheckStages, gc_dag: str) -> list[_Pipeline]:
    """Names each pipeline as its file. Of several files with one name, none can be used."""
    by_name: dict[str, list[Path]] = {}
    for file in {os.path.realpath(file): file for file in find_config_files(paths)}.values():
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem)[:_MAX_ID]
        by_name.setdefault(f"{name}.broken" if name == gc_dag else name, []).append(file)
    return [_read_pipeline(name, files, check_stages) for name, files in by_name.items()]


def _read_pipeline(name: str, files: Sequence[Path], check_stages: _CheckStages) -> _Pipeline:
    file = files[0]
    try:
        if len(files) > 1:
            others = ", ".join(map(str, files[1:]))
            raise ConfigError(f"{file}: {others} has the same name. Rename all of them but one.")
        if name.endswith(".broken"):
            raise ConfigError(f"{file}: is named as a DAG of Trainyard. Rename it.")
        config = load_config(file)
        check_stages(config.preprocess, file)
    except ANY_ERROR as error:
        values: dict[str, Any] = {}
        with contextlib.suppress(*ANY_ERROR):
            values = ConfigText.read(file).values
        return _Pipeline(file, name, None, _describe_error(file, error), values)
    return _Pipeline(file, name, config)


def _describe_error(file: Path, error: BaseException) -> str:
    """Returns a message that names at least the file. Logs the traceback of an unknown error."""
    if isinstance(error, ConfigError):
        return str(error)
    _log.error("%s cannot be used", file, exc_info=error)
    return (
        f"{file}:1: cannot make a DAG: {type(error).__name__}: {str(error)[:1000]}. "
        "Correct the cause. The traceback is in the log of the DAG processor."
    )


def _make_dag(pipeline: _Pipeline, customize: _Customize | None) -> DAG:
    if pipeline.config is None:
        cure = f"Check the file with\n\n    trainyard validate {pipeline.file}\n"
        return _make_broken_dag(pipeline, pipeline.problem, cure)
    try:
        dag = make_dag(pipeline.config)
        _check_dag(dag)
    except ANY_ERROR as error:
        return _make_broken_dag(pipeline, _describe_error(pipeline.file, error))
    if customize:
        known = [(each, {*vars(each)}) for each in (dag, *dag.tasks) if hasattr(each, "__dict__")]
        try:
            with dag:  # so that operators made there belong to it
                result = customize(dag, pipeline.config)
            _check_result(dag, result)
            _check_attributes(known)
            _check_dag(dag)
            _check_for_airflow(dag, pipeline.name)
        except ANY_ERROR as error:
            return _make_broken_dag(pipeline, _describe_hook_error(pipeline, customize, error))
    return dag


def _check_dag(dag: DAG) -> None:
    """Does what Airflow does itself, where an error fails the whole file."""
    dag.validate()  # type: ignore[no-untyped-call]
    dag.check_cycle()


def _check_result(dag: DAG, result: object) -> None:
    """Refuses a function whose code has not run, and another DAG, which nobody would get."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise TypeError("it must be a plain function, without async and yield")
    if isinstance(result, DAG) and result is not dag:
        raise TypeError(f"it must change the DAG that it gets, and returned another one: {result}")


def _check_attributes(known: Iterable[tuple[object, set[str]]]) -> None:
    """Refuses attributes that neither the DAG nor its tasks have, because Airflow ignores them."""
    for each, names in known:
        for name in vars(each).keys() - names:
            if not name.startswith("_") and not hasattr(type(each), name):
                raise AttributeError(f"{each} has no {name}; {suggest_name(name, names)}")


def _check_for_airflow(dag: DAG, name: str) -> None:
    """Checks what Airflow reads from the DAG, where an error fails the whole file or all runs."""
    # Its import takes a third of a second, and only a DAG with a function of a user's needs it.
    from airflow.serialization.serialized_objects import DagSerialization

    if dag.dag_id != name:
        raise ValueError(
            f"dag_id must stay {name}, because the runs, pages and records have this name, got "
            f"{dag.dag_id}. dag_display_name is the name for people"
        )
    rules = [rule.value for rule in TriggerRule]
    for task in dag.tasks:
        if task.trigger_rule not in rules:
            hint = suggest_name(str(task.trigger_rule), rules)
            raise ValueError(f"{task} has the trigger_rule {task.trigger_rule!r}; {hint}")
        if not isinstance(task.execution_timeout, dt.timedelta | None):
            seconds = task.execution_timeout
            raise TypeError(f"{task} has the execution_timeout {seconds!r}, which is no timedelta")
    # Airflow sets them when a DAG is made, and runs no callback without them.
    dag.has_on_success_callback = dag.on_success_callback is not None
    dag.has_on_failure_callback = dag.on_failure_callback is not None
    DagSerialization.to_dict(dag)


def _describe_hook_error(pipeline: _Pipeline, customize: _Customize, error: BaseException) -> str:
    """Returns a message with the file and the line in the code of the function."""
    _log.error("customize cannot be used for %s", pipeline.name, exc_info=error)
    frames = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    if code := getattr(inspect.unwrap(customize), "__code__", None):
        own = [frame for frame in frames if frame[0] == code.co_filename]
        frames = own or [(code.co_filename, code.co_firstlineno)]  # such as a cycle of tasks
    file, line = frames[-1]
    return (
        f"{file}:{line}: customize failed for the pipeline {pipeline.name}: "
        f"{type(error).__name__}: {str(error)[:1000].rstrip('.')}. Correct the function."
    )


def _make_broken_dag(pipeline: _Pipeline, problem: str, cure: str = "") -> DAG:
    """Makes the DAG that stands for a pipeline until its file is fixed."""
    message = problem[:_MAX_MESSAGE]
    title = f"Broken: {message.splitlines()[0][:500]}"
    with DAG(
        pipeline.name,
        auto_register=False,
        description=title,
        schedule=None,
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        max_active_tasks=0,
        # For a task that was queued when the file broke.
        default_args={"retries": 1, "retry_delay": dt.timedelta(0)},
        tags=["trainyard", BROKEN],
        doc_md=(
            f"# {pipeline.name} is broken\n\nNo run can start. "
            "The history stays. The pipeline returns when the problem is solved.\n\n"
            # Indented, so that it is not read as Markdown.
            f"{textwrap.indent(message, '    ')}\n\n{cure}"
        ),
    ) as dag:
        task_ids = _list_task_ids(pipeline.values)
        chain(*(BrokenOperator(task_id=task_id, message=message) for task_id in task_ids))
    # After the tasks, each of which would get a copy. Airflow's refusal shows the title.
    no_value: dict[str, Any] = {"type": "string", "not": {}}
    description = "No run can start until the config is fixed."
    dag.params[BROKEN] = Param(message, title=title, description=description, **no_value)
    return dag


class BrokenOperator(BaseOperator):
    """Fails with the message of a broken pipeline."""

    ui_color = "#b3b3b3"

    def __init__(self, *, message: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.message = message

    def execute(self, context: Mapping[str, Any]) -> NoReturn:
        raise AirflowException(self.message)


def _list_task_ids(values: Mapping[str, Any]) -> Iterator[str]:
    evaluate = values.get("evaluate")
    asks = isinstance(evaluate, Mapping) and evaluate.get("approval") is not None
    for operator in OPERATORS:
        if operator.job == "train" and values.get("search"):
            yield from ("search", "trial")
        if operator.job == "export" and asks:
            yield APPROVE
        yield operator.job
