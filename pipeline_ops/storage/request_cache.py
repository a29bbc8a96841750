"""Caches the requests of one decision: within a block, each object or folder is requested once.

A plan looks at the same manifests and folders from several sides. In a bucket, each look costs a
request of tens of milliseconds. The block also gives the plan one consistent view. It must not wait
for a change, which it would never see.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")
_PARALLEL = 8


class _RequestCache:
    """The responses of one block of `cache_requests`, and the threads that prefetch."""

    def __init__(self) -> None:
        self._responses = dict[Hashable, Future[Any]]()
        self._is_over = False
        self.threads = ThreadPoolExecutor(_PARALLEL)  # starts no thread before it is needed

    def get(self, key: Hashable, request: Callable[[], _Value]) -> _Value:
        """Returns a cached response, or requests it.

        Concurrent reads of one key share a single request and its error. A missing object is cached
        as well. After any other error the next read requests it again.
        """
        own: Future[Any] = Future()
        while (response := self._responses.setdefault(key, own)) is not own:
            error = response.exception()
            if error is None or isinstance(error, Exception):
                return response.result()  # type: ignore[no-any-return]  # as `request` returned it
        try:
            if self._is_over:
                raise RuntimeError("the block of this request is over")
            found = request()
        except BaseException as error:
            if not isinstance(error, FileNotFoundError):
                del self._responses[key]
            own.set_exception(error)
            raise
        own.set_result(found)
        return found

    def end(self) -> None:
        """Waits for the requests that are under way. No further ones are made."""
        self._is_over = True
        self.threads.shutdown(cancel_futures=True)


_cache: contextvars.ContextVar[_RequestCache | None] = contextvars.ContextVar(
    "trainyard_request_cache", default=None
)


@contextlib.contextmanager
def cache_requests() -> Iterator[None]:
    """Caches the responses of buckets to this thread until the outermost block ends."""
    if _cache.get():
        yield
        return
    cache = _RequestCache()
    token = _cache.set(cache)
    try:
        yield
    finally:
        _cache.reset(token)
        cache.end()


def request_once(key: Hashable, request: Callable[[], _Value]) -> _Value:
    """Returns the response to a request, which is sent once within a block of `cache_requests`."""
    cache = _cache.get()
    return cache.get(key, request) if cache else request()


def prefetch(*requests: Callable[[], object]) -> None:
    """Sends several requests at the same time, in the background, within `cache_requests`.

    Later readers wait for the same responses, and get the errors. Does nothing without a block.
    """
    if cache := _cache.get():
        for request in requests:
            cache.threads.submit(contextvars.copy_context().run, request)


def map_requests(
    function: Callable[[_Item], _Value], items: Iterable[_Item], parallel: int = _PARALLEL
) -> list[_Value]:
    """Calls a function for each item, several at a time, and returns the results in order.

    It is for work that mostly waits or releases the interpreter lock. The calls share the cache of
    a block of `cache_requests`. After an error, no further ones begin.
    """
    items = list(items)
    threads = min(parallel, len(items))
    if threads < 2:
        return [function(item) for item in items]
    contexts = [contextvars.copy_context() for _ in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda each, item: each.run(function, item), contexts, items))
