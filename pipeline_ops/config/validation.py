"""Turns the values of a YAML into a checked section.

An error message has file, line, key, rule, value and the nearest valid name.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError

from pipeline_ops.config.fields import Section
from pipeline_ops.config.reading import ConfigText, suggest_name
from pipeline_ops.config.sources import CATALOGUE_TAG, ENTRY_POINT_GROUP, list_published_names
from pipeline_ops.errors import ConfigError

_MAX_SHOWN = 100
_MAX_LISTED = 4
"""The largest number of choices of which a message names all."""
_EXPECTED_KINDS = {
    "model_type": "a section ('key: value')",
    "dict_type": "a section ('key: value')",
    "list_type": "a list ('- item', or [a, b])",
}


def format_value(value: Any) -> str:
    """A value in the form of a message: quoted, and cut if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def describe_problem(problem: Mapping[str, Any]) -> str:
    """A sentence about one of the problems of pydantic's `ValidationError.errors()`."""
    kind, value, context = problem["type"], problem.get("input"), problem.get("ctx", {})
    if kind in ("missing", "missing_argument"):
        return "required, but not given"
    if kind == "literal_error":
        return _describe_choice(
            value, [name.strip("'") for name in re.split(r", | or ", context["expected"])]
        )
    if kind == "string_pattern_mismatch":
        return (
            f"must match the pattern {context['pattern']}, "
            f"got {format_value(value)}{_suggest_match(str(value), context['pattern'])}"
        )
    if kind in _EXPECTED_KINDS:
        hint = (
            f". Is a space missing after the colon in {format_value(value)}?"
            if _has_no_space(value)
            else ""
        )
        return f"must be {_EXPECTED_KINDS[kind]}, got {format_value(value)}{hint}"
    return f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {format_value(value)}"


def _describe_choice(value: Any, names: list[str]) -> str:
    if len(names) <= _MAX_LISTED or not isinstance(value, str):
        return f"must be one of {', '.join(names)}, got {format_value(value)}"
    return f"unknown name {format_value(value)}; {suggest_name(value, names)}"


def _has_no_space(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"[A-Za-z_][\w.-]*:\S", value) is not None


def _suggest_match(value: str, pattern: str) -> str:
    """Suggests a name that matches the pattern.

    Keras's `val_loss` is `validation_loss` here. The name of a pipeline has no capitals and no
    spaces.
    """
    return next(
        (
            f"; for example {name!r}"
            for name in _iterate_similar(value)
            if re.fullmatch(pattern, name)
        ),
        "",
    )


def _iterate_similar(value: str) -> Iterator[str]:
    yield f"validation_{value.removeprefix('val_')}"
    yield re.sub(r"[^a-z0-9_-]+", "_", value.lower()).strip("_-")


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
    plain, parts = [], [part for part in location if part != "[key]"]  # of a wrong key
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
