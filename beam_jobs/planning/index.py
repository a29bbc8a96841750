"""The index of a data set: one line for each record of its source, by which the next generation knows what is new.

A gzip file of JSON lines, sorted by key: written by the job that makes the data set, read by the one that goes on from
it. It holds what is needed to count and to skip a record without opening its shard.
"""

from __future__ import annotations

import dataclasses
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
from pipeline_ops.storage.atomic import write_whole
from pipeline_ops.storage.read_errors import unreadable

_ANNOTATION = tuple(field.name for field in dataclasses.fields(Record) if field.name not in ("file", "split", "group"))
"""What a record says of its image. Its split stands in the index by itself; its group is in no example."""
_COMPRESSION = 1  # most of a line are digests, which no level makes smaller


class Entry(NamedTuple):
    """One record, and where its examples are: `num_examples` of them in `shard`, from `position` on.

    A record that was kept out has no examples and the shard "". `split` is "" where the collection kept it out, so that no
    split can be equal to it. `labels` counts by class name: examples, or boxes for detection. `picture` is the perceptual
    hash of the image, as 16 hex digits, where one was asked for; `skipped` counts the examples that stages did not want; `numbers` is
    what statistics know of the examples, as `statistics/measure.py` writes it.
    """

    key: str
    content: str
    annotation: str
    split: str
    shard: str = ""
    position: int = 0
    num_examples: int = 0
    labels: Mapping[str, int] = {}
    picture: str = ""
    skipped: Mapping[str, int] = {}
    numbers: str = ""

    @property
    def positions(self) -> range:
        return range(self.position, self.position + self.num_examples)


def annotation_digest(record: Record) -> str:
    """16 hex digits over what the source says of a record, as far as it goes into the shard."""
    return _digest_annotation(tuple(getattr(record, name) for name in _ANNOTATION))


@functools.lru_cache(maxsize=4096)
def _digest_annotation(annotation: tuple) -> str:
    return hashlib.blake2b(repr(annotation).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def write_index(file: Path, entries: Iterable[Entry]) -> None:
    """Equal entries are equal bytes, in whatever order they come. Raises MachineError if the disk refuses."""
    lines = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in sorted(entries, key=lambda entry: entry.key))
    write_whole(file, gzip.compress(lines.encode(), _COMPRESSION, mtime=0))


def read_index(file: Path) -> dict[str, Entry]:
    """By key. Raises DataError if it is not such an index."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            share = _Shared()
            entries = (share(Entry(*json.loads(line))) for line in lines)
            found = {entry.key: entry for entry in entries}
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        raise unreadable(f"{file}: the index can't be read", error, "; remove the data set that it is in, and start a new run") from error
    if not found:
        raise DataError(f"{file}: the index is empty, and no data set is; remove the data set that it is in, and start a new run")
    return found


class _Shared:
    """Lets entries share equal names and counts: half of the memory of a million of them."""

    def __init__(self):
        self._labels: dict[tuple, Mapping[str, int]] = {}

    def __call__(self, entry: Entry) -> Entry:
        labels = self._labels.setdefault(tuple(entry.labels.items()), entry.labels)
        return entry._replace(split=sys.intern(entry.split), shard=sys.intern(entry.shard), annotation=sys.intern(entry.annotation), labels=labels)
