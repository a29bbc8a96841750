"""Files that are whole or absent.

Everything is written under a temporary name in its final folder and then renamed. A reader, a retry
or a power cut therefore never finds half of it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import ChecksumAccumulator, Checksums
from pipeline_ops.storage.file_creation import NO_LINKS, create_file, link_exclusively

_COPY_BYTES = 1 << 20
_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_REMEDIES = {
    errno.EEXIST: "Remove the file of that name, then retry.",
    errno.EISDIR: "Remove the folder of that name, then retry.",
    errno.ELOOP: "Remove the link of that name, then retry.",
}
_DISK_REMEDY = "Free disk space or repair the disk, then retry."


def write_atomically(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file by rename. Its data are on disk before it gets its name.

    Args:
      path: the file.
      data: its content.
      mode: the permissions, reduced by the umask.

    Raises:
      MachineError: the disk refused the file (full, read-only). No part of it is left.
    """
    with _open_temporary(path, os.replace, mode) as file:
        file.write(data)


def open_atomically(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Opens a file that gets its name when the block ends without an error.

    Works like `write_atomically`, for content that is too large for memory.
    """
    return _open_temporary(path, os.replace)


def create_atomically(path: Path, data: bytes) -> None:
    """Writes a file that is written only once, like `write_atomically`.

    If two writers write it at the same time, one of them is refused.

    Raises:
      FileExistsError: the file already exists.
      MachineError: the disk refused the file.
    """
    with _open_temporary(path, link_exclusively) as file:
        file.write(data)


@contextlib.contextmanager
def _open_temporary(
    path: Path, rename: Callable[[Path, Path], None], mode: int = 0o666
) -> Iterator[IO[bytes]]:
    """Opens a temporary file that gets its final name once it is on disk.

    If the block or the disk fails, the temporary file is removed.
    """
    # Threads, and processes of other hosts, may write the same file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _create_temporary(temporary, mode) as file:
            yield file
            _flush_to_disk(file)
        rename(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise make_write_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _create_temporary(path: Path, mode: int) -> IO[bytes]:
    try:
        return create_file(path, mode)
    except FileExistsError as error:  # not of the final name
        raise make_write_error(path, error) from error


def _flush_to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    """Writes JSON by rename, as `format_json` formats it."""
    write_atomically(path, format_json(value), mode)


def format_json(value: Any) -> bytes:
    """Formats JSON with a two-space indent, in the given order, and with a final newline.

    A float that is not a number becomes the text "NaN", "Infinity" or "-Infinity".
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_replace_non_finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="replace")


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(inner) for inner in value]
    return _NON_FINITE.get(float.__repr__(value), value) if isinstance(value, float) else value


def read_json(path: Path) -> Any:
    """Returns the parsed content, or None if there is no such file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def copy_file(source: Path, target: Path) -> None:
    """Copies a file's content into a new file. Creates folders and raises like `write_blocks`."""
    with open(source, "rb") as reader, _create(target) as writer:
        shutil.copyfileobj(reader, writer, _COPY_BYTES)


def write_blocks(blocks: Iterable[bytes], target: Path) -> Checksums:
    """Writes blocks of content into a new file, which is on disk when this returns.

    Missing parent folders are created.

    Returns:
      The checksums of the content.

    Raises:
      MachineError: the disk refused the file.
    """
    checksums = ChecksumAccumulator()
    with _create(target) as writer:
        for block in blocks:
            writer.write(block)
            checksums.update(block)
    return checksums.result


@contextlib.contextmanager
def _create(target: Path) -> Iterator[IO[bytes]]:
    with translate_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as writer:
            yield writer
            _flush_to_disk(writer)


def link_file(source: Path, target: Path) -> None:
    """Gives an immutable file a second name.

    The file is copied if the file system has no hard links, or none between the two locations.

    Raises:
      MachineError: the disk refused the file.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise make_write_error(target, error) from error
        copy_file(source, target)


def make_write_error(path: Path, error: OSError, remedy: str = "") -> MachineError:
    """The error for a file or folder that the disk has refused.

    Args:
      path: the file or folder.
      error: the refusal.
      remedy: what to do about it. By default it follows from the kind of the error.
    """
    remedy = remedy or _REMEDIES.get(error.errno or 0, _DISK_REMEDY)
    return MachineError(f"cannot write {path}: {describe_os_error(error)}. {remedy}")


def describe_os_error(error: OSError) -> str:
    """The system's text for an error, for the middle of a sentence: "no space left on device"."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


@contextlib.contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Names the file in errors of calls that know only its descriptor. Raises MachineError."""
    try:
        yield
    except OSError as error:
        raise make_write_error(path, error) from error
