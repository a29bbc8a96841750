"""SIGTERM to a worker: it is remembered during steps, and ends what may take longer."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


class StopReceived(BaseException):
    """A SIGTERM in an `interrupting` block. No user code catches it by accident."""


class StopSignal:
    """Handles the SIGTERM of this process. Made in its main thread."""

    def __init__(self) -> None:
        self._is_set = self._interrupts = False
        signal.signal(signal.SIGTERM, self._handle)

    def is_set(self) -> bool:
        return self._is_set

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raises StopReceived in the block once a SIGTERM comes, also in a user's Python code.

        The block must not begin before the state is saved, and must leave nothing half done that
        the next gang would see.
        """
        self._interrupts = True
        try:
            if self._is_set:
                raise StopReceived
            yield
        finally:
            self._interrupts = False

    def _handle(self, _signal: int, _frame: object) -> None:
        self._is_set = True
        if self._interrupts:
            self._interrupts = False
            raise StopReceived
