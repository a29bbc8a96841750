"""Checksums of files: CRC32C, which detects disk errors, and SHA-256, which detects tampering.

Besides, the digest of a JSON value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import IO, Any

import google_crc32c

_READ_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Checksums:
    """The size of a content, and its checksums in lower-case hex digits."""

    num_bytes: int
    crc32c: str
    sha256: str


class ChecksumAccumulator:
    """Computes both checksums of a content that comes in blocks, in one pass.

    Both computations release the interpreter lock.
    """

    def __init__(self) -> None:
        self._num_bytes = self._crc32c = 0
        self._sha256 = hashlib.sha256()

    def update(self, block: bytes) -> None:
        self._num_bytes += len(block)
        self._crc32c = google_crc32c.extend(self._crc32c, block)
        self._sha256.update(block)

    @property
    def result(self) -> Checksums:
        return Checksums(self._num_bytes, f"{self._crc32c:08x}", self._sha256.hexdigest())


def compute_checksums(file: IO[bytes]) -> Checksums:
    """Reads an open file to its end."""
    accumulator = ChecksumAccumulator()
    for block in read_blocks(file):
        accumulator.update(block)
    return accumulator.result


def read_blocks(file: IO[bytes], num_bytes: int | None = None) -> Iterator[bytes]:
    """Yields the content of a file. If it is longer than `num_bytes`, ends soon after them."""
    total = 0
    while (num_bytes is None or total <= num_bytes) and (block := file.read(_READ_BYTES)):
        total += len(block)
        yield block


def compute_digest(value: Any) -> str:
    """32 hex digits over a JSON value, independent of the order of keys.

    Different values have different digests.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
