"""A place in a folder of this host's file systems, which other hosts may share.

No path below the folder may contain a link, so no one who can write there leads a reader or writer
to another file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.checksums import Checksums, read_blocks
from pipeline_ops.storage.local_files import (
    FOLDER_FLAGS,
    UnsafePath,
    describe_os_error,
    open_below,
    open_folder,
    open_new_below,
    open_or_make_folder,
    parse_relative_path,
    remove_by_rename,
    translate_write_errors,
    write_blocks,
)
from pipeline_ops.storage.store_path import MAX_RECORD_BYTES, Entry, StorePath

_IF_PRESENT = contextlib.suppress(FileNotFoundError)
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalPath(StorePath):
    """A file or folder below a folder."""

    @property
    def _folder(self) -> Path:
        return Path(self.root_uri)

    def read(self, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
        with self.open(max_bytes) as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise UnsafePath(f"{self} grew beyond {max_bytes} bytes while it was read")
        return content

    def open(self, max_bytes: int) -> contextlib.AbstractContextManager[IO[bytes]]:
        return open_below(self._folder, self.key, max_bytes)

    def read_range(self, start: int, num_bytes: int) -> bytes:
        with open_below(self._folder, self.key) as file:
            return os.pread(file.fileno(), num_bytes, start)

    def read_blocks(self) -> Iterator[bytes]:
        with open_below(self._folder, self.key) as file:
            yield from read_blocks(file)

    def write(self, data: bytes, mode: int = 0o666) -> None:
        with open_new_below(self._folder, self.key, mode) as file:
            file.write(data)

    def create(self, data: bytes) -> None:
        with open_new_below(self._folder, self.key, must_be_new=True) as file:
            file.write(data)

    def upload(self, file: Path) -> None:
        with file.open("rb") as reader, self.open_for_writing() as writer:
            writer.writelines(read_blocks(reader))

    def open_for_writing(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        return open_new_below(self._folder, self.key)

    def download(self, target: Path, num_bytes: int) -> Checksums:
        with open_below(self._folder, self.key) as file:
            return write_blocks(read_blocks(file, num_bytes), target)

    def stat(self) -> Entry | None:
        with _IF_PRESENT, self._open_parent() as (parent, name):
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                return Entry(name, found.st_size, found.st_mtime)
        return None

    def list_folder(self) -> list[Entry]:
        with _IF_PRESENT, self._open_folder(self.key) as folder:
            return _list_folder(folder)
        return []

    def walk(self) -> list[Entry]:
        with _IF_PRESENT, self._open_folder(self.key) as folder:
            return sorted(_walk(folder, self.local), key=lambda entry: entry.name)
        return []

    def remove(self) -> None:
        with translate_write_errors(self.local), _IF_PRESENT, self._open_parent() as (parent, name):
            os.unlink(name, dir_fd=parent)

    def remove_tree(self) -> None:
        with _IF_PRESENT, self._open_parent() as (parent, name):
            remove_by_rename(name, parent)

    def open_log(self) -> LocalLogWriter:
        folder, _, name = parse_relative_path(self.key).rpartition("/")
        with (
            translate_write_errors(self.local),
            open_or_make_folder(self._folder, folder) as parent,
        ):
            descriptor = os.open(name, _APPEND, 0o644, dir_fd=parent)
        return LocalLogWriter(self.local, os.fdopen(descriptor, "ab", buffering=0))

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        with _IF_PRESENT:
            return self.read_range(offset, max_bytes)
        return b""

    def read_log_end(self, num_bytes: int) -> tuple[int, bytes]:
        with _IF_PRESENT, open_below(self._folder, self.key) as file:
            start = max(0, os.fstat(file.fileno()).st_size - num_bytes)
            return start, os.pread(file.fileno(), num_bytes, start)
        return 0, b""

    @contextlib.contextmanager
    def _open_folder(self, key: str) -> Iterator[int]:
        """Opens a folder. One that is a file, or behind a link, counts as missing."""
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(open_folder(self._folder, key))
            except (FileNotFoundError, NotADirectoryError, UnsafePath) as error:
                raise FileNotFoundError(errno.ENOENT, "no such folder", str(self)) from error
            except OSError as error:
                raise _make_open_error(self._folder / key, error) from error
            yield descriptor

    @contextlib.contextmanager
    def _open_parent(self) -> Iterator[tuple[int, str]]:
        """Opens the folder that holds it. Its name there is the second value."""
        folder, _, name = parse_relative_path(self.key).rpartition("/")
        with self._open_folder(folder) as parent:
            yield parent, name


@dataclasses.dataclass(frozen=True)
class LocalLogWriter:
    """Appends by one system call each time, so several processes may share a file."""

    path: Path
    file: IO[bytes]

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def append(self, data: bytes) -> None:
        with translate_write_errors(self.path):
            os.write(self.file.fileno(), data)


def _list_folder(folder: int) -> list[Entry]:
    """The regular files and folders in an open folder, by name."""
    entries = []
    with os.scandir(folder) as found:
        for entry in found:
            with _IF_PRESENT:  # it may have been removed in the meantime
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    entries.append(Entry(entry.name, 0, status.st_mtime, is_folder=True))
                elif stat.S_ISREG(status.st_mode):
                    entries.append(Entry(entry.name, status.st_size, status.st_mtime))
    return sorted(entries, key=lambda entry: entry.name)


def _make_open_error(folder: Path, error: OSError) -> MachineError:
    return MachineError(
        f"cannot open the folder {folder}: {describe_os_error(error)}. Repair the disk, then retry."
    )


def _walk(folder: int, path: Path, prefix: str = "") -> Iterator[Entry]:
    for entry in _list_folder(folder):
        name = prefix + entry.name
        if not entry.is_folder:
            yield dataclasses.replace(entry, name=name)
            continue
        try:
            child = os.open(entry.name, FOLDER_FLAGS, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _make_open_error(path / name, error) from error
        try:
            yield from _walk(child, path, f"{name}/")
        finally:
            os.close(child)
