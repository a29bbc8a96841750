"""Pydantic's problems in plain words: the rule, the value, and the nearest valid one.

Used for the sections of a config, and for the parameters of stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline_ops.config.yaml_source import nearest

_MAX_SHOWN = 100
_FEW = 4
"""The largest number of choices of which a message names all."""
_KINDS = {
    "model_type": "a section ('key: value')",
    "dict_type": "a section ('key: value')",
    "list_type": "a list ('- item', or [a, b])",
}


def shown(value: Any) -> str:
    """A value in the form of a message: quoted, and cut if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def describe_type(problem: Mapping[str, Any]) -> str:
    """A sentence about one of the problems of pydantic's `ValidationError.errors()`."""
    kind, value, context = problem["type"], problem.get("input"), problem.get("ctx", {})
    if kind in ("missing", "missing_argument"):
        return "required, but not given"
    if kind == "literal_error":
        return _choice(
            value, [name.strip("'") for name in re.split(r", | or ", context["expected"])]
        )
    if kind == "string_pattern_mismatch":
        return (
            f"must match the pattern {context['pattern']}, "
            f"got {shown(value)}{_suggestion(value, context['pattern'])}"
        )
    if kind in _KINDS:
        hint = (
            f"; is a space missing after the colon in {shown(value)}?"
            if _lacks_space(value)
            else ""
        )
        return f"must be {_KINDS[kind]}, got {shown(value)}{hint}"
    return f"{problem['msg'][0].lower()}{problem['msg'][1:]}, got {shown(value)}"


def _choice(value: Any, names: list[str]) -> str:
    if len(names) <= _FEW or not isinstance(value, str):
        return f"must be one of {', '.join(names)}, got {shown(value)}"
    return f"unknown name {shown(value)}; {nearest(value, names)}"


def _lacks_space(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"[A-Za-z_][\w.-]*:\S", value) is not None


def _suggestion(value: str, pattern: str) -> str:
    """Suggests a name that matches the pattern.

    Keras's `val_loss` is `validation_loss` here. The name of a pipeline has no capitals and no
    spaces.
    """
    return next(
        (f"; for example {name!r}" for name in _similar(value) if re.fullmatch(pattern, name)), ""
    )


def _similar(value: str) -> Iterator[str]:
    yield f"validation_{value.removeprefix('val_')}"
    yield re.sub(r"[^a-z0-9_-]+", "_", value.lower()).strip("_-")
