"""All DAGs of a folder of pipelines, for a DAG file of this repository or of a user.

    from beam_jobs.stages import check_stages
    # Airflow looks for DAGs only in files that contain the words "airflow" and "dag".
    from pipeline_ops.operators.dags import make_dags

    globals().update(make_dags(["/data/pipelines"], check_stages))

Airflow marks all DAGs of a file stale when the file has an import error. Nothing raises here for
that reason. A pipeline whose YAML cannot be used becomes a DAG that keeps the DAG id and the
history, shows the problem and refuses every run. It has the tasks of the pipeline, as far as the
file can be read, so a run in progress keeps its task instances. None of its tasks starts before the
file is fixed, because the DAG allows no active task, and because one of its parameters has a value
that no rule allows: the message. A second DAG file, with `report_broken`, lists all problems as its
import error.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowException

from pipeline_ops.config.pipeline import PipelineConfig, find_config_files, load_config
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.reading import ConfigText, locate_in_file, read_text, suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.operators.factory import make_dag
from pipeline_ops.operators.gc_dag import DAG_ID as GC_DAG_ID
from pipeline_ops.operators.gc_dag import make_gc_dag
from pipeline_ops.operators.models_dag import DAG_ID, make_models_dag
from pipeline_ops.operators.tasks import APPROVE, OPERATORS
from pipeline_ops.planning.job_kinds import JOBS

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


ANY_ERROR = (Exception, SystemExit)
"""The errors that can come from a file that imports code of its author.

Airflow's own time limit is not one of them and passes.
"""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_NAME_LINE = re.compile(
    rf"^pipeline:[ \t]*['\"]?({_NAME.pattern})['\"]?[ \t]*(?:#.*)?$", re.MULTILINE
)
_MAX_ID = 200
_MAX_LISTED_FILES = 5
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A config file. `config` is None if it cannot be used.

    Then `problem` gives the reason, with file, line and remedy. `values` are the values of the
    file, so far as it is valid YAML.
    """

    file: Path
    name: str
    config: PipelineConfig | None
    problem: str = ""
    values: dict[str, Any] = dataclasses.field(default_factory=dict)

    def with_problem(self, problem: str) -> Pipeline:
        """Returns the same file as one that cannot be used."""
        return dataclasses.replace(self, config=None, problem=problem)


def read_pipelines(
    paths: Iterable[str | os.PathLike[str]],
    check_stages: Callable[[Preprocess, Path], None],
    reserved: Sequence[str] = (),
) -> list[Pipeline]:
    """Reads YAML files and folders of them. The names are unique, and none is a reserved one."""
    found = {
        os.path.realpath(file): read_pipeline(file, check_stages)
        for file in find_config_files(paths)
    }
    name_counts = Counter(pipeline.name for pipeline in found.values() if pipeline.name)
    return _name_after_files(
        [
            _resolve_name_conflicts(pipeline, name_counts, found.values(), reserved)
            for pipeline in found.values()
        ],
        reserved,
    )


def read_pipeline(file: Path, check_stages: Callable[[Preprocess, Path], None]) -> Pipeline:
    """Reads one file. Its name is empty if the file does not contain one."""
    try:
        config = load_config(file)
        check_stages(config.preprocess, file)
    except ANY_ERROR as error:
        name, values = _read_name_and_values(file)
        return Pipeline(file, name, None, explain(file, error), values)
    return Pipeline(file, config.pipeline, config)


def explain(file: Path, error: BaseException) -> str:
    """Formats the message of an error, which names at least the file.

    An unknown error is logged with its origin.
    """
    if isinstance(error, ConfigError):
        return str(error)
    _log.error("%s cannot be used", file, exc_info=error)
    return (
        f"{file}:1: cannot make a DAG: {type(error).__name__}: {str(error)[:1000]}. "
        "Correct the cause. The traceback is in the log of the DAG processor."
    )


def _read_name_and_values(file: Path) -> tuple[str, dict[str, Any]]:
    """Reads the name that a broken file gives to its pipeline, and its values."""
    try:
        values = ConfigText.read(file).values
    except ANY_ERROR:
        return _find_name_in_text(file), {}
    name = values.get("pipeline")
    return (name if isinstance(name, str) and _NAME.fullmatch(name) else ""), values


def _find_name_in_text(file: Path) -> str:
    try:
        found = _NAME_LINE.search(read_text(file))
    except ConfigError:
        return ""
    return found[1] if found else ""


def _resolve_name_conflicts(
    pipeline: Pipeline,
    name_counts: Counter[str],
    every_pipeline: Iterable[Pipeline],
    reserved: Sequence[str],
) -> Pipeline:
    """Checks the name of a pipeline against the reserved names and the names in other files.

    If several files have the same name, the file that is named after its pipeline keeps it. Without
    such a file, all of them are broken.
    """
    if pipeline.name in reserved:
        problem = (
            f"pipeline: {pipeline.name} is the name of a DAG that Trainyard makes. "
            "Choose another name."
        )
        return dataclasses.replace(
            pipeline.with_problem(f"{locate_in_file(pipeline.file, ['pipeline'])}: {problem}"),
            name="",
        )
    if not pipeline.name or name_counts[pipeline.name] == 1:
        return pipeline
    same = [other.file for other in every_pipeline if other.name == pipeline.name]
    owners = [file for file in same if file.stem == pipeline.name]
    if [pipeline.file] == owners:
        return pipeline
    others = ", ".join([str(file) for file in same if file != pipeline.file][:_MAX_LISTED_FILES])
    problem = (
        f"{locate_in_file(pipeline.file, ['pipeline'])}: pipeline: {pipeline.name} "
        f"is also the name in {others}. Give each pipeline a different name."
    )
    is_first = not owners and pipeline.file == same[0]
    problems = "\n".join(filter(None, [pipeline.problem, problem]))
    return dataclasses.replace(
        pipeline.with_problem(problems), name=pipeline.name if is_first else ""
    )


def _name_after_files(pipelines: Sequence[Pipeline], reserved: Sequence[str]) -> list[Pipeline]:
    """Names the pipelines that have no name after their files."""
    used_names = {pipeline.name for pipeline in pipelines} | set(reserved)
    named = []
    for pipeline in pipelines:
        name = pipeline.name or _choose_unused_name(pipeline.file, used_names)
        used_names.add(name)
        named.append(dataclasses.replace(pipeline, name=name))
    return named


def _choose_unused_name(file: Path, used_names: set[str]) -> str:
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", file.stem)[:_MAX_ID] or "config"
    names = [
        stem,
        f"{stem}.broken",
        *(f"{stem}.broken{number}" for number in range(2, len(used_names) + 3)),
    ]
    return next(name for name in names if name not in used_names)


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
