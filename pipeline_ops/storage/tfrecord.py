"""The frame of a record in a TFRecord file.

A record is its length (uint64), the masked CRC32C of these eight bytes, the data, and the masked
CRC32C of the data, all little endian. See "TFRecords format details" in TensorFlow's guide.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
"""The bytes of a record besides its data: eight for its length, four for each checksum."""


def frame_record(*parts: bytes) -> list[bytes]:
    """A record as it stands in the file, put together of parts."""
    length = sum(map(len, parts)).to_bytes(8, "little")
    return [length + compute_masked_crc(length), *parts, compute_masked_crc(*parts)]


def unframe_record(framed: bytes) -> bytes | None:
    """The data of one whole record. None if its length or a checksum is wrong."""
    data = framed[HEADER_BYTES:-FOOTER_BYTES]
    head, _, end = frame_record(data)
    is_sound = len(framed) >= FRAME_BYTES and framed.startswith(head) and framed.endswith(end)
    return data if is_sound else None


def list_record_offsets(path: Path) -> array[int]:
    """Lists where each record of a file begins. Reads only the lengths.

    Raises ValueError: the lengths do not lead to the end of the file.
    """
    offsets, offset = array("q"), 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            offsets.append(offset)
            length = int.from_bytes(os.pread(file.fileno(), 8, offset), "little")
            offset += length + FRAME_BYTES
            if offset > size:
                raise ValueError(
                    f"{path} is truncated or not a TFRecord file: the record at byte "
                    f"{offsets[-1]} exceeds the end of the file."
                )
    return offsets


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the data of each record of a file. Raises ValueError at the first damaged one."""
    offsets = list_record_offsets(path)
    with open(path, "rb") as file:
        for begin, end in itertools.pairwise([*offsets, os.fstat(file.fileno()).st_size]):
            data = unframe_record(file.read(end - begin))
            if data is None:
                raise ValueError(f"{path} is damaged: the record at byte {begin}.")
            yield data


def compute_masked_crc(*parts: bytes) -> bytes:
    """The masked CRC32C of the data.

    The mask is needed because a CRC over data that holds its own CRC is weak.
    """
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
