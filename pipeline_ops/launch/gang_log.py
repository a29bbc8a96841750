"""`gang.log` in the attempt's folder: the messages of all processes of a gang in one file.

Each line has its time and its worker. It is copied from the workers' own logs and progress while
the gang runs, so the messages of a killed process are kept. The time of a log line is when it
was read here, a moment after it was written. The time of progress is its own. After a failed gang,
the first failure is the last line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.jobs.progress import ProgressEvent
from pipeline_ops.storage.atomic import translate_write_errors

_MAX_BYTES = 1 << 20
"""The limit for one log at a time.

A worker that writes without end must not block the supervisor.
"""


class GangLog:
    """The merged log of one attempt, through all incarnations.

    Args:
      attempt: the folder with the workers' files.
    """

    def __init__(self, attempt: Attempt):
        self.path = attempt.folder / "gang.log"
        self._attempt = attempt
        self._offsets: dict[str, int] = {}

    def copy_new_lines(
        self, names: Iterable[str], events: Iterable[tuple[str, ProgressEvent]]
    ) -> None:
        """Copies the new complete lines of the workers' logs, and new progress with its workers."""
        now = time.time()
        lines = [(now, name, line) for name in names for line in self._read_new_lines(name)]
        lines += [(event.time, name, str(event)) for name, event in events]
        self._write(sorted(lines, key=lambda line: line[0]))

    def write_message(self, text: str) -> None:
        """Writes a line of the supervisor's own."""
        self._write([(time.time(), "gang", line) for line in text.splitlines()])

    def _read_new_lines(self, name: str) -> list[str]:
        try:
            with open(self._attempt.worker_log(name), "rb") as file:
                file.seek(self._offsets.get(name, 0))
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return []
        complete = data if len(data) == _MAX_BYTES else data[: data.rfind(b"\n") + 1]
        self._offsets[name] = self._offsets.get(name, 0) + len(complete)
        return complete.decode(errors="replace").splitlines()

    def _write(self, lines: Iterable[tuple[float, str, str]]) -> None:
        text = "".join(
            f"{_format_time(seconds)}  {name:<9}  {line}\n" for seconds, name, line in lines
        )
        if text:
            with translate_write_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
                file.write(text)


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"
