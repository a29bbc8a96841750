"""SIGTERM to one worker stops the whole gang at the same step without loss.

A machine that is about to be reclaimed sends SIGTERM to its processes. The worker that gets it adds
it to the sums that all workers reduce at every step. All workers therefore see it in the same call
of the compiled function, save the same step and leave. No separate message could be late.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from pipeline_ops.errors import MachineError


class Preempted(MachineError):
    """The gang has saved its state and left. The next one resumes from the same step."""

    def __init__(self, step: int):
        super().__init__(f"stopped by SIGTERM after step {step}. Its checkpoint is saved.")


def stop_on_sigterm() -> threading.Event:
    """Returns an event that a SIGTERM to this process sets. Called in the main thread."""
    stop = threading.Event()

    def request_stop(*_: object) -> None:
        # A second signal must not interrupt `set`, which holds a lock.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.set()

    signal.signal(signal.SIGTERM, request_stop)
    return stop


def report_on_sigterm(report: Callable[[], None]) -> None:
    """Calls `report` at the first SIGTERM. The process serves on until the chief has saved.

    The main thread stays inside TensorFlow, where no Python signal handler runs. A thread therefore
    waits for the byte that the interpreter writes when a signal comes.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def wait() -> None:
        os.read(read_end, 1)
        report()

    threading.Thread(target=wait, daemon=True).start()
