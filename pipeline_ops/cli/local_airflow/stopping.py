"""Signals that ask a command to stop, all as one exception, so that one `finally` serves them all."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Somebody asked us to stop. Not an Exception, as KeyboardInterrupt is none."""

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_status = 128 + number


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Within, SIGINT, SIGTERM and SIGHUP raise Stopped. Whoever clears up need not fear the second one: it is ignored.

    What the caller has us ignore, as nohup does, stays ignored.
    """
    before = {number: signal.signal(number, _stop) for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: Any) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
