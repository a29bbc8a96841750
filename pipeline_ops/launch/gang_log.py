"""The log of a gang, `gang.log` in the folder of an attempt, for the people who look for a cause.

It copies the messages of the workers and leaves their files as they are. `gang.py` uses it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.launch.agent import read_new_lines
from pipeline_ops.storage.local_files import translate_write_errors

_MAX_LOG_BYTES = 1 << 20
"""The limit for one log at a time: a worker that writes without end must not block the gang."""


class GangLog:
    """The messages of all processes of all incarnations in one file.

    Each line starts with its time and its worker. New lines are copied while the gang runs, so the
    messages of a killed process are kept. A line of progress has its own time, and a line of a
    worker's log the time of the copy. After a failed gang, the last line is the first failure.
    """

    def __init__(self, attempt: Attempt):
        self.path = attempt.folder / "gang.log"
        self._attempt = attempt
        self._offsets: Counter[str] = Counter()

    def copy_new_lines(
        self, names: Iterable[str], events: Iterable[tuple[str, ProgressEvent]]
    ) -> None:
        """Copies the new complete lines of the workers' logs, and their new progress events."""
        now = time.time()
        lines = [(event.time, name, str(event)) for name, event in events]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                path = self._attempt.worker_log(name)
                data = read_new_lines(path, self._offsets[name], _MAX_LOG_BYTES)
                self._offsets[name] += len(data)
                lines += [(now, name, line) for line in data.decode(errors="replace").splitlines()]
        self._write(sorted(lines, key=lambda line: line[0]))

    def write_message(self, text: str) -> None:
        """Writes a message of the supervisor."""
        self._write([(time.time(), "gang", line) for line in text.splitlines()])

    def _write(self, lines: Iterable[tuple[float, str, str]]) -> None:
        text = ""
        for seconds, name, line in lines:
            stamp = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
            text += f"{stamp}Z  {name:<9}  {line}\n"
        if text:
            with translate_write_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
                file.write(text)
