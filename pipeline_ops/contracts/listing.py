"""The raw files below a folder, with a digest of each one's content.

Reading every file of a large data set only to see that nothing changed would take minutes. A listing therefore keeps
an index of (size, mtime, ctime) and digest, and reads only files of which one of the three is new. The ctime is there
because `cp -p` and rsync set the mtime, and nobody can set the ctime. Of a million files, nothing is held but their keys,
sizes and digests, and the index is one line of text each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import operator
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from pipeline_ops.contracts.errors import DataError, MachineError, TrainyardError
from pipeline_ops.contracts.listing_index import read_index, write_index
from pipeline_ops.contracts.raw_entries import walk_entries

if TYPE_CHECKING:
    from pipeline_ops.contracts.raw_folder import RawFolder

_UNSETTLED_NS = 2_000_000_000
_key_of = operator.attrgetter("key")


@dataclasses.dataclass(frozen=True, slots=True)
class RawFile:
    """One file. `key` is its path below the folder: text in any case, reversible, and equal on every host.

    Bytes of a name that are not UTF-8 are percent-encoded, and so is the percent sign.
    """

    key: str
    num_bytes: int
    digest: str
    version: str = dataclasses.field(default="", compare=False)
    """Another text once the file has been written to: see `version_of`. "" where that can't be told but from its content."""

    def path(self, folder: Path) -> bytes:
        """For `open`: bytes, because a file name need not be text."""
        if "%" not in self.key:  # as good as always, and a third of the time
            return os.fsencode(f"{folder}/{self.key}")
        return os.path.join(os.fsencode(folder), unquote_to_bytes(self.key))

    def __reduce__(self) -> tuple:
        """A fifth of the time that pickle takes for slots."""
        return RawFile, (self.key, self.num_bytes, self.digest, self.version)

    def holds(self, content: bytes) -> bool:
        """Whether this is what the file held when it was listed."""
        return _new_hash(content).hexdigest() == self.digest


def version_of(stat: os.stat_result) -> str:
    """By this, a reader sees that a file is the one that was listed, without reading it twice.

    Every write sets the ctime, and nobody can set it back. It has the grain of the kernel's clock, a few milliseconds: of a file
    that was written to less than two seconds before it was listed, a further write may not show, so it has no version.
    """
    return f"{stat.st_mtime_ns}.{stat.st_ctime_ns}"


class RefusedFile(NamedTuple):
    """An entry that may not be read: a reason to count by, and the detail for a person."""

    key: str
    reason: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Listing:
    """All files below a folder, sorted by key, and the entries that were refused without being opened."""

    folder: RawFolder
    files: tuple[RawFile, ...]
    refused: tuple[RefusedFile, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for equal names and contents, wherever the folder is and however the files came there."""
        hashed = _new_hash()
        for file in self.files:
            hashed.update(f"{file.key}\0{file.digest}\0".encode())  # no file name holds a NUL
        for entry in self.refused:
            hashed.update(f"{entry.key}\0{entry.reason}\0".encode())
        return hashed.hexdigest()


def list_raw_files(folder: Path, indexes: Path) -> Listing:
    """Lists a folder; names that begin with a dot are not data.

    Args:
      folder: where the raw files are.
      indexes: where the indexes of all listings are kept.

    Raises:
      DataError: there is no such folder, it can't be read, or `walk_entries` refuses a link to a folder in it.
      MachineError: a file vanished meanwhile.
    """
    index_file = indexes / f"{hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()}.index"
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
            digest = line[len(signature):] if is_known else _digest(entry.path)
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
    """The key of each file and what the disk says of it, in any order. Raises as `list_raw_files` does."""
    try:
        return [(key_of(entry.relative), entry.stat) for entry in walk_entries(os.fsencode(folder))]
    except OSError as error:
        raise _unreadable(error, os.fsencode(folder)) from None


def _unreadable(error: OSError, root: bytes) -> TrainyardError:
    place = os.fsdecode(error.filename or root)
    if isinstance(error, FileNotFoundError) and os.fsencode(place) == root:
        return DataError(f"{place}: no such file or folder; it is named by preprocess.source.path")
    if isinstance(error, FileNotFoundError):
        return MachineError(f"{place}: vanished while the raw files were listed; retry when nobody writes there")
    if error.errno in (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
        return DataError(f"{place}: {error.strerror}; it is below the folder that preprocess.source.path names")
    return MachineError(f"{place}: {error.strerror}; mend the disk, then retry")


def key_of(relative: bytes) -> str:
    """The key of the file that has this path below its folder."""
    if b"%" not in relative:
        with contextlib.suppress(UnicodeDecodeError):  # as good as never
            return relative.decode()
    text = relative.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return "".join(f"%{ord(c) - 0xDC00:02X}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _digest(path: bytes) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe that has taken the file's place must not block
    with open(descriptor, "rb") as file:
        return hashlib.file_digest(file, _new_hash).hexdigest()


def _new_hash(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)
