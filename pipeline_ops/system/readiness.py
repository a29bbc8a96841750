"""Waits for sockets and pipes, in processes that may have any number of open files."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol, TypeVar

_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
_WRITABLE = select.POLLOUT | select.POLLHUP | select.POLLERR


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


_File = TypeVar("_File", bound=_HasDescriptor)


def wait_until_ready(
    readers: Sequence[_File], writers: Sequence[_File] = (), timeout_seconds: float = 0.0
) -> tuple[list[_File], list[_File]]:
    """Returns the readers and the writers that are ready, as soon as there are any.

    Works like `select.select`, which refuses every descriptor above 1,023. A lost connection is
    ready.
    """
    awaited = {each.fileno(): select.POLLIN for each in readers}
    for each in writers:
        awaited[each.fileno()] = awaited.get(each.fileno(), 0) | select.POLLOUT
    poll = select.poll()
    for descriptor, events in awaited.items():
        poll.register(descriptor, events)
    ready = dict(poll.poll(1000 * timeout_seconds))
    return (
        [each for each in readers if ready.get(each.fileno(), 0) & _READABLE],
        [each for each in writers if ready.get(each.fileno(), 0) & _WRITABLE],
    )
