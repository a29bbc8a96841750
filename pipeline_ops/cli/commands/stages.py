"""`trainyard stages [NAME]`: the preprocessing stages for a config, or a description of one."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from typing import Any

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.cli.field_text import format_default, format_type
from pipeline_ops.config.fields import read_descriptions
from pipeline_ops.errors import ConfigError


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, stages)
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="Name of a stage, or its module path, for example my_package.my_module:my_stage.",
    )


def stages(arguments: argparse.Namespace) -> int:
    """List the preprocessing stages, or describe one.

    Without NAME, lists the stages for preprocess.stages with their parameters.
    """
    from beam_jobs.stages import CATALOGUE, find_stage
    from pipeline_ops.user_code.stages import list_published_names

    if arguments.name:
        stage = find_stage(arguments.name)
        print(f"{arguments.name}\n\n{_get_docstring(stage)}\n")
        for line, description in _iterate_parameters(stage):
            print(f"    {line}")
            if description:
                print("        " + " ".join(description.split()))
        return 0
    for name in [*CATALOGUE, *(name for name in list_published_names() if name not in CATALOGUE)]:
        try:
            stage = find_stage(name)
        except ConfigError as error:  # in one package: the stages of the others are still listed
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


def _get_docstring(stage: Any) -> str:
    return inspect.getdoc(inspect.getmodule(stage.function)) or inspect.getdoc(stage.function) or ""


def _iterate_parameters(stage: Any) -> Iterator[tuple[str, str]]:
    """Yields a line for each parameter, with type, bounds and default, and its meaning."""
    descriptions = read_descriptions(stage.parameters)
    for name, field in stage.parameters.__pydantic_fields__.items():
        default = ", required" if field.is_required() else f" = {format_default(field)}"
        line = f"{name}: {format_type(field.annotation, field.metadata)}{default}"
        yield line, descriptions.get(name, "")
