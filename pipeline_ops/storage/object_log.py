"""Files in a bucket that grow, such as logs.

Such a file is a folder of segments, each named after the offset of its first byte. Only the last
one changes: it is put again with each addition until it is full. A reader therefore needs one
listing, and one request for each segment that it has not read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline_ops.storage.store import Store

SEGMENT_BYTES = 1 << 18
"""The size beyond which a segment is full."""
_DIGITS = 16


@dataclasses.dataclass
class ObjectLogWriter:
    """The last segment of a file that grows.

    Attributes:
      store: the bucket.
      key: the file.
      offset: the offset of the segment.
      segment: its content.
    """

    store: Store
    key: str
    offset: int
    segment: bytes

    @property
    def size(self) -> int:
        return self.offset + len(self.segment)

    def append(self, data: bytes) -> None:
        if len(self.segment) >= SEGMENT_BYTES:
            self.offset, self.segment = self.size, b""
        extended = self.segment + data
        self.store.write(_name_segment(self.key, self.offset), extended)
        self.segment = extended  # only now: after an error, the caller appends the same data again


def open_object_log(store: Store, key: str) -> ObjectLogWriter:
    """Opens a file at its end."""
    segments = _list_segments(store, key)
    offset = max(segments, default=0)
    tail = store.read_range(_name_segment(key, offset), 0, segments[offset]) if segments else b""
    return ObjectLogWriter(store, key, offset, tail)


def read_object_log(store: Store, key: str, offset: int, max_bytes: int) -> bytes:
    """Bytes from an offset on."""
    return _read_segments(store, key, _list_segments(store, key), offset, offset + max_bytes)


def read_object_log_end(store: Store, key: str, num_bytes: int) -> tuple[int, bytes]:
    """The last bytes, and the offset of the first of them."""
    segments = _list_segments(store, key)
    end = max((start + size for start, size in segments.items()), default=0)
    offset = max(0, end - num_bytes)
    return offset, _read_segments(store, key, segments, offset, end)


def _read_segments(
    store: Store, key: str, segments: dict[int, int], offset: int, end: int
) -> bytes:
    found = []
    for start, num_bytes in sorted(segments.items()):
        begin, stop = max(start, offset), min(start + num_bytes, end)
        if begin < stop:
            found.append(store.read_range(_name_segment(key, start), begin - start, stop - begin))
    return b"".join(found)


def _list_segments(store: Store, key: str) -> dict[int, int]:
    """The size of each segment, by its offset."""
    return {
        int(entry.name): entry.num_bytes
        for entry in store.list_folder(key)
        if len(entry.name) == _DIGITS and entry.name.isdecimal()
    }


def _name_segment(key: str, offset: int) -> str:
    return f"{key}/{offset:0{_DIGITS}d}"
