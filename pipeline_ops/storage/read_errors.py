"""Errors of reading: their reason in one line, and whether a retry may help.

The reason omits TensorFlow's graph.
"""

from __future__ import annotations

import errno
import os
import re

from pydantic import ValidationError

from pipeline_ops.errors import DataError, ExitCode, MachineError, TrainyardError
from pipeline_ops.storage.parsing import describe_validation_error

_NODE_PREFIX = "[[{{node"
"""Follows the reason. The lines before the reason are headings and Python stacks."""
_OPERATION = re.compile(r"^{{function_node [^}]*}} | \[Op:\w+\].*$")
"""Surrounds the reason of an operation outside of any graph."""
_ASSERTION_PREFIX = "assertion failed: ["
_DISK_ERROR_TYPES = frozenset(
    {
        "PermissionDeniedError",
        "ResourceExhaustedError",
        "UnavailableError",
        "UnimplementedError",
        "UnknownError",
    }
)
"""TensorFlow's error types for EACCES, EPERM, ENOSPC, ENOSYS and EIO."""
_CONTENT_ERRNOS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Errors of the operating system that no retry resolves."""
_DISK_ERROR_SUFFIXES = tuple(
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


def summarize_error(error: Exception) -> str:
    """The reason of a failed operation in one line.

    It is the reason of an error in a graph, the problems of a record, or the first line of any
    other message.
    """
    if isinstance(error, ValidationError):
        return describe_validation_error(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    node_line = next(
        (index for index, line in enumerate(lines) if line.startswith(_NODE_PREFIX)), 0
    )
    reason = _OPERATION.sub("", lines[max(0, node_line - 1)]) if lines else type(error).__name__
    return (
        reason.removeprefix(_ASSERTION_PREFIX).removesuffix("]")
        if reason.startswith(_ASSERTION_PREFIX)
        else reason
    )


def make_read_error(message: str, error: Exception, remedy: str = "") -> TrainyardError:
    """The error for a file that was whole when the job began.

    A disk failure is retried. Wrong content is not.

    Args:
      message: the file and its purpose.
      error: TensorFlow's error, or an OSError.
      remedy: what to do about wrong content, with the separator before it.
    """
    if _is_disk_error(error):
        return MachineError(
            f"{message}: {summarize_error(error)}. "
            "Repair the disk or the file's permissions, then retry."
        )
    return DataError(f"{message}: {summarize_error(error)}{remedy}")


def _is_disk_error(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in _CONTENT_ERRNOS
    return type(error).__name__ in _DISK_ERROR_TYPES or has_disk_error_message(error)


def to_exit_code(error: Exception) -> ExitCode:
    """The exit code of a process that this error has ended.

    Errors of the machine are retried. Any unexpected error is a bug.
    """
    if isinstance(error, TrainyardError):
        return error.exit_code
    return (
        ExitCode.RETRY
        if isinstance(error, OSError | MemoryError) or has_disk_error_message(error)
        else ExitCode.BUG
    )


def has_disk_error_message(error: Exception) -> bool:
    """Returns whether a line of the message ends with an error of the operating system.

    TensorFlow writes such lines: "/path/file; Input/output error".
    """
    return any(
        _OPERATION.sub("", line.strip()).endswith(_DISK_ERROR_SUFFIXES)
        for line in str(error).splitlines()
    )
