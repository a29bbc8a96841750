"""The text of a config file, read without trusting the file.

A pipe cannot block, a large file is not loaded, and only UTF-8 is accepted. Raises only
ConfigError. Used by `yaml_source.py`.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from pipeline_ops.errors import ConfigError

MAX_BYTES = 1 << 20
"""The largest config file. A list of 20,000 class names fits."""

_ATTEMPTS, _PAUSE_SECONDS = 4, 0.02
"""A file that changes during the read is read again."""

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_text(file: Path) -> str:
    """Returns the text of a regular UTF-8 file, without a byte order mark.

    Raises:
      ConfigError: the file is missing, is not a regular file, is too large, or is not UTF-8.
    """
    try:
        return _decode(file, _read_stable(file))
    except FileNotFoundError:
        raise ConfigError(f"{file}: {_explain_missing(file)}") from None
    except PermissionError:
        raise ConfigError(
            f"{file}: may not be read by this user (uid {os.geteuid()}). Give it "
            "the right to read the file."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{file}: cannot be read: {reason}") from None


def _read_stable(file: Path) -> bytes:
    """Reads the bytes of a file. Tries again, a few times, if the file changes during the read."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(file, _FLAGS)
        try:
            before = os.fstat(descriptor)
            _validate_file_kind(file, before)
            data = os.read(descriptor, MAX_BYTES)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (after.st_mtime_ns, len(data)) == (before.st_mtime_ns, before.st_size):
            break
        time.sleep(_PAUSE_SECONDS)
    return data


def _validate_file_kind(file: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        inside = ", ".join(sorted(path.name for path in file.glob("*.yaml"))[:5])
        raise ConfigError(
            f"{file}: is a folder. Name one of its YAML files: {inside or 'there is none'}."
        )
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{file}: is a pipe or a device. Give a regular file.")
    if status.st_size > MAX_BYTES:
        raise ConfigError(
            f"{file}: has {status.st_size} bytes. A config may have at most {MAX_BYTES}."
        )


def _decode(file: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{file}:1: is UTF-16. Save it as UTF-8.")
    if (position := data.find(0)) >= 0:
        raise ConfigError(
            f"{file}:{_find_line(data, position)}: holds a zero byte, as binary files do. "
            "A config must be UTF-8 text."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}:{_find_line(data, error.start)}: is not UTF-8 "
            f"(byte 0x{data[error.start]:02x}). Save it as UTF-8."
        ) from None


def _find_line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _explain_missing(file: Path) -> str:
    if file.is_symlink():
        return (
            f"is a link to {os.readlink(file)}, which does not exist. Correct or remove the link."
        )
    return "no such file"
