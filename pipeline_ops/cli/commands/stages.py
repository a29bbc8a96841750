"""`trainyard stages [NAME]`: the preprocessing stages for a config, or a description of one."""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

from pipeline_ops.errors import ConfigError

_SIGNS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "at least",
    "pattern": "matching",
}


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "stages",
        help="list the preprocessing stages",
        description="Lists the stages that preprocess.stages may name, "
        "with their parameters; of one stage, also what the parameters mean.",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="a stage's name, or the module path of one, my_package.my_module:my_stage",
    )
    parser.set_defaults(command=stages)


def stages(arguments: argparse.Namespace) -> int:
    from beam_jobs.stages import CATALOGUE, find_stage
    from pipeline_ops.user_code.stages import published_names

    if arguments.name:
        _describe(arguments.name, find_stage(arguments.name))
        return 0
    for name in [*CATALOGUE, *(name for name in published_names() if name not in CATALOGUE)]:
        try:
            stage = find_stage(name)
        except ConfigError as error:  # of one package; the stages of the others are still listed
            print(f"{name:<12}{error}")
            continue
        print(f"{name:<12}{_docstring(stage).partition(chr(10))[0]}")
        for line, _ in _parameters(stage):
            print(f"    {line}")
    print(
        "\n`trainyard stages NAME` says what the parameters of a stage mean; "
        "`trainyard new-stage NAME` makes a new one."
    )
    return 0


def _describe(name: str, stage: Any) -> None:
    print(f"{name}\n\n{_docstring(stage)}\n")
    for line, meaning in _parameters(stage):
        print(f"    {line}")
        if meaning:
            print("        " + " ".join(meaning.split()))


def _docstring(stage: Any) -> str:
    return inspect.getdoc(inspect.getmodule(stage.function)) or inspect.getdoc(stage.function) or ""


def _parameters(stage: Any) -> Iterator[tuple[str, str]]:
    """Yields a line for each parameter, with type, bounds and default, and its meaning."""
    for name, field in stage.parameters.__pydantic_fields__.items():
        default = (
            ", required"
            if field.is_required()
            else f" = {_value(field.get_default(call_default_factory=True))}"
        )
        yield (
            f"{name}: {', '.join([_type(field.annotation), *_bounds(field.metadata)])}{default}",
            field.description or "",
        )


def _type(annotation: Any) -> str:
    """The name of a type in the words of a person who writes YAML."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return ", ".join([_type(arguments[0]), *_bounds(getattr(arguments[1], "metadata", ()))])
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(argument) for argument in arguments if argument is not type(None))
    if origin in (tuple, list):
        return (
            f"list of {_type(arguments[0])}"
            if arguments[1:] in ((), (...,))
            else f"list of {len(arguments)} {_type(arguments[0])}"
        )
    if origin is dict:
        return f"mapping of {_type(arguments[0])} to {_type(arguments[1])}"
    return inspect.formatannotation(annotation)


def _bounds(metadata: Any) -> Iterator[str]:
    for rule in metadata:
        for sign, words in _SIGNS.items():
            if (bound := getattr(rule, sign, None)) is not None:
                yield (
                    f"{words} {bound:g}" if isinstance(bound, (int, float)) else f"{words} {bound}"
                )


def _value(value: Any) -> str:
    """A value as it stands in the YAML."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return str(value)
