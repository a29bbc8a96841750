"""Reads from a data set's index which raw content is in which split.

`beam_jobs/planning/generations.py` writes the index, one JSON list per record, and defines its
other fields. A test writes an index there and reads it here.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline_ops.storage.read_errors import make_read_error

_KEY, _CONTENT, _SPLIT, _NUM_EXAMPLES = 0, 1, 3, 6


class IndexedRecord(NamedTuple):
    """A record that has examples in a split. `content` is the digest of its raw bytes."""

    key: str
    content: str
    split: str


def read_indexed_records(index: Path) -> Iterator[IndexedRecord]:
    """Yields every record that has at least one example. Raises DataError for an invalid index."""
    try:
        with gzip.open(index, "rt", encoding="utf-8") as lines:
            for entry in map(json.loads, lines):
                if entry[_NUM_EXAMPLES]:
                    yield IndexedRecord(entry[_KEY], entry[_CONTENT], entry[_SPLIT])
    except (OSError, EOFError, ValueError, TypeError, IndexError, zlib.error) as error:
        raise make_read_error(
            f"{index}: the index cannot be read",
            error,
            ". Remove the data set that it is in, and start a new run.",
        ) from error
