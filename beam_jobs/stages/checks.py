"""Checks the stages of a config before anything runs. Called by the DAG file and by the job."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from beam_jobs.stages.stage import Stage
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.config.type_messages import describe_problem
from pipeline_ops.config.yaml_source import locate_in_file, suggest_name
from pipeline_ops.errors import ConfigError

_FIRST, _LAST = "decode", "encode"
_Problem = tuple[tuple[str | int, ...], str]


def check_stages(
    find: Callable[[str], Stage], stages: Sequence[StageConfig], config_file: Path
) -> None:
    """Raises ConfigError with a line for each problem.

    `find` returns a stage by its name, or raises ConfigError.
    """
    checked = (_check_stage(find, index, stage) for index, stage in enumerate(stages))
    raise_problems([*_check_order(stages), *itertools.chain(*checked)], config_file)


def raise_problems(problems: Sequence[_Problem], config_file: Path) -> None:
    """Raises ConfigError with a line for each problem, if there is one."""
    if problems:
        raise ConfigError(
            "\n".join(
                f"{locate_in_file(config_file, location)}: {'.'.join(map(str, location))}: {rule}"
                for location, rule in problems
            )
        )


def _check_order(stages: Sequence[StageConfig]) -> Iterator[_Problem]:
    names = [stage.name for stage in stages]
    if names[0] != _FIRST and _FIRST in names:
        yield ("preprocess", "stages", 0), f"the first stage must be {_FIRST}, got {names[0]}"
    elif names.count(_FIRST) != 1:
        yield (
            ("preprocess", "stages"),
            f"must have the stage {_FIRST} exactly once, as the first, got {', '.join(names)}",
        )
    if _LAST in names[:-1]:
        yield (
            ("preprocess", "stages", names.index(_LAST)),
            f"{_LAST} must be the last stage: what comes after it would change the pixels again",
        )


def _check_stage(
    find: Callable[[str], Stage], index: int, stage: StageConfig
) -> Iterator[_Problem]:
    location = ("preprocess", "stages", index, stage.name)
    try:
        parameters = find(stage.name).parameters
    except ConfigError as error:
        yield location, str(error)
        return
    yield from find_parameter_problems(parameters, stage.parameters, location)


def find_parameter_problems(
    parameters: Any, values: Mapping[str, Any], location: tuple[str | int, ...]
) -> Iterator[_Problem]:
    """Yields the location in the config and the rule of each value that is not valid.

    Args:
      parameters: the class of the parameters of a stage or a source.
      values: the values in the config.
      location: the location of these values in the config.
    """
    try:
        parameters(**values)
    except pydantic.ValidationError as error:
        for problem in error.errors(include_url=False):
            yield (*location, *problem["loc"]), _describe_rule(problem, parameters)


def _describe_rule(problem: Mapping[str, Any], parameters: Any) -> str:
    match problem["type"]:
        case "unexpected_keyword_argument":
            known = [field.name for field in dataclasses.fields(parameters)]
            if not known:
                return "unknown parameter; there are none"
            return f"unknown parameter; {suggest_name(str(problem['loc'][-1]), known)}"
        case "value_error":
            return str(problem["ctx"]["error"])
        case _:
            return describe_problem(problem)
