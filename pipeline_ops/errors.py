"""Errors as a tree of who must act, and the one table of exit codes.

    TrainyardError
    ├── ConfigError     the author of the YAML must act        exit 78, never retried
    ├── DataError       the owner of the data must act         exit 65, never retried
    ├── MachineError    nobody: another try may succeed        exit 75, retried
    └── Cancelled       a person or the scheduler stopped it   exit 143, never retried

Anything else that escapes a job is a bug of ours: exit 70, never retried. A job that leaves no exit status at all
(killed by signal 9, host gone) counts as a machine failure.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What a job's exit status says to its operator. The numbers are those of sysexits(3) where it has one."""

    SUCCESS = 0
    GATE_NOT_PASSED = 3
    DATA = 65
    BUG = 70
    RETRY = 75
    CONFIG = 78
    CANCELLED = 143

    @property
    def is_retried(self) -> bool:
        """Whether another attempt may end differently."""
        return self is ExitCode.RETRY

    @property
    def leaves_manifest(self) -> bool:
        """Whether a job that exits so has left a whole artifact."""
        return self in (ExitCode.SUCCESS, ExitCode.GATE_NOT_PASSED)


class TrainyardError(Exception):
    """Base of every error that we raise on purpose; the message says what to do."""

    exit_code = ExitCode.BUG


class ConfigError(TrainyardError):
    """The YAML, an override or a hosts file asks for something that can't be."""

    exit_code = ExitCode.CONFIG


class DataError(TrainyardError):
    """The raw data, or an artifact made from it, is not what the pipeline needs."""

    exit_code = ExitCode.DATA


class MachineError(TrainyardError):
    """A process, a host, a disk or a network failed. Trying again is right."""

    exit_code = ExitCode.RETRY


class Cancelled(TrainyardError):
    """Somebody stopped the job."""

    exit_code = ExitCode.CANCELLED


def error_of(exit_code: ExitCode, message: str) -> TrainyardError:
    """The error that another process has ended with."""
    kinds = {kind.exit_code: kind for kind in (ConfigError, DataError, MachineError, Cancelled)}
    return kinds.get(exit_code, TrainyardError)(message)
