"""Errors by the person who must act, and the table of exit codes.

    TrainyardError
    ├── ConfigError     the author of the YAML must act       exit 78, never retried
    ├── DataError       the owner of the data must act        exit 65, never retried
    ├── OutOfDate       another version came into service     exit 5, never retried
    ├── MachineError    no action: another try may succeed    exit 75, retried
    ├── Pruned          the search gave the trial up          exit 4, never retried
    └── Cancelled       a user or the scheduler stopped it    exit 143, never retried

Any other error that escapes a job is a bug of ours: exit 70, never retried. A job that leaves no
exit status at all (killed by signal 9, host gone) counts as a machine failure.
"""

from __future__ import annotations

import dataclasses
import enum


class ExitCode(enum.IntEnum):
    """The meaning of a job's exit status for its operator.

    The numbers are those of sysexits(3) if it defines one.
    """

    SUCCESS = 0
    GATE_NOT_PASSED = 3
    PRUNED = 4
    OUT_OF_DATE = 5
    DATA = 65
    BUG = 70
    RETRY = 75
    CONFIG = 78
    CANCELLED = 143

    @property
    def is_retried(self) -> bool:
        """Returns whether another attempt may end differently."""
        return self is ExitCode.RETRY

    @property
    def leaves_manifest(self) -> bool:
        """Returns whether a job with this exit code has left a whole artifact."""
        return self in (ExitCode.SUCCESS, ExitCode.GATE_NOT_PASSED)


@dataclasses.dataclass(frozen=True)
class CodeLocation:
    """The line of the author's code at which an error was raised, with its neighbours."""

    file: str
    """The path relative to `folder`."""
    line: int
    """The number of the line, from 1."""
    function: str = ""
    """The function, or "" for the top of the module."""
    folder: str = ""
    """The author's folder of the file, as an absolute path of the host."""
    source: tuple[str, ...] = ()
    """A few lines, of which `line` is one. Empty if the file cannot be read."""
    first_line: int = 1
    """The number of the first line of `source`."""


class TrainyardError(Exception):
    """Base of every error that we raise on purpose. The message contains the remedy.

    It has no `__init__`: from inside a traced function, AutoGraph can then raise it again.

    Args:
      problem: the wrong value, where it is, and the remedy unless `cure` has it.
      cure: the remedy, which `trainyard doctor` shows apart. It is added to the message. Optional.
    """

    exit_code = ExitCode.BUG
    location: CodeLocation | None = None
    """The line of the author's code that has caused it, once `import_as_planned` has looked."""
    place: str = ""
    """The process of a gang and its step, if the message begins with them and a colon."""

    @property
    def problem(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def cure(self) -> str:
        return str(self.args[1]) if len(self.args) > 1 else ""

    def add_location(self, where: str) -> None:
        """Lets the message begin with where the error is, such as a key of the config."""
        self.args = (f"{where}: {self.problem}", *self.args[1:])

    def __str__(self) -> str:
        return f"{self.problem}. {self.cure}" if self.cure else self.problem


class ConfigError(TrainyardError):
    """The YAML, an override or a hosts file requests something impossible."""

    exit_code = ExitCode.CONFIG


class DataError(TrainyardError):
    """The raw data, or an artifact made from them, do not meet the pipeline's requirements."""

    exit_code = ExitCode.DATA


class OutOfDate(TrainyardError):
    """The version in service is not the one that a version was compared with."""

    exit_code = ExitCode.OUT_OF_DATE


class MachineError(TrainyardError):
    """A process, a host, a disk or a network failed. A retry may succeed."""

    exit_code = ExitCode.RETRY


class OutOfMemory(MachineError):
    """A device has no memory left for a step of a training. Smaller parts of a batch may fit."""


class Pruned(TrainyardError):
    """The pruner of a search stopped a trial, which is no failure. It leaves no artifact."""

    exit_code = ExitCode.PRUNED


class Cancelled(TrainyardError):
    """A user or the scheduler stopped the job."""

    exit_code = ExitCode.CANCELLED


def make_error(
    exit_code: int, problem: str, cure: str = "", location: CodeLocation | None = None
) -> TrainyardError:
    """The error for another process's exit code and message."""
    kinds: dict[int, type[TrainyardError]] = {
        kind.exit_code: kind
        for kind in (ConfigError, DataError, OutOfDate, MachineError, Cancelled)
    }
    kind = kinds.get(exit_code, TrainyardError)
    error = kind(problem, cure) if cure else kind(problem)
    error.location = location
    return error
