"""SIGTERM to the train job: the gang saves its state, and another try continues from there."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from pipeline_ops.errors import MachineError


class StopRequest:
    """Notes SIGTERM. A caller that cannot wait sends SIGKILL soon afterwards."""

    is_requested = False

    @contextlib.contextmanager
    def handle_sigterm(self) -> Iterator[StopRequest]:
        previous = signal.signal(signal.SIGTERM, self._request)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, previous)

    def _request(self, _signal: int, _frame: object) -> None:
        self.is_requested = True

    def check(self) -> None:
        """Raises MachineError if the job was requested to stop. No state is left to save."""
        if self.is_requested:
            raise MachineError("stopped by SIGTERM. Another try continues from the last checkpoint")
