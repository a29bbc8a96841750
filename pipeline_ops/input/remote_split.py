"""Reads examples of a split in a store: from shards that are on this host, or one by one.

Shards are fetched in the order of their use, ahead of it. A record whose shard is not here yet, or
has no room in the cache, is read from the store on its own, many of them in parallel. Records that
lie next to each other come with one request. A step therefore gets the same examples whatever is
cached, and the first step waits for its own records only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pipeline_ops.errors import MachineError, TrainyardError
from pipeline_ops.input.remote_shard import RemoteShard
from pipeline_ops.input.shard_fetcher import ShardFetcher
from pipeline_ops.jobs.host_dataset import REMEDY
from pipeline_ops.storage.tfrecord import unframe_record
from pipeline_ops.system.disk_cache import HostCache

_PARALLEL_READS = 64
_MAX_GAP_BYTES, _MAX_RANGE_BYTES = 32 << 10, 4 << 20
"""Records with a smaller gap between them are read together, up to this many bytes."""
_TRIES = 2

_errors: list[Exception] = []
"""The errors of all readers of this process. TensorFlow passes on only their text."""

ListUpcoming = Callable[[int], Sequence[int]]
"""A function from a position of an order to the shards that are needed from there on, by number."""


@dataclasses.dataclass(frozen=True)
class RemoteSplit:
    """A split whose shards lie in a store.

    Attributes:
      shards: its shards.
      cache: the cache of this host.
      budget_bytes: the share of the cache that one reader of the split may hold.
    """

    shards: tuple[RemoteShard, ...]
    cache: HostCache
    budget_bytes: int

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """The number of examples of each shard."""
        return np.array([shard.num_examples for shard in self.shards], np.int64)

    @functools.cached_property
    def sequential_reader(self) -> RecordReader:
        """A reader for an order that is shard after shard."""
        ends, num_shards = np.cumsum(self.sizes), len(self.shards)

        @functools.lru_cache(maxsize=1)
        def list_from(first: int) -> Sequence[int]:
            return (*range(first, num_shards), *range(first))

        def list_upcoming(position: int) -> Sequence[int]:
            return list_from(int(np.searchsorted(ends, position, "right")) % num_shards)

        return RecordReader(self, list_upcoming)

    def close(self) -> None:
        """Closes the sequential reader, if it is open."""
        if reader := self.__dict__.pop("sequential_reader", None):
            reader.close()


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


@dataclasses.dataclass
class _Range:
    """A part of a shard that is read with one request, and the records in it."""

    shard: int
    start: int
    end: int
    records: list[tuple[int, int, int]]
    """The position in the batch, the start and the end of each record."""


class RecordReader:
    """Reads examples by number. Several threads may use it.

    Args:
      split: the split.
      list_upcoming: the order in which shards are needed.
      patience_seconds: how long a batch waits for shards that are on their way, before it reads its
        records one by one.
    """

    def __init__(
        self, split: RemoteSplit, list_upcoming: ListUpcoming, patience_seconds: float = 0.0
    ):
        self._split, self._list_upcoming = split, list_upcoming
        self._patience_seconds = patience_seconds
        self._fetcher = ShardFetcher(split.shards, split.cache, split.budget_bytes)
        self._pool = ThreadPoolExecutor(_PARALLEL_READS, "records")
        self._offsets: dict[int, np.ndarray] = {}
        self._starts = np.cumsum(split.sizes) - split.sizes
        self._lock = threading.Lock()
        self._positions: Counter[int] = Counter()
        """The positions of the batches that are being read."""

    def read(self, position: int, examples: np.ndarray) -> np.ndarray:
        """Returns serialised examples by number, as an array of bytes.

        Args:
          position: the position of the batch in the order, by which shards are fetched ahead.
          examples: int64 numbers.

        Raises:
          MachineError: the store or a disk failed, or a record is damaged.
        """
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

    def _read(self, examples: np.ndarray) -> np.ndarray:
        shards = np.searchsorted(self._starts, examples, "right") - 1
        local = self._fetcher.get(set(shards.tolist()), self._patience_seconds)
        records = np.empty(len(examples), object)
        remote = []
        for index, (shard, example) in enumerate(zip(shards, examples, strict=True)):
            offsets = self._list_offsets(int(shard))[:, example - self._starts[shard]]
            start, end = offsets.tolist()
            if shard in local:
                records[index] = local[shard].read_record(start, end)
            else:
                remote.append((int(shard), start, end, index))
        for index, record in itertools.chain.from_iterable(
            self._pool.map(self._read_range, _plan_ranges(remote))
        ):
            records[index] = record
        return records

    def _list_offsets(self, shard: int) -> np.ndarray:
        if shard not in self._offsets:
            self._offsets[shard] = self._split.shards[shard].list_offsets(self._split.cache)
        return self._offsets[shard]

    def _read_range(self, part: _Range) -> list[tuple[int, bytes]]:
        """Returns the records of a part, with their positions in the batch.

        Raises:
          MachineError: a record is damaged, also in a second answer of the store.
        """
        shard = self._split.shards[part.shard]
        for _ in range(_TRIES):
            content = shard.read_range(part.start, part.end)
            found = [
                (index, unframe_record(content[start - part.start : end - part.start]))
                for index, start, end in part.records
            ]
            sound = [(index, record) for index, record in found if record is not None]
            if len(sound) == len(found):
                return sound
        raise MachineError(
            f"{shard.place}: a record between the bytes {part.start} and {part.end} does not "
            f"match its checksum. {REMEDY}"
        )


def _plan_ranges(records: list[tuple[int, int, int, int]]) -> Iterator[_Range]:
    """Yields the parts to read for records, which are (shard, start, end, position in the batch).

    Records that lie close together come in one part.
    """
    part: _Range | None = None
    for shard, start, end, index in sorted(records):
        is_near = (
            part is not None
            and part.shard == shard
            and start <= part.end + _MAX_GAP_BYTES
            and end <= part.start + _MAX_RANGE_BYTES
        )
        if part is not None and is_near:
            part.end = max(part.end, end)
            part.records.append((index, start, end))
            continue
        if part is not None:
            yield part
        part = _Range(shard, start, end, [(index, start, end)])
    if part is not None:
        yield part
