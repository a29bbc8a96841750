"""Pydantic's problems in plain words: the rule, the value, and the nearest valid one.

Used for the sections of a config, and for the parameters of stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline_ops.config.yaml_source import suggest_name

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
