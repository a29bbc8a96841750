"""Parses JSON from outside a process into a validated value.

One bad file is one error with its place. The parser is pydantic's own. It limits depth and digits,
so a hostile text causes a ValidationError and never a RecursionError or minutes of work. The size
is limited where the file is opened.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from pipeline_ops.errors import DataError
from pipeline_ops.storage.safe_paths import read_below

MAX_RECORD_BYTES = 4 << 20
"""The size limit for a small file that one process writes and another one reads."""
_MAX_PROBLEMS = 3
Model = TypeVar("Model")


def parse_json_as(model: type[Model], content: bytes | str, place: object) -> Model:
    """Parses a JSON text into a value of `model`, a pydantic class.

    Raises:
      DataError: the text is not JSON, or does not fit the model. The message names the place.
    """
    try:
        return _adapter(model).validate_json(content)
    except ValidationError as error:
        raise DataError(f"{place}: not a valid {model.__name__}: {describe(error)}") from None


def read_json_as(
    model: type[Model], root: Path, path: str, max_bytes: int = MAX_RECORD_BYTES
) -> Model | None:
    """The value in a file below a trusted root, or None if there is no such file.

    Raises:
      DataError: the file is a link or too large, or its content does not fit the model.
      OSError: the disk failed.
    """
    try:
        content = read_below(root, path, max_bytes)
    except FileNotFoundError:
        return None
    return parse_json_as(model, content, root / path)


@functools.cache
def _adapter(model: type[Model]) -> TypeAdapter[Model]:
    return TypeAdapter(model)


def describe(error: ValidationError) -> str:
    """The first problems of a validation in one line, without the values, which may be large."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(map(str, problem['loc']))[:100]}: {problem['msg'][:200]}".removeprefix(": ")
        for problem in problems[:_MAX_PROBLEMS]
    ]
    more = len(problems) - _MAX_PROBLEMS
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
