"""Parses JSON from outside a process into a validated value.

One bad file is one error with its source. The parser is pydantic's own. It limits depth and digits,
so a hostile text causes a ValidationError and never a RecursionError or minutes of work. The size
is limited where the file is opened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from pipeline_ops.errors import DataError
from pipeline_ops.storage.store_path import MAX_RECORD_BYTES, StorePath

_MAX_PROBLEMS = 3
Model = TypeVar("Model")
_make_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


class JsonModel(BaseModel):
    """Base of the values that are written as JSON and read again.

    A float that is not finite is written as the text "NaN", "Infinity" or "-Infinity", which a
    field of the type float reads back. Pydantic's default is null, which it refuses to read.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")


def parse_json_as(model: type[Model], content: bytes | str, source: object) -> Model:
    """Parses a JSON text into a value of `model`, a pydantic class.

    Raises DataError with the source if the text is not JSON or does not fit the model.
    """
    try:
        value: Model = _make_adapter(model).validate_json(content)
        return value
    except ValidationError as error:
        raise DataError(
            f"{source}: not a valid {model.__name__}: {describe_validation_error(error)}"
        ) from None


def read_json_as(
    model: type[Model], file: StorePath, max_bytes: int = MAX_RECORD_BYTES
) -> Model | None:
    """The value in a file, or None if there is no such file.

    Raises DataError if it is a link or too large, or its content does not fit the model.
    """
    try:
        content = file.read(max_bytes)
    except FileNotFoundError:
        return None
    return parse_json_as(model, content, file)


def describe_validation_error(error: ValidationError) -> str:
    """The first problems of a validation in one line, without the values, which may be large."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(map(str, problem['loc']))[:100]}: {problem['msg'][:200]}".removeprefix(": ")
        for problem in problems[:_MAX_PROBLEMS]
    ]
    more = len(problems) - _MAX_PROBLEMS
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
