"""A shard in a store: the way into the cache of this host, and the places of its records."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.artifacts.manifest import ManifestFile
from pipeline_ops.errors import DataError, MachineError
from pipeline_ops.input.records import read_record_offsets
from pipeline_ops.jobs.host_dataset import REMEDY
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.storage.tfrecord import FRAME_BYTES, unframe_record
from pipeline_ops.system.cache_entry import CacheEntry
from pipeline_ops.system.disk_cache import HostCache

_NAME = "shard.tfrecord"
_TRIES = 2


@dataclasses.dataclass(frozen=True)
class RemoteShard:
    """A shard in a store.

    Attributes:
      place: the location of the shard.
      file: its entry in the manifest.
      removed: the positions of removed records.
      lengths: the number of data bytes of all its records, as the data set lists them. None if the
        data set does not.
    """

    place: StorePath
    file: ManifestFile
    removed: tuple[int, ...] = ()
    lengths: Sequence[int] | None = None

    @property
    def num_examples(self) -> int:
        """The number of examples without removed ones."""
        return (self.file.num_examples or 0) - len(self.removed)

    def try_fetch(self, cache: HostCache) -> LocalShard | None:
        """Returns the shard on this host.

        Returns:
          None if another process is fetching it, or the cache has no room for it.
        """
        entry = cache.try_open_entry("shard", self._digest, self._fill, self.file.num_bytes)
        return LocalShard(entry) if entry else None

    def list_offsets(self, cache: HostCache) -> np.ndarray:
        """Returns where the records that count begin, and where they end, int64 [2, N].

        If the data set does not list the lengths, the shard is fetched once to find them.
        """
        if self.lengths is None:
            folder = cache.get_or_create(
                "offsets", self._digest, lambda folder: self._write_offsets(cache, folder)
            )
            starts = np.load(folder / "offsets.npy")
            ends = np.append(starts[1:], self.file.num_bytes)
        else:
            ends = np.cumsum(np.array(self.lengths, np.int64) + FRAME_BYTES)
            starts = np.append(0, ends[:-1])
            if (ends[-1] if len(ends) else 0) != self.file.num_bytes:
                raise DataError(
                    f"the listed lengths of the records do not add up to the {self.file.num_bytes} "
                    f"bytes of {self.place}. {REMEDY}"
                )
        return np.delete(np.stack([starts, ends]), list(self.removed), axis=1)

    def read_range(self, start: int, end: int) -> bytes:
        """Reads a part of the shard from the store. Raises MachineError if it is missing."""
        try:
            return self.place.read_range(start, end - start)
        except FileNotFoundError:
            raise self._make_missing_error() from None
        except DataError as error:  # a link
            raise MachineError(f"{error}. {REMEDY}") from None

    @property
    def _digest(self) -> str:
        """Hex digits that identify the content."""
        return self.file.sha256 or f"{self.file.crc32c}{self.file.num_bytes:016x}"

    def _write_offsets(self, cache: HostCache, folder: Path) -> None:
        entry = cache.open_entry("shard", self._digest, self._fill, self.file.num_bytes)
        np.save(folder / "offsets.npy", read_record_offsets(entry.path / _NAME))
        entry.close()

    def _fill(self, folder: Path) -> None:
        """Copies the shard into a folder, and checks it on the way."""
        for _ in range(_TRIES):
            try:
                found = self.place.download(folder / _NAME, self.file.num_bytes)
            except FileNotFoundError:
                raise self._make_missing_error() from None
            except DataError as error:  # a link
                raise MachineError(f"{error}. {REMEDY}") from None
            if self.file.has_content(found):
                return
            (folder / _NAME).unlink()
        raise MachineError(
            f"{self.place} has {found.num_bytes} bytes with the checksum {found.crc32c}, but the "
            f"manifest lists {self.file.num_bytes} with {self.file.crc32c}. {REMEDY}"
        )

    def _make_missing_error(self) -> MachineError:
        return MachineError(f"{self.place} is missing, but the manifest lists it. {REMEDY}")


class LocalShard:
    """A shard in the cache. It stays there as long as this object exists."""

    def __init__(self, entry: CacheEntry):
        self._entry, self._path = entry, entry.path / _NAME
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read_record(self, start: int, end: int) -> bytes:
        """Reads the record at `[start, end)`. Raises MachineError if the disk has damaged it."""
        record = unframe_record(os.pread(self._descriptor, end - start, start))
        if record is None:
            raise MachineError(
                f"{self._path}: the record at byte {start} is damaged. "
                f"Remove the folder {self._path.parent}, then retry."
            )
        return record
