"""Signals that stop a command, all as one exception, so that one `finally` serves them all."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A request to stop. Like KeyboardInterrupt, it is not an Exception."""

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_status = 128 + number


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Raises Stopped for SIGINT, SIGTERM and SIGHUP within the context.

    A second signal is ignored, so that the cleanup is not interrupted. Signals that the caller has
    set to be ignored, as nohup does, stay ignored.
    """
    before = {
        number: signal.signal(number, _stop)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: Any) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
