"""The explanation of an error by a process or a task: the message, its cure, and the place.

It comes from processes that run the author's code, so the sizes of all texts are limited.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pipeline_ops.errors import CodeLocation, TrainyardError, make_error

MAX_SOURCE_LINES, MAX_LINE_CHARS = 7, 200
_MAX_PATH, _MAX_CURE = 4096, 10_000


def _check_size(location: CodeLocation) -> CodeLocation:
    texts = (location.file, location.function, location.folder)
    is_small = len(location.source) <= MAX_SOURCE_LINES and all(
        len(line) <= MAX_LINE_CHARS for line in location.source
    )
    if not is_small or any(len(text) > _MAX_PATH for text in texts):
        raise ValueError(f"at most {MAX_SOURCE_LINES} lines of {MAX_LINE_CHARS} characters")
    return location


class Explanation(BaseModel):
    """The fields of a `Status` and of a `TaskRecord` that explain an error to a person."""

    model_config = ConfigDict(frozen=True)

    message: str = ""
    """The whole message, with the cure as its last sentences."""
    cure: str = Field("", max_length=_MAX_CURE)
    """What a person must do, as sentences. Empty if the message does not have it apart."""
    location: Annotated[CodeLocation, AfterValidator(_check_size)] | None = None
    """The line of the author's code that has raised the error."""

    place: str = Field("", max_length=_MAX_PATH)
    """The process of a gang and its step, with which the message begins. Empty for other jobs."""

    @property
    def problem(self) -> str:
        """The message without its cure and without a full stop."""
        text = self.message.rstrip()
        return text.removesuffix(self.cure).rstrip().removesuffix(".") if self.cure else text

    @property
    def cause(self) -> str:
        """The problem without the place."""
        return self.problem.removeprefix(f"{self.place}: ") if self.place else self.problem

    def restore_error(self, exit_code: int) -> TrainyardError:
        return make_error(exit_code, self.problem, self.cure, self.location)
