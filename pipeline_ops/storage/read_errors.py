"""Errors of reading: their reason in one line, and whether a retry may help.

The reason omits TensorFlow's graph.
"""

from __future__ import annotations

import errno
import os
import re

from pydantic import ValidationError

from pipeline_ops.errors import DataError, ExitCode, MachineError, TrainyardError
from pipeline_ops.storage.parsing import describe

_PLACE = "[[{{node"
"""Follows the reason. The lines before the reason are headings and Python stacks."""
_OPERATION = re.compile(r"^{{function_node [^}]*}} | \[Op:\w+\].*$")
"""Surrounds the reason of an operation outside of any graph."""
_ASSERTION = "assertion failed: ["
_OF_THE_DISK = frozenset(
    {
        "PermissionDeniedError",
        "ResourceExhaustedError",
        "UnavailableError",
        "UnimplementedError",
        "UnknownError",
    }
)
"""TensorFlow's error types for EACCES, EPERM, ENOSPC, ENOSYS and EIO."""
_OF_THE_CONTENT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Errors of the operating system that no retry resolves."""
_REASONS = tuple(
    f"; {os.strerror(number)}"
    for number in (
        errno.EACCES,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENODEV,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOSYS,
        errno.ENOTCONN,
        errno.EPERM,
        errno.EREMOTEIO,
        errno.EROFS,
        errno.ESTALE,
        errno.ETIMEDOUT,
    )
)
"""Ends of TensorFlow's messages if the error type is not specific, as in restoring variables."""


def reason_of(error: Exception) -> str:
    """One line that says why an operation failed.

    It is the reason of an error in a graph, the problems of a record, or the first line of any
    other message.
    """
    if isinstance(error, ValidationError):
        return describe(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = next((index for index, line in enumerate(lines) if line.startswith(_PLACE)), 0)
    reason = _OPERATION.sub("", lines[max(0, place - 1)]) if lines else type(error).__name__
    return (
        reason.removeprefix(_ASSERTION).removesuffix("]")
        if reason.startswith(_ASSERTION)
        else reason
    )


def unreadable(message: str, error: Exception, cure: str = "") -> TrainyardError:
    """The error for a file that was whole when the job began.

    A disk failure is retried. Wrong content is not.

    Args:
      message: the file and its purpose.
      error: TensorFlow's error, or an OSError.
      cure: what to do about wrong content, with the separator before it.
    """
    if _is_of_the_disk(error):
        return MachineError(
            f"{message}: {reason_of(error)}; mend the disk or who may read it, then retry"
        )
    return DataError(f"{message}: {reason_of(error)}{cure}")


def _is_of_the_disk(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in _OF_THE_CONTENT
    return type(error).__name__ in _OF_THE_DISK or names_a_disk_error(error)


def exit_code_of(error: Exception) -> ExitCode:
    """The exit code of a process that this error has ended.

    Errors of the machine are retried. Any unexpected error is a bug.
    """
    if isinstance(error, TrainyardError):
        return error.exit_code
    return (
        ExitCode.RETRY
        if isinstance(error, OSError | MemoryError) or names_a_disk_error(error)
        else ExitCode.BUG
    )


def names_a_disk_error(error: Exception) -> bool:
    """Returns whether a line of the message ends with an error of the operating system.

    TensorFlow writes such lines: "/path/file; Input/output error".
    """
    return any(
        _OPERATION.sub("", line.strip()).endswith(_REASONS) for line in str(error).splitlines()
    )
