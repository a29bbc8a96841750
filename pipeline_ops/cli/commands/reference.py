"""`trainyard reference`: every key of a pipeline's YAML and of a hosts file, as Markdown.

    trainyard reference > configs/REFERENCE.md

The keys come from the declarations of the config's classes.
"""

from __future__ import annotations

import argparse
import inspect
import typing
from collections.abc import Collection

from pipeline_ops.cli.arguments import Commands, add_command
from pipeline_ops.cli.field_text import format_default, format_type
from pipeline_ops.cli.templates import render_template
from pipeline_ops.config.fields import ConfigField, TaskSection, collect_fields, read_descriptions
from pipeline_ops.config.hosts import LAUNCHERS, Hosts
from pipeline_ops.config.pipeline import PipelineConfig


def add_parser(commands: Commands) -> None:
    add_command(commands, reference)


def reference(_: argparse.Namespace) -> int:
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
    for launcher, model in LAUNCHERS.items():
        rows = _list_rows(model, without=[key for key in shared if key != "launcher"])
        launchers[f"`launcher: {launcher}`"] = inspect.cleandoc(model.__doc__ or ""), rows
    return render_template("reference.md", sections=sections, tasks=tasks, launchers=launchers)


def _list_rows(hosts: type[Hosts], without: Collection[str]) -> list[list[str]]:
    fields = collect_fields(hosts).items()
    return [_list_cells(each, is_owned=False) for key, each in fields if key not in without]


def _list_cells(config_field: ConfigField, is_owned: bool = True) -> list[str]:
    fields = config_field.fields
    types = dict.fromkeys(format_type(field.annotation, field.metadata) for field in fields)
    if any(type(None) in typing.get_args(field.annotation) for field in fields):
        types["null"] = None
    default = format_default(fields[0])
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
