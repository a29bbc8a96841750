"""The lengths of all records of a data set, in one small file of it.

The offset of every record follows from them. Training can therefore read single records of a data
set in a store, without reading its shards first. A line of JSON counts the records of each shard,
by path. The lengths follow in this order, as little-endian uint32. Shards that were taken over from
a data set without such a file are absent.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping, Sequence

from pipeline_ops.errors import DataError

RECORD_LENGTHS = "record_lengths.bin"
_TYPE = "I"


def format_record_lengths(lengths: Mapping[str, Sequence[int]]) -> bytes:
    """The content of the file. `lengths` has the data bytes of each record, by shard."""
    paths = sorted(lengths)
    values = array(_TYPE)
    for path in paths:
        values.extend(lengths[path])
    head = json.dumps({path: len(lengths[path]) for path in paths})
    return f"{head}\n".encode() + _to_little_endian(values).tobytes()


def parse_record_lengths(content: bytes, source: str) -> dict[str, Sequence[int]]:
    """The lengths by shard. Raises DataError, which names the `source`, if they are not valid."""
    head, _, rest = content.partition(b"\n")
    found: dict[str, Sequence[int]] = {}
    values = array(_TYPE)
    try:
        values.frombytes(rest)
        values, start = _to_little_endian(values), 0
        for path, count in json.loads(head).items():
            found[path] = values[start : start + count]
            start += count
            if len(found[path]) != count:
                raise ValueError(f"{path} has {len(found[path])} lengths instead of {count}")
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{source}: not a list of record lengths: {error}") from None
    return found


def _to_little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
