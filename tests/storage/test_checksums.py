"""Checksums in one pass, against published values."""

from __future__ import annotations

import hashlib
import io

import pytest

from pipeline_ops.storage.checksums import compute_checksums

_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_DIGITS = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"


@pytest.mark.parametrize(
    "content, crc32c, sha256", [(b"", "00000000", _EMPTY), (b"123456789", "e3069283", _DIGITS)]
)  # RFC 3720's check value
def test_the_checksums_are_crc32c_and_sha256(content, crc32c, sha256):
    found = compute_checksums(io.BytesIO(content))
    assert (found.num_bytes, found.crc32c, found.sha256) == (len(content), crc32c, sha256)


def test_a_content_of_several_blocks_has_the_checksums_of_the_whole():
    content = bytes(range(256)) * 10_000
    assert compute_checksums(io.BytesIO(content)).sha256 == hashlib.sha256(content).hexdigest()
