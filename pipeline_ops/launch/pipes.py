"""Pipes between the launcher, its agents and the fork servers: messages, and files of other hosts.

A message (`jobs/gang_protocol.py`) is one JSON line. A host that shares no disk with the launcher
also sends what its processes append to their logs, progress and status. The launcher appends it to
its own files of the same names, so it reads local files only, and the bucket gets no requests.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import time
from pathlib import Path
from typing import IO, cast

from pipeline_ops.jobs.gang_protocol import Event, Message
from pipeline_ops.storage.atomic import translate_write_errors

RELAY_SECONDS = 0.25
_RELAYED = re.compile(r"[a-z0-9-]+(\.log|\.jsonl|\.status\.json)")
_CHUNK_BYTES = 2700
"""As base64 in a message, these are less than a pipe's 4096 bytes."""
_MAX_CHUNKS = 100
"""The limit for one call. A process that writes without end must not occupy the agent."""
_LAST_SECONDS = 1.0


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


def read_new_lines(path: Path, offset: int, max_bytes: int) -> bytes:
    """Reads the complete lines after an offset. A line of more than `max_bytes` comes in parts."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(max_bytes)
    return data if len(data) == max_bytes else data[: data.rfind(b"\n") + 1]


class FileRelay:
    """Sends the launcher what is appended to the files of an attempt, on the agent's side.

    The agent must notice a launcher that is silent, so nothing here blocks while the launcher does
    not read: a message is small enough for the free part of a pipe. What the folder contains at the
    start is not sent.
    """

    def __init__(self, folder: Path, events: int):
        self._folder, self._events = folder, events
        self._offsets = {file.name: file.stat().st_size for file in folder.iterdir()}

    def send_new(self) -> bool:
        """Sends new whole lines while the pipe has room. Returns whether something was sent."""
        chunks = 0
        for name in sorted(filter(_RELAYED.fullmatch, os.listdir(self._folder))):
            while chunks < _MAX_CHUNKS and self._send_chunk(name):
                chunks += 1
        return chunks > 0

    def send_all(self) -> None:
        """Sends everything up to now, or as much as the launcher reads within a second."""
        deadline = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < deadline:
            if not self.send_new() and self._has_room(deadline - time.monotonic()):
                return

    def remove(self, name: str) -> None:
        """Removes a file of an earlier process of that name."""
        (self._folder / name).unlink(missing_ok=True)
        self._offsets.pop(name, None)

    def _send_chunk(self, name: str) -> bool:
        offset = self._offsets.get(name, 0)
        data = read_new_lines(self._folder / name, offset, _CHUNK_BYTES)
        if not data or not self._has_room(0.0):
            return False
        send_message(self._events, Event(event="appended", name=name, data=data))
        self._offsets[name] = offset + len(data)
        return True

    def _has_room(self, timeout_seconds: float) -> bool:
        return bool(select.select([], [self._events], [], max(0.0, timeout_seconds))[1])


def append_to_file(folder: Path, event: Event) -> None:
    """Appends the data of a relayed file, on the launcher's side."""
    if _RELAYED.fullmatch(event.name):
        path = folder / event.name
        with translate_write_errors(path), open(path, "ab") as file:
            file.write(event.data)
