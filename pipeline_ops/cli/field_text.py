"""The type, the bounds and the default of a field, in the words that authors of YAML files know."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic.fields import FieldInfo

_CONSTRAINT_WORDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "at least",
    "pattern": "matching",
}


def format_type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Formats a type with its bounds, such as `int, at least 1`. Leaves out null."""
    return ", ".join([_format_plain_type(annotation), *_format_bounds(metadata)])


def _format_plain_type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return format_type(arguments[0], getattr(arguments[1], "metadata", ()))
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        members = (each for each in arguments if each is not type(None))
        return " | ".join(dict.fromkeys(map(format_type, members)))
    if origin in (tuple, list):
        number = "" if arguments[1:] in ((), (...,)) else f"{len(arguments)} "
        return f"list of {number}{format_type(arguments[0])}"
    if origin is dict:
        return f"mapping of {format_type(arguments[0])} to {format_type(arguments[1])}"
    return inspect.formatannotation(annotation).rpartition(".")[2]


def _format_bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for rule in metadata:
        for constraint, words in _CONSTRAINT_WORDS.items():
            if (bound := getattr(rule, constraint, None)) is not None:
                is_whole = isinstance(bound, float) and bound.is_integer()
                yield f"{words} {int(bound) if is_whole else bound}"


def format_default(field: FieldInfo) -> str:
    """Formats a default as in YAML, or returns `required`."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return value if isinstance(value, str) and value else json.dumps(value, default=str)
