"""The signals that end a command: each becomes an exception, so that the command cleans up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A request to stop. Like KeyboardInterrupt, it is not an Exception."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.exit_status = 128 + signal_number


@contextlib.contextmanager
def handle_stop_signals() -> Iterator[None]:
    """Raises Stopped for SIGINT, SIGTERM and SIGHUP within the context.

    A second signal is ignored, so that the cleanup is not interrupted. Signals that the caller has
    set to be ignored, as nohup does, stay ignored.
    """

    def stop(signal_number: int, _frame: Any) -> NoReturn:
        for ignored in _STOP_SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise Stopped(signal_number)

    previous_handlers = {
        signal_number: signal.signal(signal_number, stop)
        for signal_number in _STOP_SIGNALS
        if signal.getsignal(signal_number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
