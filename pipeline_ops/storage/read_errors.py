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
_OPERATION = re.compile(
    r"^{{function_node [^}]*}} | \[Op:\w+\].*$|Error in user-defined function .* iterator: \S+: "
)
"""Surrounds the reason of an operation outside of any graph, or in a data set's function."""
_ASSERTION_PREFIX = "assertion failed: ["
_DISK_ERROR_TYPES = frozenset(
    f"{name}Error"
    for name in ("PermissionDenied", "ResourceExhausted", "Unavailable", "Unimplemented", "Unknown")
)
"""TensorFlow's error types for EACCES, EPERM, ENOSPC, ENOSYS and EIO."""
_CONTENT_ERRNOS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}
)
"""Errors of the operating system that no retry resolves. EINVAL is that of a damaged zip archive,
whose directory leads to a place before its beginning."""
_DISK_ERRNOS = (
    "EACCES EAGAIN EBUSY EDQUOT EINTR EIO EMFILE ENFILE ENODEV ENOMEM ENOSPC ENOSYS ENOTCONN EPERM "
    "EREMOTEIO EROFS ESTALE ETIMEDOUT"
)
_DISK_ERROR_SUFFIXES = tuple(
    f"; {os.strerror(getattr(errno, name))}" for name in _DISK_ERRNOS.split()
)
"""Ends of TensorFlow's messages if the error type is not specific, as in restoring variables."""


def summarize_error(error: Exception) -> str:
    """The reason of an error in a graph, the problems of a record, or else the first line."""
    if isinstance(error, ValidationError):
        return describe_validation_error(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    nodes = (index for index, line in enumerate(lines) if line.startswith(_NODE_PREFIX))
    line = lines[max(0, next(nodes, 0) - 1)] if lines else type(error).__name__
    reason = _OPERATION.sub("", line)
    if reason.startswith(_ASSERTION_PREFIX):
        reason = reason.removeprefix(_ASSERTION_PREFIX).removesuffix("]")
    return reason


def make_read_error(message: str, error: Exception, remedy: str = "") -> TrainyardError:
    """The error for a file that was whole when the job began, from TensorFlow's or an OSError.

    A disk failure is retried. Wrong content is not. The `remedy` is for wrong content, with the
    separator before it.
    """
    if isinstance(error, OSError) and error.errno is not None:
        is_disk_error = error.errno not in _CONTENT_ERRNOS
    else:
        is_disk_error = type(error).__name__ in _DISK_ERROR_TYPES or has_disk_error_message(error)
    if is_disk_error:
        return MachineError(
            f"{message}: {summarize_error(error)}",
            "Repair the disk or the file's permissions, then retry.",
        )
    return DataError(f"{message}: {summarize_error(error)}{remedy}")


def to_exit_code(error: Exception) -> ExitCode:
    """The exit code of a process that this error has ended.

    Errors of the machine are retried. Any unexpected error is a bug.
    """
    if isinstance(error, TrainyardError):
        return error.exit_code
    is_retried = isinstance(error, OSError | MemoryError) or has_disk_error_message(error)
    return ExitCode.RETRY if is_retried else ExitCode.BUG


def has_disk_error_message(error: Exception) -> bool:
    """Returns whether a line of the message ends with an error of the operating system.

    TensorFlow writes such lines: "/path/file; Input/output error".
    """
    return any(
        _OPERATION.sub("", line.strip()).endswith(_DISK_ERROR_SUFFIXES)
        for line in str(error).splitlines()
    )
