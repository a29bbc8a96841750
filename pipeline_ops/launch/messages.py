"""The gang's messages on pipes: one JSON line for each.

`jobs/gang_protocol.py` defines them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import IO, cast

from pipeline_ops.jobs.gang_protocol import Message


def get_pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """The input and the output of a process that was started with pipes for both."""
    return cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)


class LineReader:
    """Splits the bytes of a pipe into lines. Blocks only if nothing has arrived."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._unread = b""

    def fileno(self) -> int:
        return self._descriptor

    def read_lines(self) -> list[bytes] | None:
        """Returns the complete lines that have arrived; None at the end of the input."""
        data = os.read(self._descriptor, 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        return lines if data else None


def send_message(descriptor: int, message: Message) -> None:
    """Writes a message. A reader that is gone is not an error: it shows in the other direction."""
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, message.model_dump_json(exclude_defaults=True).encode() + b"\n")
