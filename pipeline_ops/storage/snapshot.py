"""Reads of one decision: within a block, each thing in a bucket is asked for once.

A plan looks at the same manifests and folders from several sides. In a bucket, each look costs a
request of tens of milliseconds. The block also gives the plan one consistent view. It must not wait
for a change, which it would never see.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")
_PARALLEL = 8


class _Block:
    """The answers of one block of `read_once`, and the threads that ask ahead of time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers = dict[Hashable, Future[Any]]()
        self._is_over = False
        self.threads = ThreadPoolExecutor(_PARALLEL)  # starts no thread before it is needed

    def get(self, key: Hashable, ask: Callable[[], _Value]) -> _Value:
        """Asks, or waits for the thread that is asking, whose error is that of all who wait.

        That there is nothing is an answer, too. After any other error the next one asks again.
        """
        while True:
            with self._lock:
                if self._is_over:
                    raise RuntimeError("the block of this question is over")
                is_asked = key in self._answers
                answer = self._answers.setdefault(key, Future())
            if not is_asked:
                return self._ask(key, ask, answer)
            error = answer.exception()
            if error is None or isinstance(error, Exception):
                return answer.result()  # type: ignore[no-any-return]  # as `ask` returned it

    def end(self) -> None:
        """Waits for the requests that are under way. No further ones are made."""
        with self._lock:
            self._is_over = True
        self.threads.shutdown(cancel_futures=True)

    def _ask(self, key: Hashable, ask: Callable[[], _Value], answer: Future[Any]) -> _Value:
        try:
            found = ask()
        except BaseException as error:
            if not isinstance(error, FileNotFoundError):
                with self._lock:
                    del self._answers[key]
            answer.set_exception(error)
            raise
        answer.set_result(found)
        return found


_block: contextvars.ContextVar[_Block | None] = contextvars.ContextVar(
    "trainyard_snapshot", default=None
)


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Remembers the answers of buckets to this thread until the outermost block ends."""
    if _block.get():
        yield
        return
    block = _Block()
    token = _block.set(block)
    try:
        yield
    finally:
        _block.reset(token)
        block.end()


def remember(key: Hashable, ask: Callable[[], _Value]) -> _Value:
    """Returns the answer to a question, which is asked once within a block of `read_once`."""
    block = _block.get()
    return block.get(key, ask) if block else ask()


def prefetch(*questions: Callable[[], object]) -> None:
    """Asks several questions at the same time, in the background, within a block of `read_once`.

    Those who ask later wait for the same answers. Errors are left to them. Without a block it does
    nothing.
    """

    def ask(question: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):  # the one who needs the answer asks again
            question()

    if block := _block.get():
        for question in questions:
            block.threads.submit(contextvars.copy_context().run, ask, question)


def map_requests(
    function: Callable[[_Item], _Value], items: Iterable[_Item], parallel: int = _PARALLEL
) -> list[_Value]:
    """Calls a function for each item, several at a time, and returns the results in order.

    A request mostly waits. The calls share the answers of a block of `read_once`.
    """
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(parallel, len(items))) as pool:
        calls = [pool.submit(contextvars.copy_context().run, function, item) for item in items]
        return [call.result() for call in calls]
