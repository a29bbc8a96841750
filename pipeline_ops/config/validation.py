"""Turns the values of a YAML into a checked section.

An error message has file, line, key, rule, value and the nearest valid name.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from pipeline_ops.config.fields import Section, collect_fields
from pipeline_ops.config.keras_words import find_cure
from pipeline_ops.config.reading import ConfigText, parse_value, suggest_name
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
    shown = format_value(value)
    if kind == "literal_error":
        names = [name.strip("'") for name in re.split(r", | or ", context["expected"])]
        if len(names) <= _MAX_LISTED or not isinstance(value, str):
            return f"must be one of {', '.join(names)}, got {shown}"
        # TensorFlow's class MirroredStrategy is `mirrored` here.
        name = value.rpartition(".")[2].removesuffix("Strategy").lower()
        return f"unknown name {shown}; {suggest_name(name, names)}"
    if kind == "string_pattern_mismatch":
        # Keras's `val_loss` is `validation_loss` here. A pipeline's name has no capitals or spaces.
        similar = (
            f"validation_{str(value).removeprefix('val_')}",
            re.sub(r"[^a-z0-9_-]+", "_", str(value).lower()).strip("_-"),
        )
        valid = [name for name in similar if re.fullmatch(context["pattern"], name)]
        example = f"; for example {valid[0]!r}" if valid else ""
        return f"must match the pattern {context['pattern']}, got {shown}{example}"
    if kind in _EXPECTED_KINDS:
        has_no_space = isinstance(value, str) and re.match(r"[A-Za-z_][\w.-]*:\S", value)
        hint = f". Is a space missing after the colon in {shown}?" if has_no_space else ""
        if value is None:
            hint = ". Give it a value, or leave the key out"
        return f"must be {_EXPECTED_KINDS[kind]}, got {shown}{hint}"
    return f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {shown}{_find_cure(kind, value)}"


def _find_cure(kind: str, value: Any) -> str:
    """What to write instead of a value that YAML reads as another type than its author."""
    if kind == "string_type" and isinstance(value, bool | int | float):
        return ". Put it in quotes"
    if kind == "bool_type":
        return ". Write true or false"
    if kind not in ("int_type", "float_type"):
        return ""
    if isinstance(value, float) and value.is_integer():
        return f". Write {int(value)}"
    if value == "None":
        return ". Write null, or leave the key out"
    if not isinstance(value, str):
        return ""
    with contextlib.suppress(ConfigError):
        if type(parse_value(value)) in (int, float):
            return ". Write it without quotes"
    return (
        f". Write {'a whole number such as 1000' if kind == 'int_type' else 'a number such as 0.9'}"
    )


_SectionT = TypeVar("_SectionT", bound=Section)


def validate_section(model: type[_SectionT], text: ConfigText) -> _SectionT:
    """Returns the section. Raises ConfigError with a line for each problem.

    Missing keys come last: one may be missing because its name is misspelt.
    """
    try:
        return model.model_validate(text.values, context=text.values)
    except ValidationError as error:
        problems = [
            problem
            for problem in error.errors(include_url=False)
            if problem["loc"][-1:] != ("str",)  # another type is allowed there, and says more
        ]
        problems.sort(key=lambda problem: problem["type"] == "missing")
        lines = [_describe(model, text, problem) for problem in problems]
        raise ConfigError("\n".join(lines)) from None


def _describe(model: type[Section], text: ConfigText, problem: Mapping[str, Any]) -> str:
    location, section = _strip_tags(model, problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            rule = f"unknown key; {_suggest_key(model, location, section)}"
            if (name := str(location[-1])) and not name.isprintable() or name != name.strip():
                rule += f". It has a character that is not shown, {name!a}: type it again"
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
            location, rule = [*location, *getattr(error, "key_path", ())], str(error)
        case "invalid_key":
            location = [*location[:-1], text.find_key(location[:-1], problem["input"])]
            rule = f"YAML reads this key as {problem['input']!r}. Put it in quotes, or remove it"
        case "model_type" if keys := _list_required(section, problem["input"]):
            example = ", ".join(f"{key}: ..." for key in keys)
            rule = f"must be a section with {example}, got {format_value(problem['input'])}"
        case _:
            rule = describe_problem(problem)
    key = ".".join(map(str, location))
    return f"{text.locate(location)}: {key + ': ' if key else ''}{rule}"


def _list_required(section: type[Section], value: Any) -> list[str]:
    """The required keys of a section for which a text was given. Empty if it begins with a key."""
    if not isinstance(value, str) or value.partition(":")[0] in section.model_fields:
        return []
    return [name for name, field in section.model_fields.items() if field.is_required()]


def _suggest_key(
    model: type[Section], location: Sequence[str | int], section: type[Section]
) -> str:
    """Suggests the location of an unknown key.

    The location is below this section, here in another spelling, or anywhere.
    """
    *here, name = map(str, location)
    keys = [key.replace("[]", ".0").split(".") for key in collect_fields(model)]
    paths = [key[: key.index(name) + 1] for key in keys if name in key]
    paths = [path for path in paths if path != [*here, name]]  # of another type of section
    below = [path for path in paths if path[: len(here)] == here]
    if here[:1] in ([], ["train"]) and (cure := find_cure(name)):
        return cure
    if not below and difflib.get_close_matches(name, section.model_fields, n=1):
        return suggest_name(name, section.model_fields)
    found = list(dict.fromkeys(".".join(path) for path in below or paths))[:3]
    return (
        f"did you mean {' or '.join(found)}?" if found else suggest_name(name, section.model_fields)
    )


def _iterate_sections(annotation: Any) -> Iterator[type[Section]]:
    """All Section classes inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from _iterate_sections(argument)


def _strip_tags(model: type[Section], location: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """Returns a location as in the YAML, and the class of the innermost section on the way there.

    Where several sections are possible, pydantic puts the value of their `type` into the location.
    A part in brackets is none of the YAML: pydantic's `[key]` of a wrong key, and our own tags.
    """
    section: Any = model
    plain, parts = [], [part for part in location if not re.fullmatch(r"\[.+\]", str(part))]
    while parts:
        part = parts.pop(0)
        plain.append(part)
        field = None if isinstance(part, int) else section.model_fields.get(part)
        if field is not None and field.discriminator is not None and parts:
            tag = parts.pop(0)
            if tag == CATALOGUE_TAG and parts:
                tag = parts.pop(0)
            members = list(_iterate_sections(field.annotation))
            known = {
                name: member
                for member in members
                for name in get_args(member.model_fields["type"].annotation)
            }
            section = known.get(tag, members[-1])  # the last one may have any `type`
        elif field is not None:
            section = next(_iterate_sections(field.annotation), section)
            if parts[:1] == [section.__name__]:  # one of several types
                parts.pop(0)
    return plain, section
