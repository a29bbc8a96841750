"""`trainyard stages [NAME]`: the preprocessing stages for a config, or a description of one."""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.config.fields import read_descriptions
from pipeline_ops.errors import ConfigError

_CONSTRAINT_WORDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "at least",
    "pattern": "matching",
}


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "stages",
        stages,
        "List the preprocessing stages, or describe one.",
        "Without NAME, lists the stages for preprocess.stages with their parameters.",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="Name of a stage, or its module path, for example my_package.my_module:my_stage.",
    )


def stages(arguments: argparse.Namespace) -> int:
    from beam_jobs.stages import CATALOGUE, find_stage
    from pipeline_ops.user_code.stages import list_published_names

    if arguments.name:
        _print_stage(arguments.name, find_stage(arguments.name))
        return 0
    for name in [*CATALOGUE, *(name for name in list_published_names() if name not in CATALOGUE)]:
        try:
            stage = find_stage(name)
        except (
            ConfigError
        ) as error:  # in one package. The stages of other packages are still listed
            print(f"{name:<12}{error}")
            continue
        print(f"{name:<12}{_get_docstring(stage).partition(chr(10))[0]}")
        for line, _ in _iterate_parameters(stage):
            print(f"    {line}")
    print(
        "\nDescribe the parameters of a stage: trainyard stages NAME\n"
        "Create a new stage: trainyard new-stage NAME"
    )
    return 0


def _print_stage(name: str, stage: Any) -> None:
    print(f"{name}\n\n{_get_docstring(stage)}\n")
    for line, description in _iterate_parameters(stage):
        print(f"    {line}")
        if description:
            print("        " + " ".join(description.split()))


def _get_docstring(stage: Any) -> str:
    return inspect.getdoc(inspect.getmodule(stage.function)) or inspect.getdoc(stage.function) or ""


def _iterate_parameters(stage: Any) -> Iterator[tuple[str, str]]:
    """Yields a line for each parameter, with type, bounds and default, and its meaning."""
    descriptions = read_descriptions(stage.parameters)
    for name, field in stage.parameters.__pydantic_fields__.items():
        default = (
            ", required"
            if field.is_required()
            else f" = {_format_value(field.get_default(call_default_factory=True))}"
        )
        constraints = [_format_type(field.annotation), *_format_bounds(field.metadata)]
        yield f"{name}: {', '.join(constraints)}{default}", descriptions.get(name, "")


def _format_type(annotation: Any) -> str:
    """Formats a type as it is known to the author of a YAML file."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return ", ".join(
            [_format_type(arguments[0]), *_format_bounds(getattr(arguments[1], "metadata", ()))]
        )
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(
            _format_type(argument) for argument in arguments if argument is not type(None)
        )
    if origin in (tuple, list):
        return (
            f"list of {_format_type(arguments[0])}"
            if arguments[1:] in ((), (...,))
            else f"list of {len(arguments)} {_format_type(arguments[0])}"
        )
    if origin is dict:
        return f"mapping of {_format_type(arguments[0])} to {_format_type(arguments[1])}"
    return inspect.formatannotation(annotation)


def _format_bounds(metadata: Any) -> Iterator[str]:
    for rule in metadata:
        for constraint, words in _CONSTRAINT_WORDS.items():
            if (bound := getattr(rule, constraint, None)) is not None:
                yield (
                    f"{words} {bound:g}" if isinstance(bound, (int, float)) else f"{words} {bound}"
                )


def _format_value(value: Any) -> str:
    """Formats a value as in YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(_format_value, value))}]"
        case _:
            return str(value)
