"""One raw file: its key, size and digest."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes


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
        return new_hash(content).hexdigest() == self.digest


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


def key_of(relative: bytes) -> str:
    """The key of the file that has this path below its folder."""
    if b"%" not in relative:
        with contextlib.suppress(UnicodeDecodeError):  # as good as never
            return relative.decode()
    text = relative.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return "".join(f"%{ord(c) - 0xDC00:02X}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def new_hash(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)
