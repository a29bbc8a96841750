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

from pipeline_ops.config.base import Section

Kind = Literal["scalar", "list", "mapping"]


@dataclasses.dataclass(frozen=True)
class ConfigField:
    """One field that is not a section.

    Attributes:
      key: dotted, as in `--set`. `[]` stands for the items of a list of sections:
        `notify[].events`.
      fields: the field in each of the sections that may stand at this place.
      is_operational: the value cannot change the result.
      is_per_run: a run may set it.
      rank: the position at the top of the form, for fields that change often. 0 for the rest.
      fixed: the reason why a run can never set it. Empty if the author may open it.
      is_path: a path or a URI, for which `per_run` takes globs.
      run_pattern: the values that a run may set it to. Empty for any valid value.
      run_words: a description of `run_pattern` in words.
    """

    key: str
    kind: Kind
    fields: tuple[FieldInfo, ...]
    is_operational: bool
    is_per_run: bool
    rank: int
    fixed: str
    is_path: bool
    run_pattern: str
    run_words: str

    @property
    def is_in_list(self) -> bool:
        return "[]" in self.key

    def takes(self, value: Any) -> bool:
        """Returns whether the value has the type and the bounds of one of the fields."""
        return any(_is_valid(field, value) for field in self.fields)


@functools.cache
def leaves_of(model: type[Section]) -> Mapping[str, ConfigField]:
    """All leaves by key, in the order of the classes."""
    found: dict[str, ConfigField] = {}
    for leaf in _walk(model, "", {}):
        twin = found.get(leaf.key)
        found[leaf.key] = (
            dataclasses.replace(twin, fields=(*twin.fields, *leaf.fields)) if twin else leaf
        )
    return found


def value_at(config: Section, key: str) -> Any:
    """The value of a leaf. None if the section that holds it is null or of another type."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _walk(
    section: type[Section], prefix: str, inherited: Mapping[str, Any]
) -> Iterator[ConfigField]:
    for name, field in section.model_fields.items():
        marks = {**(field.json_schema_extra or {}), **inherited}
        passed_on = {
            mark: value for mark, value in marks.items() if mark in ("operational", "fixed")
        }
        members = list(_members(field.annotation))
        sections = [member for member in members if _is_section(member)]
        items = [
            item
            for member in members
            if typing.get_origin(member) is list
            for item in _members(typing.get_args(member)[0])
        ]
        for inner in sections:
            yield from _walk(inner, f"{prefix}{name}.", passed_on)
        for inner in filter(_is_section, items):
            yield from _walk(inner, f"{prefix}{name}[].", passed_on)
        if not sections and not any(map(_is_section, items)):
            yield _leaf(f"{prefix}{name}", members, field, marks)


def _leaf(key: str, members: list[Any], field: FieldInfo, marks: Mapping[str, Any]) -> ConfigField:
    origins = {typing.get_origin(member) for member in members}
    kind: Kind = "list" if list in origins else "mapping" if dict in origins else "scalar"
    return ConfigField(
        key,
        kind,
        (field,),
        bool(marks.get("operational")),
        bool(marks.get("per_run")),
        marks.get("rank", 0),
        marks.get("fixed", ""),
        bool(marks.get("path")),
        marks.get("run_pattern", ""),
        marks.get("run_words", ""),
    )


def _members(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
    elif annotation is not type(None):
        yield annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _is_valid(field: FieldInfo, value: Any) -> bool:
    annotation = (
        typing.Annotated[(field.annotation, *field.metadata)]
        if field.metadata
        else field.annotation
    )
    try:
        TypeAdapter(annotation, config=ConfigDict(strict=True)).validate_python(value)
    except ValueError:
        return False
    return True
