"""`trainyard reference`: every key of a pipeline's YAML, as Markdown.

    trainyard reference > configs/REFERENCE.md

The keys come from the declarations of the config's classes.
"""

from __future__ import annotations

import argparse
import json
import typing
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from pipeline_ops.config.fields import ConfigField, leaves_of
from pipeline_ops.config.pipeline import PipelineConfig

_HEAD = """# Reference of a pipeline's YAML

Made by `trainyard reference` from the declarations in `pipeline_ops/config/`. Do not edit it by hand.

The column "set by" says who may set a key:

- **run**: a single run may set it, in the trigger form, over REST, and by `trainyard run --set`.
- **author**: only the YAML sets it. The author may open it to runs under `per_run`, with the values that he allows.
- **author, always**: only the YAML sets it, and it cannot be opened.

`trainyard run --set` belongs to the author: it may set any key, except those of the DAG itself.
`[]` stands for the items of a list.
"""  # noqa: E501
_TABLE = ("| key | type | default | set by | meaning |", "|---|---|---|---|---|")
_TYPES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "anything",
}


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "reference",
        help="print every key of a pipeline's YAML",
        description="Prints every key of a pipeline's YAML as "
        "Markdown: its type, its default, who may set it, and what it means.",
    )
    parser.set_defaults(command=reference)


def reference(_: argparse.Namespace) -> int:
    print(reference_page(), end="")
    return 0


def reference_page() -> str:
    """The whole page."""
    leaves = leaves_of(PipelineConfig).values()
    parts = [_HEAD]
    for part in sorted(
        set(map(_part_of, leaves)), key=["pipeline", *PipelineConfig.model_fields].index
    ):
        rows = [_row(leaf) for leaf in leaves if _part_of(leaf) == part]
        parts.append("\n".join([f"\n## {part}\n", *_TABLE, *rows, ""]))
    return "".join(parts)


def _part_of(leaf: ConfigField) -> str:
    """The heading of a key: its first section. Keys of the whole pipeline share one heading."""
    return leaf.key.partition(".")[0].removesuffix("[]") if "." in leaf.key else "pipeline"


def _row(leaf: ConfigField) -> str:
    types = dict.fromkeys(name for field in leaf.fields for name in _types_of(field.annotation))
    if "null" in types:
        types = {**{name: None for name in types if name != "null"}, "null": None}
    cells = (
        f"`{leaf.key}`",
        " or ".join(types),
        _default_of(leaf.fields[0]),
        _owner_of(leaf),
        _meaning_of(leaf),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _types_of(annotation: Any) -> Iterator[str]:
    """The names of the types that an annotation allows, or the values of a choice."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _TYPES:
        yield _TYPES[annotation]
    elif origin is typing.Literal:
        yield from (f"`{value}`" for value in arguments)
    elif origin is typing.Annotated:
        yield from _types_of(arguments[0])
    elif origin is list:
        yield f"list of {' or '.join(_types_of(arguments[0]))}"
    elif origin is dict:
        yield "mapping"
    else:
        for member in arguments:
            yield from _types_of(member)


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return f"`{json.dumps(field.default)}`"


def _owner_of(leaf: ConfigField) -> str:
    if leaf.is_per_run:
        return f"run ({leaf.run_words})" if leaf.run_words else "run"
    return (
        "author"
        if leaf.kind == "scalar" and not leaf.fixed and not leaf.is_in_list
        else "author, always"
    )


def _meaning_of(leaf: ConfigField) -> str:
    texts = dict.fromkeys(" ".join((field.description or "").split()) for field in leaf.fields)
    return " ".join(filter(None, texts))
