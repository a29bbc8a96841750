"""Reads of one decision: within a block, each thing in a bucket is asked for once.

A plan looks at the same manifests and folders from several sides. In a bucket, each look costs a
request of tens of milliseconds. The block also gives the plan one consistent view. It must not wait
for a change, which it would never see.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")
_found: contextvars.ContextVar[dict[Hashable, object] | None] = contextvars.ContextVar(
    "trainyard_snapshot", default=None
)


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Remembers the answers of buckets to this thread until the outermost block ends."""
    token = _found.set({} if (found := _found.get()) is None else found)
    try:
        yield
    finally:
        _found.reset(token)


def remember(key: Hashable, ask: Callable[[], _Value]) -> _Value:
    """Returns the answer to a question, which is asked once within a block of `read_once`."""
    found = _found.get()
    if found is None:
        return ask()
    if key not in found:
        try:
            found[key] = ask()
        except FileNotFoundError as error:
            found[key] = error
    answer = found[key]
    if isinstance(answer, FileNotFoundError):
        raise answer
    return answer  # type: ignore[return-value]  # as `ask` returned it


def prefetch(*questions: Callable[[], object]) -> None:
    """Asks several questions at the same time, so that later ones find the answers.

    Errors are left to those who need the answer.
    """

    def ask(question: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):  # the one who needs the answer asks again
            question()

    if _found.get() is not None:
        map_requests(ask, questions)


def map_requests(
    function: Callable[[_Item], _Value], items: Iterable[_Item], parallel: int = 8
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
