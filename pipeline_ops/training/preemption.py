"""SIGTERM to one worker stops the whole gang at the same step without loss.

A machine that is about to be taken away sends SIGTERM to its processes. The worker that gets it
adds it to the sums that all workers reduce at every step anyway. So all workers learn of it in the
same call of the compiled function, save the same step and leave. It needs no separate message that
could be late.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from pipeline_ops.errors import MachineError


class Preempted(MachineError):
    """The gang has saved its state and left. The next one goes on from the same step."""

    def __init__(self, step: int):
        super().__init__(f"stopped by SIGTERM after step {step}, which is saved")


class StopRequest:
    """The SIGTERM state of this process. Created once, in the main thread."""

    def __init__(self):
        self._asked = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, _signal: int, _frame: object) -> None:
        self._asked = True

    @property
    def as_number(self) -> float:
        """This worker's share in the sum over all workers. A sum above 0 is a request to stop."""
        return float(self._asked)


def report_stop(report: Callable[[], None]) -> None:
    """Calls `report` at the first SIGTERM and lets a process that only serves live.

    The main thread stays inside TensorFlow, where no Python signal handler runs. So a thread waits
    for the byte that the interpreter writes when a signal comes. The supervisor then asks the chief
    to stop, and the process serves until the chief has saved.
    """
    asked, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def wait() -> None:
        os.read(asked, 1)
        report()

    threading.Thread(target=wait, daemon=True).start()
