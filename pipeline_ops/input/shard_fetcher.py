"""Fetches shards ahead of their use, and holds them on this host until their use is over."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Collection, Sequence

from pipeline_ops.input.remote_shard import LocalShard, RemoteShard
from pipeline_ops.system.disk_cache import HostCache

_THREADS = 1
"""Each thread fetches several parts of a shard at the same time. More of them would take the
network from the records that a step waits for.
"""
_RETRY_SECONDS = 0.2
"""The time between two tries for a shard that another process fetches, or that has no room."""

_SHARE_OF_DESCRIPTORS = 8
"""A held shard has two descriptors, and a worker has two fetchers, for training and validation.
With this share, they leave half of the process's descriptors to others.
"""


class ShardFetcher:
    """Shards that are on this host or on their way.

    Several threads may use it. The first call of `set_targets` starts the threads that fetch. The
    number of held shards is limited, too, because the process may open a limited number of files.

    Args:
      shards: all shards.
      cache: the cache of this host.
      budget_bytes: the maximum size of the shards that are held at the same time.
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
        self._fetching: set[int] = set()
        self._retry_at: dict[int, float] = {}
        self._error: Exception | None = None
        self._is_closed = False
        self._threads: list[threading.Thread] = []

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
            self._start_threads()
            self._changed.notify_all()

    def get(self, shards: Collection[int], wait_seconds: float = 0.0) -> dict[int, LocalShard]:
        """Returns those of some shards that are on this host.

        Waits at most this long for shards that are on their way.

        Raises:
          MachineError: a shard could not be fetched.
        """
        with self._changed:
            if wait_seconds:
                self._changed.wait_for(lambda: self._error or self._are_here(shards), wait_seconds)
            if self._error:
                raise self._error
            return {each: self._local[each] for each in shards if each in self._local}

    def close(self) -> None:
        """Gives up all shards, and waits for the end of the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._local = {}

    def _are_here(self, shards: Collection[int]) -> bool:
        return all(each in self._local or each not in self._targets for each in shards)

    def _start_threads(self) -> None:
        if self._threads or not self._targets:
            return
        self._threads = [
            threading.Thread(target=self._fetch, name="shards", daemon=True)
            for _ in range(_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _fetch(self) -> None:
        """Fetches one shard after another, until this object is closed or an error occurs."""
        try:
            while (shard := self._take_next()) is not None:
                local = self._shards[shard].try_fetch(self._cache)
                with self._changed:
                    self._fetching.remove(shard)
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

    def _take_next(self) -> int | None:
        """Waits for a shard to fetch. Returns None once this object is closed."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                missing = [
                    each
                    for each in self._targets
                    if each not in self._local and each not in self._fetching
                ]
                for shard in missing:
                    if self._retry_at.get(shard, 0.0) <= now:
                        self._fetching.add(shard)
                        return shard
                self._changed.wait(_RETRY_SECONDS if missing else None)
            return None
