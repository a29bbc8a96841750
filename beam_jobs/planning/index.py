"""The index of a data set: one line for each record, from which the next generation finds changes.

The index is a gzip file of JSON lines, sorted by key. The job that makes the data set writes it,
and the job that continues the data set reads it. It holds everything that is needed for counting
and skipping a record without opening its shard.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from beam_jobs.planning.plan import Record
from pipeline_ops.errors import DataError
from pipeline_ops.storage.atomic import write_atomically
from pipeline_ops.storage.read_errors import make_read_error

_COMPRESSION = 1  # a line is mostly digests, which do not compress at any level


class IndexEntry(NamedTuple):
    """One record and the location of its examples: `num_examples` in `shard`, from `position` on.

    A rejected record has no examples, and the shard "". `split` is "" if the collection kept it
    out, so that it equals no split. `labels` counts examples by class name, or boxes for detection.
    `perceptual_hash` has 16 hex digits, or none. `skipped` counts the examples that stages skipped.
    `measurements` are those of the examples as `encode_measurements` writes them.
    """

    key: str
    content: str
    annotation: str
    split: str
    shard: str = ""
    position: int = 0
    num_examples: int = 0
    labels: Mapping[str, int] = {}
    perceptual_hash: str = ""
    skipped: Mapping[str, int] = {}
    measurements: str = ""

    @property
    def positions(self) -> range:
        return range(self.position, self.position + self.num_examples)


def compute_annotation_digest(record: Record) -> str:
    """A digest, as 16 hex digits, of the part of a record's annotation that goes into the shard.

    The split is a field of the index, and the group is in no example.
    """
    return _digest_annotation((record.label, record.boxes, record.frame))


@functools.lru_cache(maxsize=4096)
def _digest_annotation(annotation: tuple[object, ...]) -> str:
    return hashlib.blake2b(
        repr(annotation).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def write_index(file: Path, entries: Iterable[IndexEntry]) -> None:
    """Writes the index. Equal entries give equal bytes in any order."""
    lines = "".join(
        json.dumps(entry, separators=(",", ":")) + "\n"
        for entry in sorted(entries, key=lambda entry: entry.key)
    )
    write_atomically(file, gzip.compress(lines.encode(), _COMPRESSION, mtime=0))


def read_index(file: Path) -> dict[str, IndexEntry]:
    """Reads the entries of an index by key. Raises DataError if the file is not an index."""
    found: dict[str, IndexEntry] = {}
    shared: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                entry = IndexEntry(*json.loads(line))
                # Equal names and counts are shared, which halves the memory of a million entries.
                found[entry.key] = entry._replace(
                    split=sys.intern(entry.split),
                    shard=sys.intern(entry.shard),
                    annotation=sys.intern(entry.annotation),
                    labels=shared.setdefault(tuple(entry.labels.items()), entry.labels),
                )
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        raise make_read_error(
            f"cannot read the index {file}", error, ". Remove its data set, and start a new run."
        ) from error
    if not found:
        raise DataError(f"{file}: the index is empty. Remove its data set, and start a new run.")
    return found
