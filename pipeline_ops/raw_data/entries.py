"""The entries below a folder of raw data: files that may be read, and rejected entries.

Raw data come from outside. A link that leads out of the folder could name any file that the job may
read, a pipe would block the job, and a sparse file could cost hours. Such an entry is rejected
unread, and the other entries are read. `local.py` calls this module.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    MIN_SPARSE_BYTES,
    MIN_STORED_SHARE,
)
from pipeline_ops.storage.local_files import describe_os_error

_BLOCK_BYTES = 512  # the unit of st_blocks


class RawEntry(NamedTuple):
    """An entry that is not a folder. `relative` is its path below the folder.

    `reason` and `detail` explain why it is rejected. Both are empty for a file that may be read.
    """

    relative: bytes
    path: bytes
    stat: os.stat_result
    reason: str = ""
    detail: str = ""


def walk_entries(folder: bytes) -> Iterator[RawEntry]:
    """Yields every entry below a folder. Names that begin with a dot are not data.

    Links are followed as long as they stay below the folder, which may be a link itself.

    Raises:
      DataError: a link to a folder leads out of the folder or into a circle, or folders are nested
        too deeply. Skipping it would be wrong, because it may hold a whole class.
      OSError: a folder cannot be read.
    """
    root = os.path.realpath(folder)
    waiting: list[tuple[bytes, bytes, tuple[bytes, ...]]] = [(folder, b"", (root,))]
    while waiting:
        path, prefix, trail = waiting.pop()
        if prefix.count(b"/") > MAX_DEPTH:
            raise DataError(
                f"{os.fsdecode(path)}: folders are nested more than {MAX_DEPTH} deep. "
                "Move the files up."
            )
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                if _is_folder(entry):
                    waiting.append(
                        (entry.path, prefix + entry.name + b"/", _resolve_trail(entry, trail, root))
                    )
                else:
                    yield _check_entry(entry, prefix + entry.name, root)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _resolve_trail(
    entry: os.DirEntry[bytes], trail: tuple[bytes, ...], root: bytes
) -> tuple[bytes, ...]:
    """The real path of a folder, after the paths of the folders in which links were followed.

    Raises DataError for a link that may not be followed.
    """
    *before, parent = trail
    if not entry.is_symlink():
        return (*before, os.path.join(parent, entry.name))
    target = os.path.realpath(entry.path)
    if not _is_below(target, root):
        raise DataError(
            f"{os.fsdecode(entry.path)}: this link leads to {os.fsdecode(target)}, "
            "out of the folder of raw data. Move or mount the files below the folder, "
            "or set preprocess.source.path to another folder."
        )
    if any(_is_below(passed, target) for passed in trail):
        raise DataError(
            f"{os.fsdecode(entry.path)}: this link leads to {os.fsdecode(target)}, "
            "which holds the link itself. Remove it."
        )
    return (*trail, target)


def _check_entry(entry: os.DirEntry[bytes], relative: bytes, root: bytes) -> RawEntry:
    found = entry.stat(follow_symlinks=False)

    def reject(reason: str, detail: str) -> RawEntry:
        return RawEntry(relative, entry.path, found, reason, detail)

    if stat.S_ISLNK(found.st_mode):
        try:
            target_stat, target = entry.stat(), os.path.realpath(entry.path)
        except FileNotFoundError:
            return reject("dead_link", "a link that leads nowhere. Remove it.")
        except OSError as error:
            problem = describe_os_error(error)
            return reject("dead_link", f"a link that cannot be followed: {problem}. Remove it.")
        found = target_stat
        if not _is_below(target, root):
            return reject(
                "link_outside",
                "a link that leads out of the folder of raw data. Put the file itself there.",
            )
    if not stat.S_ISREG(found.st_mode):
        return reject("not_regular", "neither a file nor a folder. Remove it.")
    if found.st_size > MAX_FILE_BYTES:
        return reject(
            "too_large",
            f"has {found.st_size} bytes. At most {MAX_FILE_BYTES} are allowed. Divide it.",
        )
    if _is_sparse(entry.path, found):
        cure = "Copy it with cp --sparse=never, or download it again"
        stored = found.st_blocks * _BLOCK_BYTES
        return reject("sparse", f"only {stored} of {found.st_size} bytes are on the disk. {cure}.")
    return RawEntry(relative, entry.path, found)


def _is_sparse(path: bytes, found: os.stat_result) -> bool:
    """Returns whether most of a file is a hole.

    The number of blocks alone does not tell: file systems that compress, delay writes or are not on
    this machine may have fewer. Such a file is opened to ask for a hole.
    """
    stored_bytes = found.st_blocks * _BLOCK_BYTES
    if found.st_size < MIN_SPARSE_BYTES or stored_bytes >= MIN_STORED_SHARE * found.st_size:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # whoever reads the file says why
        return False
    try:
        return os.lseek(descriptor, 0, os.SEEK_HOLE) < found.st_size
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_below(path: bytes, folder: bytes) -> bool:
    """Returns whether a real path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
