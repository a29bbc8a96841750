"""The pipelines of a folder, as far as their YAML files can be read.

Each is a config, or a file with a problem. No file can raise here. A file that cannot be used keeps
the name of its pipeline if the name can be read, so that the DAG keeps its id and its history.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline_ops.config.notify import check_notifiers
from pipeline_ops.config.pipeline import PipelineConfig, find_config_files, load_config
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.reading import ConfigText, locate_in_file, read_text
from pipeline_ops.errors import ConfigError

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
        check_notifiers(config.notify, file)
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
