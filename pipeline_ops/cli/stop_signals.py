"""The signals that end a command: each becomes an exception, so that the command cleans up."""

from __future__ import annotations

import contextlib
import signal
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.05


class Stopped(BaseException):
    """A request to stop. Like KeyboardInterrupt, it is not an Exception."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.exit_status = 128 + signal_number


@contextlib.contextmanager
def handle_stop_signals() -> Iterator[None]:
    """Raises Stopped for SIGINT, SIGTERM and SIGHUP within the context.

    A second signal is ignored, so that the cleanup is not interrupted. Signals that the caller has
    set to be ignored, as nohup does, stay ignored. Python drops an exception in a hook of fork(),
    in a destructor and the like. If nobody has the exception any longer, it is raised again.
    """
    is_over = False

    def stop(signal_number: int, _frame: Any) -> NoReturn:
        for ignored in _STOP_SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise make(signal_number)

    def make(signal_number: int) -> Stopped:
        error = Stopped(signal_number)
        weakref.finalize(error, stop_soon, signal_number).atexit = False
        return error

    def stop_soon(signal_number: int) -> None:
        if not is_over:
            signal.signal(signal.SIGALRM, lambda _, frame: stop(signal_number, frame))
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    previous_handlers = {
        signal_number: signal.signal(signal_number, stop)
        for signal_number in _STOP_SIGNALS
        if signal.getsignal(signal_number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        is_over = True
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
