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
from pathlib import Path

from pipeline_ops.errors import DataError, MachineError, TrainyardError
from pipeline_ops.raw_data.entries import walk_entries
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.listing_index import read_index, write_index
from pipeline_ops.raw_data.raw_file import RawFile, RefusedFile, key_of, new_hash, version_of

_UNSETTLED_NS = 2_000_000_000
_key_of = operator.attrgetter("key")


def list_raw_files(folder: Path, indexes: Path) -> Listing:
    """Lists a folder. Names that begin with a dot are not data.

    Args:
      folder: the folder of the raw files.
      indexes: the folder of the indexes of all listings.

    Raises:
      DataError: there is no such folder, it can't be read, or `walk_entries` refuses a link to a
        folder in it.
      MachineError: a file vanished during the listing.
    """
    index_file = (
        indexes / f"{hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()}.index"
    )
    known, settled_ns = read_index(index_file), time.time_ns() - _UNSETTLED_NS
    num_known, num_kept = len(known), 0
    files, fresh, refused = [], {}, []
    try:
        for entry in walk_entries(os.fsencode(folder)):
            key, stat = key_of(entry.relative), entry.stat
            if entry.reason:
                refused.append(RefusedFile(key, entry.reason, entry.detail))
                continue
            signature = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} "
            line = known.get(key, "")
            is_known = line.startswith(signature)
            digest = line[len(signature) :] if is_known else _digest(entry.path)
            is_settled = stat.st_ctime_ns < settled_ns
            files.append(RawFile(key, stat.st_size, digest, version_of(stat) if is_settled else ""))
            num_kept += is_known
            if not is_known and is_settled:
                fresh[key] = signature + digest
    except OSError as error:
        raise _unreadable(error, os.fsencode(folder)) from None
    files.sort(key=_key_of)
    if fresh or num_kept < num_known:
        write_index(index_file, known | fresh, ((file.key, file.digest) for file in files))
    return Listing(folder, tuple(files), tuple(sorted(refused, key=_key_of)))


def list_stats(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Key and `os.stat_result` of each file, in any order. Raises as `list_raw_files` does."""
    try:
        return [(key_of(entry.relative), entry.stat) for entry in walk_entries(os.fsencode(folder))]
    except OSError as error:
        raise _unreadable(error, os.fsencode(folder)) from None


def _unreadable(error: OSError, root: bytes) -> TrainyardError:
    place = os.fsdecode(error.filename or root)
    if isinstance(error, FileNotFoundError) and os.fsencode(place) == root:
        return DataError(f"{place}: no such file or folder; it is named by preprocess.source.path")
    if isinstance(error, FileNotFoundError):
        return MachineError(
            f"{place}: vanished while the raw files were listed; retry when nobody writes there"
        )
    if error.errno in (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
        return DataError(
            f"{place}: {error.strerror}; it is below the folder that preprocess.source.path names"
        )
    return MachineError(f"{place}: {error.strerror}; mend the disk, then retry")


def _digest(path: bytes) -> str:
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # a pipe in the file's place must not block
    with open(descriptor, "rb") as file:
        return hashlib.file_digest(file, new_hash).hexdigest()
