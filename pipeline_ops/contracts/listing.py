"""The raw files below a folder, with a digest of each one's content.

Reading every file of a large data set only to see that nothing changed would take minutes. A listing therefore keeps
an index of (size, mtime, ctime) and digest, and reads only files of which one of the three is new. The ctime is there
because `cp -p` and rsync set the mtime, and nobody can set the ctime.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

from pipeline_ops.contracts.errors import DataError
from pipeline_ops.contracts.files import read_json, write_json
from pipeline_ops.contracts.fingerprint import digest_of


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
      DataError: there is no such folder, or it can't be read.
    """
    index_file = indexes / f"{hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()}.json"
    index = read_json(index_file) or {}
    fresh: dict[str, list] = {}
    try:
        for path, stat in _walk(os.fsencode(folder)):
            key = _as_key(os.path.relpath(path, os.fsencode(folder)))
            signature = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            known = index.get(key)
            fresh[key] = known if known and known[:3] == signature else [*signature, _digest(path)]
    except FileNotFoundError as error:
        raise DataError(f"{os.fsdecode(error.filename)}: no such file or folder; it is named by preprocess.source.path") from None
    except (NotADirectoryError, PermissionError) as error:
        raise DataError(f"{os.fsdecode(error.filename)}: {error.strerror}") from None
    if fresh != index:
        write_json(index_file, fresh)
    return Listing(folder, tuple(RawFile(key, entry[0], entry[3]) for key, entry in sorted(fresh.items())))


def _walk(folder: bytes):
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(b"."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path)
            elif entry.is_file():
                yield entry.path, entry.stat()


def _as_key(relative: bytes) -> str:
    text = relative.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return "".join(f"%{ord(c) - 0xDC00:02X}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _digest(path: bytes) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
