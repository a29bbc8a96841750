"""The quarantine of bad records: their keys, reasons and bytes, as files of a data set.

A worker writes a bad record into a fragment next to its shard's summary, so the bytes go no further
than that. The driver combines all fragments into one shard, in the order of the keys. It streams
them, because the quarantine may be larger than memory.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from beam_jobs.io.example import pack, unpack
from beam_jobs.io.tfrecord_reader import CorruptRecord, scan_records
from beam_jobs.io.tfrecord_writer import TFRecordWriter
from beam_jobs.statistics.summary import RejectedRecord
from pipeline_ops.artifacts.dataset import (
    QUARANTINE,
    QUARANTINE_CONTENT,
    QUARANTINE_DETAIL,
    QUARANTINE_KEY,
    QUARANTINE_NUM_BYTES,
    QUARANTINE_REASON,
    QUARANTINE_SHARD,
    QUARANTINE_SOURCE,
    QUARANTINE_STAGE,
)
from pipeline_ops.storage.atomic import write_atomically
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.read_errors import make_read_error

MAX_BYTES = 1 << 20
"""The maximum number of bytes of a record's content. A longer content is cut off there."""
_FRAGMENT_SUFFIX = ".quarantine"
_HEADER = struct.Struct("<QI")  # of a TFRecord: length, checksum of the length
_FOOTER_BYTES = 4


class FragmentWriter(contextlib.ExitStack):
    """Writes the bad records of one shard. It makes a file only if there is a bad record.

    Args:
      folder: the folder of the fragment.
      name: the name of the shard.
    """

    def __init__(self, folder: Path, name: str):
        super().__init__()
        self._path = folder / f"{name}{_FRAGMENT_SUFFIX}"
        self._writer: TFRecordWriter | None = None

    def add(
        self, rejected: RejectedRecord, source: str, content: bytes, num_bytes: int | None = None
    ) -> None:
        """Adds a bad record. `num_bytes` is given if `content` is only its beginning."""
        self.add_packed(
            pack(
                {
                    QUARANTINE_KEY: rejected.key.encode(),
                    QUARANTINE_STAGE: rejected.stage.encode(),
                    QUARANTINE_REASON: rejected.reason.encode(),
                    QUARANTINE_DETAIL: rejected.detail.encode(),
                    QUARANTINE_SOURCE: source.encode(),
                    QUARANTINE_NUM_BYTES: len(content) if num_bytes is None else num_bytes,
                    QUARANTINE_CONTENT: content[:MAX_BYTES],
                }
            )
        )

    def add_packed(self, record: bytes) -> None:
        """Adds a bad record in the format of a quarantine shard."""
        if self._writer is None:
            self._writer = self.enter_context(TFRecordWriter(open_path(self._path)))
        self._writer.write(record)


def write_quarantine(folder: Path, rejected: Sequence[RejectedRecord], fragments: Path) -> None:
    """Writes the list of bad records, and the shard with their bytes, into a data set's folder.

    The shard holds only the records that have bytes.

    Args:
      rejected: the bad records in the order of their keys.
      fragments: the folder that holds the fragments of all shards.
    """
    write_rejected_list(folder / QUARANTINE, rejected)
    locations = sorted(
        location
        for file in sorted(fragments.glob(f"*{_FRAGMENT_SUFFIX}"))
        for location in _locate_records(file)
    )
    with TFRecordWriter(open_path(folder / QUARANTINE_SHARD)) as writer:
        # Opened one by one: there may be more fragments than a process may open.
        for _, file, offset, length in locations:
            with open(file, "rb") as fragment:
                fragment.seek(offset)
                writer.write(fragment.read(length))


def copy_quarantined_records(shard: Path, keys: Collection[str], fragments: Path) -> None:
    """Copies some records of another data set's quarantine shard, given by key, to the fragments.

    Raises:
      DataError: the shard cannot be read.
    """
    if not keys:
        return
    try:
        with FragmentWriter(fragments, "as-before") as fragment, open(shard, "rb") as file:
            for _, record in scan_records(file, os.fstat(file.fileno()).st_size):
                if isinstance(record, CorruptRecord):
                    raise record
                if _read_key(record) in keys:
                    fragment.add_packed(record)
    except (CorruptRecord, OSError) as error:
        raise make_read_error(
            f"cannot read {shard}", error, ". Remove its data set, and start a new run."
        ) from error


def read_quarantine(shard: Path) -> Iterator[dict[str, bytes | int]]:
    """Yields the features of each bad record."""
    with open(shard, "rb") as file:
        for _, length in _iterate_frames(file):
            yield unpack(file.read(length))


def write_rejected_list(file: Path, rejected: Iterable[RejectedRecord]) -> None:
    write_atomically(file, "".join(record.model_dump_json() + "\n" for record in rejected).encode())


def _locate_records(file: Path) -> Iterator[tuple[str, Path, int, int]]:
    """Yields key, file, offset and length of every record of a fragment."""
    with open(file, "rb") as opened:
        for offset, length in _iterate_frames(opened):
            yield _read_key(opened.read(length)), file, offset, length


def _read_key(record: bytes) -> str:
    return bytes(unpack(record)[QUARANTINE_KEY]).decode()


def _iterate_frames(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yields offset and length of the content of every record.

    At each yield, the file is positioned at that offset.
    """
    offset = 0
    while header := file.read(_HEADER.size):
        length, _ = _HEADER.unpack(header)
        offset += _HEADER.size
        yield offset, length
        offset += length + _FOOTER_BYTES
        file.seek(offset)
