"""A YAML's values as a checked section; what is wrong is told with file, line, key, rule and the nearest valid name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from pipeline_ops.contracts.config_text import ConfigText, nearest
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.section import Section

_Checked = TypeVar("_Checked", bound=Section)


def checked(model: type[_Checked], text: ConfigText) -> _Checked:
    """Raises ConfigError with a line for each thing that is wrong."""
    try:
        return model.model_validate(text.values)
    except ValidationError as error:
        raise ConfigError("\n".join(_describe(model, text, problem) for problem in error.errors(include_url=False))) from None


def _describe(model: type[Section], text: ConfigText, problem: Mapping[str, Any]) -> str:
    location, section = _without_tags(model, problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            rule = f"unknown key; {nearest(str(location[-1]), section.model_fields)}"
        case "union_tag_invalid":
            location, known = [*location, "type"], [tag.strip(" '") for tag in problem["ctx"]["expected_tags"].split(",")]
            rule = f"unknown type {problem['ctx']['tag']!r}; {nearest(problem['ctx']['tag'], known)}"
        case "union_tag_not_found":
            location, rule = [*location, "type"], "required, but not given"
        case "missing":
            rule = "required, but not given"
        case "value_error":
            rule = str(problem["ctx"]["error"])
        case _:
            rule = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {problem['input']!r}"
    key = ".".join(map(str, location))
    return f"{text.place(location)}: {key + ': ' if key else ''}{rule}"


def _without_tags(model: type[Section], location: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """A place as the YAML has it, and the class of the innermost section on the way there.

    Where several sections are possible, pydantic puts the value of their `type` into the place.
    """
    section: Any = model
    plain, parts = [], list(location)
    while parts:
        part = parts.pop(0)
        plain.append(part)
        field = None if isinstance(part, int) else section.model_fields.get(part)
        if field is not None and field.discriminator and parts:
            section = _member(field, parts.pop(0))
        elif field is not None:
            section = _section_of(field.annotation) or section
    return plain, section


def _member(field: FieldInfo, tag: str) -> type[Section]:
    """The section among several that a tag stands for."""
    return next(member for member in get_args(field.annotation) if tag in get_args(member.model_fields[field.discriminator].annotation))


def _section_of(annotation: Any) -> type[Section] | None:
    """The Section class inside `X`, `X | None`, `list[X]` or `Annotated[X, ...]`; None for anything else."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _section_of(argument))), None)
