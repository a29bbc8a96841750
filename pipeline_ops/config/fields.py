"""Every field of a config as one flat table: dotted key, kind, and declarations.

The trigger form, the check of a run's conf, the check of `per_run` and the reference read only this
table.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo

from pipeline_ops.config.base import Declarations, Section, get_declarations

Kind = Literal["scalar", "list", "mapping"]
_INHERITED = frozenset({"is_operational", "fixed", "is_advanced", "selects_program"})
"""The declarations of a section that hold for all fields in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigField(Declarations):
    """One field that is not a section, with its declarations.

    Attributes:
      key: dotted, as in `--set`. `[]` stands for the items of a list of sections:
        `notify[].events`.
      fields: the field in each of the sections that may have this key.
      sections: these sections, in the same order.
    """

    key: str
    kind: Kind
    fields: tuple[FieldInfo, ...]
    sections: tuple[type[Section], ...]

    @property
    def is_in_list(self) -> bool:
        return "[]" in self.key

    def accepts(self, value: Any) -> bool:
        """Returns whether the value has the type and the bounds of one of the fields."""
        return any(_is_valid(field, value) for field in self.fields)


@functools.cache
def collect_fields(model: type[Section]) -> Mapping[str, ConfigField]:
    """All leaves by key, in the order of the classes."""
    found: dict[str, ConfigField] = {}
    for leaf in _iterate_fields(model, "", {}):
        existing = found.get(leaf.key)
        found[leaf.key] = (
            dataclasses.replace(
                existing,
                fields=(*existing.fields, *leaf.fields),
                sections=(*existing.sections, *leaf.sections),
            )
            if existing
            else leaf
        )
    return found


def get_value(config: Section, key: str) -> Any:
    """The value of a leaf. None if the section that holds it is null or of another type."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _iterate_fields(
    section: type[Section], prefix: str, inherited: Mapping[str, Any]
) -> Iterator[ConfigField]:
    for name, field in section.model_fields.items():
        declarations = {**get_declarations(field), **inherited}
        passed_down = {name: declarations[name] for name in _INHERITED & declarations.keys()}
        members = list(_iterate_members(field.annotation))
        sections = [member for member in members if _is_section(member)]
        items = [
            item
            for member in members
            if typing.get_origin(member) is list
            for item in _iterate_members(typing.get_args(member)[0])
        ]
        for inner in sections:
            yield from _iterate_fields(inner, f"{prefix}{name}.", passed_down)
        for inner in filter(_is_section, items):
            yield from _iterate_fields(inner, f"{prefix}{name}[].", passed_down)
        if not sections and not any(map(_is_section, items)):
            origins = {typing.get_origin(member) for member in members}
            kind: Kind = "list" if list in origins else "mapping" if dict in origins else "scalar"
            yield ConfigField(
                key=f"{prefix}{name}",
                kind=kind,
                fields=(field,),
                sections=(section,),
                **declarations,
            )


def _iterate_members(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _iterate_members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _iterate_members(member)
    elif annotation is not type(None):
        yield annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _is_valid(field: FieldInfo, value: Any) -> bool:
    annotation: Any = field.annotation
    if field.metadata:
        annotation = typing.Annotated[(annotation, *field.metadata)]
    try:
        TypeAdapter(annotation, config=ConfigDict(strict=True)).validate_python(value)
    except ValueError:
        return False
    return True
