"""`trainyard reference`: every key of a pipeline's YAML and of a hosts file, as Markdown.

    trainyard reference > configs/REFERENCE.md

The keys come from the declarations of the config's classes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.config.fields import ConfigField, collect_fields, read_descriptions
from pipeline_ops.config.hosts import LAUNCHERS
from pipeline_ops.config.pipeline import PipelineConfig

_HEAD = """# Reference of a pipeline's YAML

Made by `trainyard reference` from the declarations in `pipeline_ops/config/`. Do not edit it by hand.

The column "set by" names who may set a key:

- **run**: a single run may set it, in the trigger form, over REST, and by `trainyard run --set`.
- **author**: only the YAML sets it. The author may open it to runs under `per_run`, with the values that are allowed.
- **author, always**: only the YAML sets it, and it cannot be opened.

`trainyard run --set` belongs to the author: it may set any key, except those of the DAG itself.
`[]` stands for the items of a list. *Advanced* marks keys that few pipelines need and no shipped config sets.

The keys of a hosts file, which `train.hosts` and `runs_on` name, are at the [end](#hosts-files).
"""  # noqa: E501
_HOSTS_HEAD = """
## Hosts files

`hosts/NAME.yaml` next to the pipeline's YAML, for `train.hosts: NAME` and `runs_on: NAME`
([where jobs run](../docs/where-jobs-run.md)). Each launcher has keys of its own.

*Fingerprint* marks keys that select the code of a job: after a change, its task runs again. Other
keys can't change the result. With `runs_on`, a job has one host, so the numbers of hosts and
workers have no effect.
"""
_COLUMNS = ("key", "type", "default", "set by", "meaning")
_HOSTS_COLUMNS = ("key", "type", "default", "meaning")
_TYPES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}


def add_parser(commands: Commands) -> None:
    add_command(
        commands,
        "reference",
        reference,
        "Print every key of a pipeline's YAML and of a hosts file as Markdown.",
        "Each key has its type, its default, who may set it, and its meaning.",
    )


def reference(_: argparse.Namespace) -> int:
    print(render_reference(), end="")
    return 0


def render_reference() -> str:
    """The whole page."""
    config_fields = collect_fields(PipelineConfig).values()
    page_parts = [_HEAD]
    for section in sorted(
        set(map(_get_section, config_fields)), key=["pipeline", *PipelineConfig.model_fields].index
    ):
        rows = [each for each in config_fields if _get_section(each) == section]
        page_parts.append(f"\n## {section}\n{_format_table(rows, _COLUMNS)}")
    page_parts.append(_HOSTS_HEAD)
    for launcher, model in LAUNCHERS.items():
        rows = list(collect_fields(model).values())
        text = inspect.cleandoc(model.__doc__ or "")
        table = _format_table(rows, _HOSTS_COLUMNS)
        page_parts.append(f"\n### `launcher: {launcher}`\n\n{text}\n{table}")
    return "".join(page_parts)


def _format_table(config_fields: Iterable[ConfigField], columns: Sequence[str]) -> str:
    head = f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    rows = (_list_cells(each, columns) for each in config_fields)
    return head + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _get_section(config_field: ConfigField) -> str:
    """The heading of a key: its first section. Keys of the whole pipeline share one heading."""
    return (
        config_field.key.partition(".")[0].removesuffix("[]")
        if "." in config_field.key
        else "pipeline"
    )


def _list_cells(config_field: ConfigField, columns: Sequence[str]) -> list[str]:
    types = dict.fromkeys(
        name for field in config_field.fields for name in _list_types(field.annotation)
    )
    if "null" in types:
        types = {**{name: None for name in types if name != "null"}, "null": None}
    cells = {
        "key": f"`{config_field.key}`",
        "type": " or ".join(types),
        "default": _format_default(config_field.fields[0]),
        "set by": _format_owner(config_field),
        "meaning": _format_description(config_field),
    }
    return [cells[column].replace("|", "\\|") for column in columns]


def _list_types(annotation: Any) -> Iterator[str]:
    """The names of the types that an annotation allows, or the values of a choice."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        yield _TYPES[annotation]
    elif origin is typing.Literal:
        yield from (f"`{value}`" for value in arguments)
    elif origin is typing.Annotated:
        yield from _list_types(arguments[0])
    elif origin is list:
        yield f"list of {' or '.join(_list_types(arguments[0]))}"
    elif origin is dict:
        yield "mapping"
    else:
        for member in arguments:
            yield from _list_types(member)


def _format_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return f"`{json.dumps(field.default)}`"


def _format_owner(config_field: ConfigField) -> str:
    if config_field.is_per_run:
        return (
            f"run ({config_field.run_pattern_description})"
            if config_field.run_pattern_description
            else "run"
        )
    return (
        "author"
        if config_field.kind == "scalar" and not config_field.fixed and not config_field.is_in_list
        else "author, always"
    )


def _format_description(config_field: ConfigField) -> str:
    name = config_field.key.rpartition(".")[2]
    texts = dict.fromkeys(
        " ".join(read_descriptions(section).get(name, "").split())
        for section in config_field.sections
    )
    marks = (
        "*Advanced.*" if config_field.is_advanced else "",
        "*Fingerprint.*" if config_field.selects_program else "",
    )
    return " ".join(filter(None, [*marks, *texts]))
