"""The raw files below a local folder, with a digest of each file's content.

Reading every file of a large data set only to find that none has changed would take minutes. A
listing therefore keeps an index of (size, mtime, ctime) and digest, and reads only files for which
one of the three has changed. The ctime is included because `cp -p` and rsync set the mtime, while
the ctime can't be set. Only the keys, sizes and digests of a million files are held in memory, and
the index has one line of text per file.
"""

from __future__ import annotations

import errno
import hashlib
import operator
import os
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline_ops.errors import DataError, MachineError, TrainyardError
from pipeline_ops.raw_data.entries import walk_entries
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.listing_index import read_index, write_index
from pipeline_ops.raw_data.raw_file import (
    RawFile,
    RejectedFile,
    format_digest,
    new_hash,
    to_file_version,
    to_raw_key,
)
from pipeline_ops.storage.local_files import describe_os_error
from pipeline_ops.storage.store_path import StorePath

_UNSETTLED_NS = 2_000_000_000
_get_key = operator.attrgetter("key")


def list_raw_files(
    folder: Path, indexes: StorePath, patterns: Sequence[str] | None = None
) -> Listing:
    """Lists a folder. Names that begin with a dot are not data.

    Args:
      folder: the folder of the raw files.
      indexes: the folder of the indexes of all listings.
      patterns: globs of the files that count. None is all.

    Raises:
      DataError: there is no such folder, it can't be read, or `walk_entries` rejects a link to a
        folder in it.
      MachineError: a file vanished during the listing.
    """
    name = os.fsencode("\0".join([str(folder), *(patterns or ())]))
    index_file = indexes / f"{hashlib.blake2b(name, digest_size=8).hexdigest()}.index"
    known, settled_ns = read_index(index_file), time.time_ns() - _UNSETTLED_NS
    num_known, num_kept = len(known), 0
    files, fresh, rejected = [], {}, []
    try:
        for entry in walk_entries(os.fsencode(folder)):
            key, stat = to_raw_key(entry.relative), entry.stat
            if not matches_any(key, patterns):
                continue
            if entry.reason:
                rejected.append(RejectedFile(key, entry.reason, entry.detail))
                continue
            signature = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} "
            line = known.get(key, "")
            is_known = line.startswith(signature)
            digest = line[len(signature) :] if is_known else _compute_digest(entry.path)
            is_settled = stat.st_ctime_ns < settled_ns
            version = to_file_version(stat) if is_settled else ""
            files.append(RawFile(key, stat.st_size, int(digest, 16), version))
            num_kept += is_known
            if not is_known and is_settled:
                fresh[key] = signature + digest
    except OSError as error:
        raise _make_listing_error(error, os.fsencode(folder)) from None
    files.sort(key=_get_key)
    if fresh or num_kept < num_known:
        digests = ((file.key, format_digest(file.digest)) for file in files)
        write_index(index_file, known | fresh, digests)
    return Listing(folder, tuple(files), tuple(sorted(rejected, key=_get_key)))


def matches_any(key: str, patterns: Sequence[str] | None) -> bool:
    """Returns whether a key matches one of the globs. None matches all."""
    return patterns is None or any(fnmatchcase(key, pattern) for pattern in patterns)


def list_stats(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Key and `os.stat_result` of each file, in any order. Raises as `list_raw_files` does."""
    try:
        return [
            (to_raw_key(entry.relative), entry.stat) for entry in walk_entries(os.fsencode(folder))
        ]
    except OSError as error:
        raise _make_listing_error(error, os.fsencode(folder)) from None


def _make_listing_error(error: OSError, root: bytes) -> TrainyardError:
    path, problem = os.fsdecode(error.filename or root), describe_os_error(error)
    if isinstance(error, FileNotFoundError) and os.fsencode(path) == root:
        return DataError(f"{path}: no such file or folder. Correct preprocess.source.path.")
    if isinstance(error, FileNotFoundError):
        return MachineError(
            f"{path}: vanished while the raw files were listed. Retry when no process writes there."
        )
    if error.errno in (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
        return DataError(
            f"{path}: {problem}. Correct the permissions or links below preprocess.source.path."
        )
    return MachineError(f"{path}: {problem}. Repair the disk, then retry.")


def _compute_digest(path: bytes) -> str:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in place of the file must not block
    with open(os.open(path, flags), "rb") as file:
        return hashlib.file_digest(file, new_hash).hexdigest()
