"""Folders that are whole or absent: made and removed by one rename.

A folder is filled under a staging name next to its final name. Staging folders that killed
processes have left are removed by the next writer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.storage.atomic import make_write_error
from pipeline_ops.storage.own_folders import is_own_folder, remove_folder
from pipeline_ops.storage.safe_paths import open_folder, open_folder_below

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def staging_folder(
    final: Path, marker: str | None = None, kept: Path | None = None
) -> Iterator[Path]:
    """Yields a folder next to `final`, which gets its name when the block ends.

    If the block fails, the folder is removed, unless it is `kept`. The rename is atomic and refuses
    to replace a folder that is not empty. The caller holds a lock for `final`. Earlier stagings
    were therefore left by killed writers, and are removed.

    Args:
      final: the folder.
      marker: the file that makes the folder whole. A folder without it, as `withdraw_folder` leaves
        it, is replaced. Without a marker nothing is replaced.
      kept: the folder to fill, on the same disk, with whatever an earlier writer has left in it.
        It is created if it is missing, and stays if the block fails. The default is a new folder.

    Raises:
      FileExistsError: another writer has made `final` in the meantime.
      MachineError: the disk failed.
    """
    staging = kept or final.with_name(make_staging_name(final.name))
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with open_folder(final.parent) as parent:
            _remove_leftovers(final.name, parent)  # first, because leftovers may fill the disk
            try:
                staging.mkdir(parents=True, exist_ok=kept is not None)
                yield staging
                if marker and not (final / marker).exists():
                    _move_aside(final.name, parent)
                _rename_folder(staging, final, parent)
            finally:
                _remove_leftovers(final.name, parent)
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            failed = _find_failed_path(error, staging) or kept or final
            raise make_write_error(failed, error) from error
        raise


def _find_failed_path(error: OSError, staging: Path) -> Path | None:
    """The file that a disk error names, or None for the staging, whose name is internal."""
    named = Path(error.filename) if isinstance(error.filename, str | os.PathLike) else None
    return named if named and named.is_absolute() and named != staging else None


def make_staging_name(name: str) -> str:
    """A new staging name for a folder. The next writer of the folder removes it."""
    return f".{name}.{os.getpid()}.{secrets.token_hex(4)}.staging"


def remove_staging_folders(folder: Path) -> None:
    """Removes everything that killed writers have left in a folder.

    The caller makes sure that no other process writes there.
    """
    with open_folder(folder) as parent:
        _remove_leftovers(None, parent)


def remove_own_folder(folder: Path) -> None:
    """Removes a folder that this program has made, if it exists.

    A link or another user's folder is reported and stays.
    """
    with contextlib.suppress(FileNotFoundError), open_folder(folder.parent) as parent:
        remove_folder(folder.name, parent)


def remove_by_rename(folder: Path) -> None:
    """Removes a folder so that no reader finds it half removed.

    The leftovers of a killed removal are removed together with the stagings. A missing folder is
    ignored. A link or another user's folder is reported and stays.
    """
    with contextlib.suppress(FileNotFoundError), open_folder(folder.parent) as parent:
        remove_by_rename_in(folder.name, parent)


def remove_by_rename_in(name: str, parent: int) -> None:
    """Removes a folder in an open folder like `remove_by_rename`."""
    with contextlib.suppress(FileNotFoundError):
        if is_own_folder(name, parent):
            doomed = make_staging_name(name)
            os.rename(name, doomed, src_dir_fd=parent, dst_dir_fd=parent)
            remove_folder(doomed, parent)


def withdraw_folder(folder: Path, marker: str) -> None:
    """Removes the file that makes a folder whole.

    The other files stay for those who still read them, until `staging_folder` replaces the folder.
    A missing folder is ignored. A link or another user's folder is reported and stays.
    """
    with contextlib.suppress(FileNotFoundError), open_folder(folder.parent) as parent:
        if is_own_folder(folder.name, parent):
            with open_folder_below(folder.parent, folder.name) as opened:
                os.unlink(marker, dir_fd=opened)


def _move_aside(name: str, parent: int) -> None:
    """Gives a folder a staging name, so that it is removed with the stagings."""
    with contextlib.suppress(FileNotFoundError):
        if is_own_folder(name, parent):
            os.rename(name, make_staging_name(name), src_dir_fd=parent, dst_dir_fd=parent)


def _remove_leftovers(final: str | None, parent: int) -> None:
    """Removes the stagings of one folder, or of every folder if `final` is None."""
    name = re.escape(final) if final else "[^/]+"
    pattern = re.compile(rf"\.{name}\.[0-9]+(\.[0-9a-f]+)?\.staging")
    for leftover in os.listdir(parent):
        if pattern.fullmatch(leftover):
            remove_folder(leftover, parent)


def _rename_folder(source: Path, target: Path, parent: int) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, "exists already", str(target)) from error
        raise
    os.fsync(parent)
