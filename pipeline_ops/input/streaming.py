"""Reads the examples of a split in a store: from shards on this host, or one by one.

Shards are fetched into the disk cache of this host in the order of their use, ahead of it. A record
whose shard is not here yet, or has no room in the cache, is read from the store on its own, many of
them in parallel. Records that lie next to each other come with one request. A step therefore gets
the same examples whatever is cached, and the first step waits for its own records only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import resource
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline_ops.contract.manifest import ManifestFile
from pipeline_ops.errors import DataError, MachineError, TrainyardError
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.job.local_inputs import REMEDY
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.storage.tfrecord import FRAME_BYTES, list_record_offsets, unframe_record
from pipeline_ops.system.disk_cache import CacheEntry, HostCache

_NAME = "shard.tfrecord"
_TRIES = 2
"""A shard or a record that does not match its checksum is read again once."""
_RETRY_SECONDS = 0.2
"""The time between two tries for a shard that another process fetches, or that has no room."""
_SHARE_OF_DESCRIPTORS = 8
"""A held shard has two descriptors, and a worker has two fetchers, for training and validation.
With this share, they leave half of the process's descriptors to others.
"""
_PARALLEL_READS = 64
_MAX_GAP_BYTES, _MAX_RANGE_BYTES = 32 << 10, 4 << 20
"""Records with a smaller gap between them are read together, up to this many bytes."""

_errors: list[Exception] = []
"""The errors of all readers of this process. TensorFlow passes on only their text."""

ListUpcoming = Callable[[int], Sequence[int]]
"""A function from a position of an order to the shards that are needed from there on, by number."""


@contextlib.contextmanager
def raise_read_errors() -> Iterator[None]:
    """Raises the error of a reader instead of the error of TensorFlow that follows from it.

    A reader that was closed may still add an error, so the one with TensorFlow's text is raised.
    """
    _errors.clear()
    try:
        yield
    except Exception as error:
        text = "" if isinstance(error, TrainyardError) else str(error)
        if cause := next((each for each in _errors if str(each) in text), None):
            raise cause from error
        raise


def read_record_offsets(path: Path) -> np.ndarray:
    """Returns the offset of each record of a shard, int64. Raises MachineError if it is damaged."""
    try:
        return np.array(list_record_offsets(path))
    except ValueError as error:
        raise MachineError(
            f"{error} Remove it, and clear the task preprocess to write it again."
        ) from None


@dataclasses.dataclass(frozen=True)
class RemoteShard:
    """A shard in a store.

    `removed` has the positions of removed records. `lengths` has the number of data bytes of each
    record, removed ones included. It is None if the data set does not list them.
    """

    path: StorePath
    file: ManifestFile
    removed: tuple[int, ...] = ()
    lengths: Sequence[int] | None = None

    @property
    def num_examples(self) -> int:
        """The number of examples without removed ones."""
        return (self.file.num_examples or 0) - len(self.removed)

    def try_fetch(self, cache: HostCache) -> LocalShard | None:
        """Returns the shard on this host. Returns None if another process is fetching it, or the
        cache has no room for it.
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
                    f"bytes of {self.path}. {REMEDY}"
                )
        return np.delete(np.stack([starts, ends]), list(self.removed), axis=1)

    def read_range(self, start: int, end: int) -> bytes:
        """Reads a part of the shard from the store."""
        with self._translate_errors():
            return self.path.read_range(start, end - start)

    @property
    def _digest(self) -> str:
        """Hex digits that identify the content."""
        return self.file.sha256 or f"{self.file.crc32c}{self.file.num_bytes:016x}"

    def _write_offsets(self, cache: HostCache, folder: Path) -> None:
        entry = cache.open_entry("shard", self._digest, self._fill)
        np.save(folder / "offsets.npy", read_record_offsets(entry.path / _NAME))
        entry.close()

    def _fill(self, folder: Path) -> None:
        """Copies the shard into a folder, and checks it on the way."""
        for _ in range(_TRIES):
            with self._translate_errors():
                found = self.path.download(folder / _NAME, self.file.num_bytes)
            if self.file.has_content(found):
                return
            (folder / _NAME).unlink()
        raise MachineError(
            f"{self.path} has {found.num_bytes} bytes with the checksum {found.crc32c}, but the "
            f"manifest lists {self.file.num_bytes} with {self.file.crc32c}. {REMEDY}"
        )

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise MachineError(
                f"{self.path} is missing, but the manifest lists it. {REMEDY}"
            ) from None
        except DataError as error:  # a link
            raise MachineError(f"{error}. {REMEDY}") from None


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


class ShardFetcher:
    """Shards that are on this host or on their way. Several threads may use it.

    The first call of `set_targets` starts the thread that fetches. There is one: it fetches several
    parts of a shard at the same time, and a second one would take the network from the records that
    a step waits for. The size of the shards that are held is limited by `budget_bytes`, and their
    number by the number of files that the process may open.
    """

    def __init__(self, shards: Sequence[RemoteShard], cache: HostCache, budget_bytes: int):
        self._shards, self._cache, self._budget_bytes = shards, cache, budget_bytes
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_limited = soft_limit != resource.RLIM_INFINITY
        self._max_shards = soft_limit // _SHARE_OF_DESCRIPTORS if is_limited else len(shards)
        self._changed = threading.Condition()
        self._targets: list[int] = []
        self._upcoming: Sequence[int] = ()
        self._local: dict[int, LocalShard] = {}
        self._retry_at: dict[int, float] = {}
        self._error: Exception | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def set_targets(self, upcoming: Sequence[int]) -> None:
        """Sets the order in which shards are needed next.

        As many of the first ones as the limits allow are fetched and held. Others are given up.
        """
        with self._changed:
            if upcoming == self._upcoming:
                return
            self._upcoming, self._targets, total = upcoming, [], 0
            for shard in upcoming[: self._max_shards]:
                total += self._shards[shard].file.num_bytes
                if total > self._budget_bytes:
                    break
                self._targets.append(shard)
            kept = set(self._targets)
            self._local = {each: local for each, local in self._local.items() if each in kept}
            if self._targets and self._thread is None:
                self._thread = threading.Thread(target=self._fetch, name="shards", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def get(self, shards: Collection[int], wait_seconds: float = 0.0) -> dict[int, LocalShard]:
        """Returns those of some shards that are on this host.

        Waits at most this long for shards that are on their way. Raises the error of a shard that
        could not be fetched.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._error
                    or all(each in self._local or each not in self._targets for each in shards)
                ),
                wait_seconds,
            )
            if self._error:
                raise self._error
            return {each: self._local[each] for each in shards if each in self._local}

    def close(self) -> None:
        """Gives up all shards, and waits for the end of the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join()
        self._local = {}

    def _fetch(self) -> None:
        """Fetches one shard after another, until this object is closed or an error occurs."""
        try:
            while (shard := self._wait_for_next()) is not None:
                local = self._shards[shard].try_fetch(self._cache)
                with self._changed:
                    if local is None:
                        self._retry_at[shard] = time.monotonic() + _RETRY_SECONDS
                    elif shard in self._targets and not self._is_closed:
                        self._local[shard] = local
                    self._changed.notify_all()
                del local  # ends its use
        except Exception as error:  # readers raise it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_next(self) -> int | None:
        """Returns the next shard to fetch, or None once this object is closed."""
        with self._changed:
            while not self._is_closed:
                missing = [each for each in self._targets if each not in self._local]
                now = time.monotonic()
                for shard in missing:
                    if self._retry_at.get(shard, 0.0) <= now:
                        return shard
                self._changed.wait(_RETRY_SECONDS if missing else None)
            return None


@dataclasses.dataclass(frozen=True)
class RemoteSplit:
    """A split whose shards lie in a store.

    `budget_bytes` is the share of this host's cache that one reader of the split may hold.
    """

    shards: tuple[RemoteShard, ...]
    cache: HostCache
    budget_bytes: int

    @functools.cached_property
    def sequential_reader(self) -> RecordReader:
        """A reader for an order that is shard after shard."""
        return RecordReader(self)

    def close(self) -> None:
        """Closes the sequential reader, if it is open. The next use opens another one."""
        if reader := self.__dict__.pop("sequential_reader", None):
            reader.close()


class _Located(NamedTuple):
    """A record to read from the store: its bytes `[start, end)`, and its position in the batch."""

    shard: int
    start: int
    end: int
    position: int


class RecordReader:
    """Reads examples by number. Several threads may use it.

    Args:
      list_upcoming: the order in which shards are needed. None is one after another.
      patience_seconds: how long a batch waits for shards that are on their way, before it reads its
        records one by one.
    """

    def __init__(
        self,
        split: RemoteSplit,
        list_upcoming: ListUpcoming | None = None,
        patience_seconds: float = 0.0,
    ):
        self._split, self._list_upcoming = split, list_upcoming or self._list_from
        self._patience_seconds = patience_seconds
        self._fetcher = ShardFetcher(split.shards, split.cache, split.budget_bytes)
        self._pool = ThreadPoolExecutor(_PARALLEL_READS, "records")
        self._offsets: dict[int, np.ndarray] = {}
        sizes = np.array([shard.num_examples for shard in split.shards], np.int64)
        self._starts = np.cumsum(sizes) - sizes
        self._lock = threading.Lock()
        self._positions: Counter[int] = Counter()
        """The positions of the batches that are being read."""

    def read(self, examples_k: tf.Tensor, position: tf.Tensor | int = 0) -> tf.Tensor:
        """Returns serialised examples by number, string [k], with one call of Python code.

        `position` is the position of the batch in the order, by which shards are fetched ahead.
        """
        arguments = [tf.cast(position, tf.int64), examples_k]
        records_k = tf.numpy_function(self._read_batch, arguments, tf.string)
        return tf.ensure_shape(records_k, examples_k.shape)

    def _read_batch(self, first: np.ndarray, examples: np.ndarray) -> np.ndarray:
        position = int(first)
        try:
            with self._lock:
                self._positions[position] += 1
                self._fetcher.set_targets(self._list_upcoming(min(self._positions)))
            try:
                return self._read(examples)
            finally:
                with self._lock:
                    self._positions -= Counter([position])
        except Exception as error:
            _errors.append(error)
            raise

    def close(self) -> None:
        """Ends the threads, and the use of shards in the cache."""
        self._fetcher.close()
        self._pool.shutdown()

    def _find_shards(self, examples: np.ndarray | int) -> np.ndarray:
        return np.searchsorted(self._starts, examples, "right") - 1

    def _list_from(self, example: int) -> Sequence[int]:
        first = int(self._find_shards(example))
        return (*range(first, len(self._starts)), *range(first))

    def _read(self, examples: np.ndarray) -> np.ndarray:
        shards = self._find_shards(examples)
        local = self._fetcher.get(set(shards.tolist()), self._patience_seconds)
        records = np.empty(len(examples), object)
        remote: list[_Located] = []
        for index, (shard, example) in enumerate(zip(shards.tolist(), examples, strict=True)):
            if shard not in self._offsets:
                self._offsets[shard] = self._split.shards[shard].list_offsets(self._split.cache)
            start, end = self._offsets[shard][:, example - self._starts[shard]].tolist()
            if shard in local:
                records[index] = local[shard].read_record(start, end)
            else:
                remote.append(_Located(shard, start, end, index))
        for index, record in itertools.chain.from_iterable(
            self._pool.map(self._read_range, _plan_ranges(remote))
        ):
            records[index] = record
        return records

    def _read_range(self, part: Sequence[_Located]) -> list[tuple[int, bytes]]:
        """Reads records with one request. Returns them with their positions in the batch."""
        shard, first, end = self._split.shards[part[0].shard], part[0].start, part[-1].end
        for _ in range(_TRIES):
            content = shard.read_range(first, end)
            found = [
                (each.position, unframe_record(content[each.start - first : each.end - first]))
                for each in part
            ]
            sound = [(index, record) for index, record in found if record is not None]
            if len(sound) == len(found):
                return sound
        raise MachineError(
            f"{shard.path}: a record between the bytes {first} and {end} does not "
            f"match its checksum. {REMEDY}"
        )


def _plan_ranges(records: Sequence[_Located]) -> list[list[_Located]]:
    """Returns the records in parts that are read with one request each."""
    parts: list[list[_Located]] = []
    for record in sorted(records):
        if (
            parts
            and record.shard == parts[-1][0].shard
            and record.start <= parts[-1][-1].end + _MAX_GAP_BYTES
            and record.end <= parts[-1][0].start + _MAX_RANGE_BYTES
        ):
            parts[-1].append(record)
        else:
            parts.append([record])
    return parts
