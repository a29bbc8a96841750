"""The raw files below a folder, with a digest of each one's content.

Reading every file of a large data set only to see that nothing changed would take minutes. A listing therefore keeps
an index of (size, mtime, ctime) and digest, and reads only files of which one of the three is new. The ctime is there
because `cp -p` and rsync set the mtime, and nobody can set the ctime.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

from pipeline_ops.contracts.errors import DataError, MachineError, TrainyardError
from pipeline_ops.contracts.files import read_json, write_json
from pipeline_ops.contracts.fingerprint import digest_of

_UNSETTLED_NS = 2_000_000_000


@dataclasses.dataclass(frozen=True)
class RawFile:
    """One file. `key` is its path below the folder: text in any case, reversible, and equal on every host.

    Bytes of a name that are not UTF-8 are percent-encoded, and so is the percent sign.
    """

    key: str
    num_bytes: int
    digest: str

    def path(self, folder: Path) -> bytes:
        """For `open`: bytes, because a file name need not be text."""
        return os.path.join(os.fsencode(folder), unquote_to_bytes(self.key))

    def holds(self, content: bytes) -> bool:
        """Whether this is what the file held when it was listed."""
        return _new_hash(content).hexdigest() == self.digest


@dataclasses.dataclass(frozen=True)
class Listing:
    """All files below a folder, sorted by key."""

    folder: Path
    files: tuple[RawFile, ...]

    @property
    def digest(self) -> str:
        """Equal for equal names and contents, wherever the folder is and however the files came there."""
        return digest_of([[file.key, file.digest] for file in self.files])


def list_raw_files(folder: Path, indexes: Path) -> Listing:
    """Lists a folder; names that begin with a dot are not data.

    Args:
      folder: where the raw files are.
      indexes: where the indexes of all listings are kept.

    Raises:
      DataError: there is no such folder, it can't be read, or something in it is neither a file nor a folder.
      MachineError: a file vanished meanwhile.
    """
    index_file = indexes / f"{hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()}.json"
    index = read_json(index_file) or {}
    root, entries = os.fsencode(folder), {}
    settled_ns = time.time_ns() - _UNSETTLED_NS
    try:
        for path, stat in _walk(root):
            key = key_of(os.path.relpath(path, root))
            signature = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            known = index.get(key)
            entries[key] = known if known and known[:3] == signature else [*signature, _digest(path)]
    except OSError as error:
        raise _unreadable(error, root) from None
    fresh = {key: entry for key, entry in entries.items() if entry[2] < settled_ns}
    if fresh != index:
        write_json(index_file, fresh)
    return Listing(folder, tuple(RawFile(key, entry[0], entry[3]) for key, entry in sorted(entries.items())))


def _unreadable(error: OSError, root: bytes) -> TrainyardError:
    place = os.fsdecode(error.filename or root)
    if isinstance(error, FileNotFoundError) and os.fsencode(place) == root:
        return DataError(f"{place}: no such file or folder; it is named by preprocess.source.path")
    if isinstance(error, FileNotFoundError):
        return MachineError(f"{place}: vanished while the raw files were listed; retry when nobody writes there")
    if error.errno in (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
        return DataError(f"{place}: {error.strerror}; it is below the folder that preprocess.source.path names")
    return MachineError(f"{place}: {error.strerror}; mend the disk, then retry")


def _walk(folder: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path)
            elif entry.is_file():
                yield entry.path, entry.stat()
            else:
                raise DataError(f"{os.fsdecode(entry.path)}: neither a file nor a folder, or a link that leads nowhere; remove it")


def key_of(relative: bytes) -> str:
    """The key of the file that has this path below its folder."""
    text = relative.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return "".join(f"%{ord(c) - 0xDC00:02X}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _digest(path: bytes) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, _new_hash).hexdigest()


def _new_hash(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)
