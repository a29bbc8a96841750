"""SIGTERM to one worker stops the whole gang at the same step, with nothing lost.

A machine that is about to be taken away sends SIGTERM to what runs on it. The worker that gets it says so in the numbers
that all workers add up at every step anyway, so all of them learn of it in the same call of the compiled function, save
the same step and leave. No message of its own is needed, and none can be late.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from pipeline_ops.errors import MachineError


class Preempted(MachineError):
    """The gang has saved its state and left; the next one goes on exactly there."""

    def __init__(self, step: int):
        super().__init__(f"stopped by SIGTERM after step {step}, which is saved")


class StopRequest:
    """Whether this process has been asked to stop. Made once, in the main thread."""

    def __init__(self):
        self._asked = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _signal: int, _frame: object) -> None:
        self._asked = True

    @property
    def as_number(self) -> float:
        """What this worker adds to the sum over all workers: a sum above 0 means that somebody was asked."""
        return float(self._asked)


def report_stop(report: Callable[[], None]) -> None:
    """Has `report` called at the first SIGTERM, and lets the process live: for one that only serves.

    Its main thread is inside TensorFlow for ever, where no handler of Python's runs, so a thread waits for what the interpreter writes when a
    signal comes. The supervisor then asks the chief, and the process serves until the chief has saved.
    """
    asked, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def wait() -> None:
        os.read(asked, 1)
        report()

    threading.Thread(target=wait, daemon=True).start()
