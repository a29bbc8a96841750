"""Sends the launcher what the processes of another host append to their logs and progress.

It serves hosts that share no disk with the launcher. Their agents send the new bytes through their
pipes, and the launcher appends them to its own files of the same names. So the rest of the launcher
reads local files only, and the bucket gets no requests for it.

The agent must notice a launcher that is silent, so nothing here blocks while the launcher does not
read: a message is small enough for the free part of a pipe.
"""

from __future__ import annotations

import os
import re
import select
import time
from pathlib import Path

from pipeline_ops.jobs.gang_protocol import Event
from pipeline_ops.launch.messages import send_message
from pipeline_ops.storage.atomic import translate_write_errors

RELAY_SECONDS = 0.25
_NAME = re.compile(r"[a-z0-9-]+(\.log|\.jsonl|\.status\.json)")
_CHUNK_BYTES = 2700
"""As base64 in a message, these are less than a pipe's 4096 bytes."""
_MAX_CHUNKS = 100
"""The limit for one call. A process that writes without end must not occupy the agent."""
_LAST_SECONDS = 1.0


class FileRelay:
    """The agent's side.

    Args:
      folder: the folder of the attempt on this host. What it contains now is not sent.
      events: the descriptor to the launcher.
    """

    def __init__(self, folder: Path, events: int):
        self._folder, self._events = folder, events
        self._offsets = {file.name: file.stat().st_size for file in folder.iterdir()}

    def send_new(self) -> bool:
        """Sends new whole lines, as far as there is room. Returns whether something was sent."""
        chunks = 0
        for name in sorted(filter(_NAME.fullmatch, os.listdir(self._folder))):
            while chunks < _MAX_CHUNKS and self._send_chunk(name):
                chunks += 1
        return chunks > 0

    def send_all(self) -> None:
        """Sends everything up to now, or what the launcher takes within a second."""
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
        with open(self._folder / name, "rb") as file:
            file.seek(offset)
            data = file.read(_CHUNK_BYTES)
        # A long line goes in parts.
        whole = data if len(data) == _CHUNK_BYTES else data[: data.rfind(b"\n") + 1]
        if not whole or not self._has_room(0.0):
            return False
        send_message(self._events, Event(event="appended", name=name, data=whole))
        self._offsets[name] = offset + len(whole)
        return True

    def _has_room(self, timeout_seconds: float) -> bool:
        return bool(select.select([], [self._events], [], max(0.0, timeout_seconds))[1])


def append_to_file(folder: Path, event: Event) -> None:
    """The launcher's side. Raises MachineError if the disk failed."""
    if _NAME.fullmatch(event.name):
        path = folder / event.name
        with translate_write_errors(path), open(path, "ab") as file:
            file.write(event.data)
