"""A YAML's values as a checked section.

An error message has file, line, key, rule and the nearest valid name.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError

from pipeline_ops.config.base import Section
from pipeline_ops.config.entry_points import list_published_names
from pipeline_ops.config.type_messages import describe_problem, format_value
from pipeline_ops.config.user_source import CATALOGUE_TAG, ENTRY_POINT_GROUP
from pipeline_ops.config.yaml_source import ConfigText, suggest_name
from pipeline_ops.errors import ConfigError

_SectionT = TypeVar("_SectionT", bound=Section)


def validate_section(model: type[_SectionT], text: ConfigText) -> _SectionT:
    """Returns the section. Raises ConfigError with a line for each problem."""
    try:
        return model.model_validate(text.values)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(
                _describe(model, text, problem) for problem in error.errors(include_url=False)
            )
        ) from None


def _describe(model: type[Section], text: ConfigText, problem: Mapping[str, Any]) -> str:
    location, section = _strip_tags(model, problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            rule = f"unknown key; {_suggest_key(model, location, section)}"
        case "union_tag_invalid":
            location, known = (
                [*location, "type"],
                [tag.strip(" '") for tag in problem["ctx"]["expected_tags"].split(",")],
            )
            if location == ["preprocess", "source", "type"]:
                known += list_published_names(ENTRY_POINT_GROUP)
            rule = (
                f"unknown type {format_value(problem['ctx']['tag'])}; "
                f"{suggest_name(problem['ctx']['tag'], known)}"
            )
        case "union_tag_not_found":
            location, rule = [*location, "type"], "required, but not given"
        case "value_error":
            error = problem["ctx"]["error"]
            location, rule = [*location, *getattr(error, "location", ())], str(error)
        case _:
            rule = describe_problem(problem)
    key = ".".join(map(str, location))
    return f"{text.locate(location)}: {key + ': ' if key else ''}{rule}"


def _suggest_key(
    model: type[Section], location: Sequence[str | int], section: type[Section]
) -> str:
    """Suggests the location of an unknown key.

    The location is below this section, here in another spelling, or anywhere.
    """
    *here, name = map(str, location)
    paths = [path for path in _collect_paths(model) if path[-1] == name]
    below = [path for path in paths if list(path[: len(here)]) == here]
    if not below and difflib.get_close_matches(name, section.model_fields, n=1):
        return suggest_name(name, section.model_fields)
    found = [".".join(path) for path in below or paths][:3]
    return (
        f"did you mean {' or '.join(found)}?" if found else suggest_name(name, section.model_fields)
    )


@functools.cache
def _collect_paths(model: type[Section]) -> tuple[tuple[str, ...], ...]:
    """The keys of a section and of all sections in it. For list items, those of the first item."""
    found: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        found.append((name,))
        prefix = (name, "0") if get_origin(field.annotation) is list else (name,)
        found += [
            (*prefix, *path)
            for section in _iterate_sections(field.annotation)
            for path in _collect_paths(section)
        ]
    return tuple(dict.fromkeys(found))


def _iterate_sections(annotation: Any) -> Iterator[type[Section]]:
    """All Section classes inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from _iterate_sections(argument)


def _strip_tags(model: type[Section], location: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """Returns a location as in the YAML, and the class of the innermost section on the way there.

    Where several sections are possible, pydantic puts the value of their `type` into the location.
    """
    section: Any = model
    plain, parts = [], list(location)
    while parts:
        part = parts.pop(0)
        plain.append(part)
        field = None if isinstance(part, int) else section.model_fields.get(part)
        if field is not None and field.discriminator is not None and parts:
            tag = parts.pop(0)
            if tag == CATALOGUE_TAG and parts:
                tag = parts.pop(0)
            section = _find_member(field.annotation, str(tag))
        elif field is not None:
            section = next(_iterate_sections(field.annotation), section)
    return plain, section


def _find_member(annotation: Any, tag: str) -> type[Section]:
    """The section, among several, that a tag stands for. The last one may have any `type`."""
    members = list(_iterate_sections(annotation))
    return next(
        (member for member in members if tag in get_args(member.model_fields["type"].annotation)),
        members[-1],
    )
