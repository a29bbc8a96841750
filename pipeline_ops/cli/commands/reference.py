"""`trainyard stages [NAME]` and `trainyard reference`: the stages, and every key of the YAML files.

    trainyard reference > configs/REFERENCE.md

Both read the declarations of the parameters and of the config's classes.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from pipeline_ops.cli.templates import render_template
from pipeline_ops.config.fields import ConfigField, TaskSection, collect_fields, read_descriptions
from pipeline_ops.config.hosts import Hosts, find_sections
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.errors import ConfigError

_CONSTRAINT_WORDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "at least",
    "pattern": "matching",
}


def stages(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of a stage, or its module path, for example my_package.my_module:my_stage.",
        ),
    ] = None,
) -> int:
    """List the preprocessing stages, or describe one.

    Without NAME, lists the stages for preprocess.stages with their parameters.
    """
    from beam_jobs.stages import CATALOGUE, find_stage
    from pipeline_ops.user_code.stages import list_published_names

    if name:
        stage = find_stage(name)
        print(f"{name}\n\n{get_docstring(stage)}\n")
        for line, description in _iterate_parameters(stage):
            print(f"    {line}")
            if description:
                print("        " + " ".join(description.split()))
        return 0
    for each in dict.fromkeys([*CATALOGUE, *list_published_names()]):
        try:
            stage = find_stage(each)
        except ConfigError as error:  # in one package: the stages of the others are still listed
            print(f"{each:<12}{error}")
            continue
        print(f"{each:<12}{get_docstring(stage).partition(chr(10))[0]}")
        for line, _ in _iterate_parameters(stage):
            print(f"    {line}")
    print(
        "\nDescribe the parameters of a stage: trainyard stages NAME\n"
        "Create a new stage: trainyard new stage NAME"
    )
    return 0


def get_docstring(stage: Any) -> str:
    return inspect.getdoc(inspect.getmodule(stage.function)) or inspect.getdoc(stage.function) or ""


def _iterate_parameters(stage: Any) -> Iterator[tuple[str, str]]:
    """Yields a line for each parameter, with type, bounds and default, and its meaning."""
    descriptions = read_descriptions(stage.parameters)
    for name, field in stage.parameters.__pydantic_fields__.items():
        default = ", required" if field.is_required() else f" = {_format_default(field)}"
        line = f"{name}: {_format_type(field.annotation, field.metadata)}{default}"
        yield line, descriptions.get(name, "")


def reference() -> int:
    """Print every key of a pipeline's YAML and of a hosts file as Markdown.

    Each key has its type, its default, who may set it, and its meaning.
    """
    print(render_reference(), end="")
    return 0


def render_reference() -> str:
    """Renders the whole page."""
    sections: dict[str, list[list[str]]] = {"pipeline": []}
    for config_field in collect_fields(PipelineConfig).values():
        section, dot, key = config_field.key.partition(".")
        name = section.removesuffix("[]") if dot else "pipeline"
        if key not in TaskSection.model_fields:
            sections.setdefault(name, []).append(_list_cells(config_field))
    tasks = [_list_cells(each) for each in collect_fields(TaskSection).values()]
    shared = collect_fields(Hosts)
    launchers = {"all launchers": ("", _list_rows(Hosts, without=("launcher",)))}
    found, problems = find_sections()
    for launcher, model in found.items():
        rows = _list_rows(model, without=[key for key in shared if key != "launcher"])
        launchers[f"`launcher: {launcher}`"] = inspect.cleandoc(model.__doc__ or ""), rows
    for launcher, problem in problems.items():
        print(problem, file=sys.stderr)
        launchers[f"`launcher: {launcher}`"] = problem, []
    return render_template("reference.md", sections=sections, tasks=tasks, launchers=launchers)


def _list_rows(hosts: type[Hosts], without: Collection[str]) -> list[list[str]]:
    fields = collect_fields(hosts).items()
    return [_list_cells(each, is_owned=False) for key, each in fields if key not in without]


def _list_cells(config_field: ConfigField, is_owned: bool = True) -> list[str]:
    fields = config_field.fields
    types = dict.fromkeys(_format_type(field.annotation, field.metadata) for field in fields)
    if any(type(None) in typing.get_args(field.annotation) for field in fields):
        types["null"] = None
    default = _format_default(fields[0])
    owner = "author, always"
    if config_field.is_per_run:
        pattern = config_field.run_pattern_description
        owner = f"run ({pattern})" if pattern else "run"
    elif config_field.can_be_opened:
        owner = "author"
    name = config_field.key.rpartition(".")[2]
    texts = dict.fromkeys(
        " ".join(read_descriptions(section).get(name, "").split())
        for section in config_field.sections
    )
    marks = (
        "*Advanced.*" if config_field.is_advanced else "",
        "*Fingerprint.*" if config_field.selects_program else "",
    )
    cells = [
        f"`{config_field.key}`",
        f"`{' | '.join(types)}`",
        default if fields[0].is_required() else f"`{default}`",
        *([owner] if is_owned else []),
        " ".join(filter(None, [*marks, *texts])),
    ]
    return [cell.replace("|", "\\|") for cell in cells]


def _format_type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Formats a type with its bounds, such as `int, at least 1`. Leaves out null."""
    texts = [_format_plain_type(annotation)]
    for rule in metadata:
        for constraint, words in _CONSTRAINT_WORDS.items():
            if (bound := getattr(rule, constraint, None)) is not None:
                is_whole = isinstance(bound, float) and bound.is_integer()
                texts.append(f"{words} {int(bound) if is_whole else bound}")
    return ", ".join(texts)


def _format_plain_type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _format_type(arguments[0], getattr(arguments[1], "metadata", ()))
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        members = (each for each in arguments if each is not type(None))
        return " | ".join(dict.fromkeys(map(_format_type, members)))
    if origin in (tuple, list):
        number = "" if arguments[1:] in ((), (...,)) else f"{len(arguments)} "
        return f"list of {number}{_format_type(arguments[0])}"
    if origin is dict:
        return f"mapping of {_format_type(arguments[0])} to {_format_type(arguments[1])}"
    is_section = hasattr(annotation, "model_fields")
    return "section" if is_section else inspect.formatannotation(annotation).rpartition(".")[2]


def _format_default(field: FieldInfo) -> str:
    """Formats a default as in YAML, or returns `required`."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return value if isinstance(value, str) and value else json.dumps(value, default=str)
