"""The quarantine of bad records: their keys, reasons and bytes, as files of a data set.

A worker writes the bad records of a shard into a file of their own next to it. The driver writes
another one, with the records that no worker has read. A later data set references the file of an
older shard while one of its records is still bad. Such a file may also hold records that are no
longer bad: the list of bad records decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from beam_jobs.io.example import pack
from beam_jobs.io.tfrecord_writer import TFRecordWriter
from beam_jobs.statistics.summary import BadRecord, RejectedRecord
from pipeline_ops.artifacts.dataset import (
    QUARANTINE_CONTENT,
    QUARANTINE_DETAIL,
    QUARANTINE_KEY,
    QUARANTINE_NUM_BYTES,
    QUARANTINE_PREFIX,
    QUARANTINE_REASON,
    QUARANTINE_SOURCE,
    QUARANTINE_STAGE,
)
from pipeline_ops.artifacts.manifest import ManifestFile
from pipeline_ops.storage.atomic import write_atomically
from pipeline_ops.storage.store_path import StorePath

MAX_BYTES = 1 << 20
"""The maximum number of bytes of a record's content. A longer content is cut off there."""


class QuarantineWriter(contextlib.ExitStack):
    """Writes the bad records of one shard. It makes a file only if there is a bad record.

    Args:
      folder: the folder of the shards.
      shard: the name of the shard.
    """

    def __init__(self, folder: StorePath, shard: str):
        super().__init__()
        self._path = folder / f"{QUARANTINE_PREFIX}{shard}"
        self._writer: TFRecordWriter | None = None

    def add(self, record: BadRecord) -> RejectedRecord:
        """Adds a bad record. Returns its line of the list, which names the file."""
        rejected = record.rejected
        if self._writer is None:
            self._writer = self.enter_context(TFRecordWriter(self._path))
        self._writer.write(
            pack(
                {
                    QUARANTINE_KEY: rejected.key.encode(),
                    QUARANTINE_STAGE: rejected.stage.encode(),
                    QUARANTINE_REASON: rejected.reason.encode(),
                    QUARANTINE_DETAIL: rejected.detail.encode(),
                    QUARANTINE_SOURCE: record.source.encode(),
                    QUARANTINE_NUM_BYTES: record.num_bytes,
                    QUARANTINE_CONTENT: record.content[:MAX_BYTES],
                }
            )
        )
        return rejected.model_copy(update={"file": self._path.name})

    @property
    def file(self) -> ManifestFile | None:
        """The file for the manifest, if there is one."""
        return self._writer.file if self._writer else None


def write_rejected_list(file: Path, rejected: Iterable[RejectedRecord]) -> None:
    write_atomically(file, "".join(record.model_dump_json() + "\n" for record in rejected).encode())
