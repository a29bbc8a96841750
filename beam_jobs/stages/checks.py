"""Checks the stages of a config before anything runs. Called by the DAG file and by the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from beam_jobs.stages.stage import Stage
from pipeline_ops.config.preprocess import StageConfig as StageConfig
from pipeline_ops.config.type_messages import describe_type
from pipeline_ops.config.yaml_source import nearest, place_in
from pipeline_ops.errors import ConfigError

_FIRST, _LAST = "decode", "encode"
_Problem = tuple[tuple[str | int, ...], str]


def check_stages(
    find: Callable[[str], Stage], stages: Sequence[StageConfig], config_file: Path
) -> None:
    """Raises ConfigError with a line for each problem.

    `find` returns a stage by its name, or raises ConfigError.
    """
    problems = [*_problems_of_order(stages)]
    for index, stage in enumerate(stages):
        problems += _problems_of(find, index, stage)
    raise_problems(problems, config_file)


def raise_problems(problems: Sequence[_Problem], config_file: Path) -> None:
    """Raises ConfigError with a line for each problem, if there is one."""
    if problems:
        raise ConfigError(
            "\n".join(
                f"{place_in(config_file, location)}: {'.'.join(map(str, location))}: {rule}"
                for location, rule in problems
            )
        )


def _problems_of_order(stages: Sequence[StageConfig]) -> Iterator[_Problem]:
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


def _problems_of(
    find: Callable[[str], Stage], index: int, stage: StageConfig
) -> Iterator[_Problem]:
    at = ("preprocess", "stages", index, stage.name)
    try:
        parameters = find(stage.name).parameters
    except ConfigError as error:
        yield at, str(error)
        return
    try:
        parameters(**stage.parameters)
    except pydantic.ValidationError as error:
        for problem in error.errors(include_url=False):
            yield (*at, *problem["loc"]), _rule(problem, parameters)


def _rule(problem: Mapping[str, Any], parameters: Any) -> str:
    match problem["type"]:
        case "unexpected_keyword_argument":
            known = [field.name for field in dataclasses.fields(parameters)]
            return (
                f"unknown parameter; {nearest(str(problem['loc'][-1]), known)}"
                if known
                else "unknown parameter; this stage has none"
            )
        case "value_error":
            return str(problem["ctx"]["error"])
        case _:
            return describe_type(problem)
