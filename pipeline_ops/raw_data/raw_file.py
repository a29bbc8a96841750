"""One raw file: its key, size and digest."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class RawFile:
    """One raw file. `key` is its path below the folder.

    The key is always text, reversible, and equal on every host. Bytes of a name that are not UTF-8
    are percent-encoded, and so is the percent sign.
    """

    key: str
    num_bytes: int
    digest: int
    """128 bits of the content. A number takes half the memory of its text, see `format_digest`."""
    version: float | str = dataclasses.field(default="", compare=False)
    """It changes when the file is written: a time, see `to_file_version`, or the etag of an object.

    "" if only the content shows a change.
    """

    def to_path(self, folder: Path) -> bytes:
        """The path for `open`, in bytes because a file name need not be text."""
        if "%" not in self.key:  # almost always true, and takes a third of the time
            return os.fsencode(f"{folder}/{self.key}")
        return os.path.join(os.fsencode(folder), unquote_to_bytes(self.key))

    def __reduce__(self) -> tuple[type[RawFile], tuple[str, int, int, float | str]]:
        """Pickles the file in a fifth of the time that pickle takes for slots."""
        return RawFile, (self.key, self.num_bytes, self.digest, self.version)

    def has_content(self, content: bytes) -> bool:
        """Returns whether this is the content that the file had when it was listed."""
        return compute_digest(content) == self.digest


def to_file_version(stat: os.stat_result) -> float:
    """The version of a file, which shows a change without reading the file twice: its ctime.

    Every write sets the ctime, and no program can set it back. Its resolution is that of the
    kernel's clock, a few milliseconds. After a write less than two seconds before the listing, a
    further write may not change it. Such a file has no version.
    """
    return stat.st_ctime


class RejectedFile(NamedTuple):
    """An entry that may not be read: a reason to count by, and the detail for people."""

    key: str
    reason: str
    detail: str


def to_raw_key(relative: bytes) -> str:
    """The key of the file with this path below its folder."""
    if b"%" not in relative:
        with contextlib.suppress(UnicodeDecodeError):  # almost never raised
            return relative.decode()
    text = relative.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    return "".join(f"%{ord(c) - 0xDC00:02X}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def new_hash(content: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def compute_digest(content: bytes) -> int:
    """The digest of a content: equal contents have equal digests, wherever they are."""
    return int(new_hash(content).hexdigest(), 16)


def format_digest(digest: int) -> str:
    """The digest as 32 hex digits, as files have it."""
    return f"{digest:032x}"


def loosen(name: str) -> str:
    """A name or a path without differences that other systems do not make."""
    return unicodedata.normalize("NFC", name).casefold()


def match_without_case(keys: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Pairs each key with the other one that differs in case only, where both are the only ones.

    Windows and macOS take such names as equal, and copies to Linux keep both.
    """
    found: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for index, group in enumerate((keys, others)):
        for key in group:
            found[loosen(key)][index].append(key)
    return {one[0]: two[0] for one, two in found.values() if len(one) == len(two) == 1}
