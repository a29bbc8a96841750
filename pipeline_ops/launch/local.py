"""This host: the preloaded process on it, and what it says of its forks."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

from pipeline_ops.contracts.errors import MachineError
from pipeline_ops.contracts.gang import PRELOADED_MODULE, Event, Fork

_STOP_SECONDS = 5.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now. All are held at once, so no two are the same."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()


class LocalHost:
    """Starts the preloaded process and forks through it. It runs in the job's process group, so a signal reaches both.

    Args:
      log: where the preloaded process itself writes to.
    """

    def __init__(self, log: Path):
        self._log = log
        self._process: subprocess.Popen | None = None
        self._unread = b""
        self.living: dict[str, int] = {}
        """Pids of the forks that live, by name."""

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_seconds: float) -> None:
        """Returns once it is ready to fork. Raises MachineError if it ends or takes too long."""
        self.stop()
        self._unread = b""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", PRELOADED_MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        deadline = time.monotonic() + timeout_seconds
        while not any(event.event == "ready" for event in self.events(0.2)):
            if not self.is_up:
                raise MachineError(f"the preloaded process ended with {self._process.returncode} before it was ready; its log is {self._log}")
            if time.monotonic() > deadline:
                raise MachineError(f"the preloaded process was not ready within {timeout_seconds:.0f} s; its log is {self._log}")

    def fork(self, fork: Fork) -> None:
        try:
            os.write(self._process.stdin.fileno(), fork.model_dump_json().encode() + b"\n")
        except BrokenPipeError:
            raise MachineError(f"the preloaded process is gone; its log is {self._log}") from None

    def events(self, timeout_seconds: float) -> list[Event]:
        """What has happened, waiting for it up to the timeout. Empty for good once the process is gone."""
        output = self._process.stdout.fileno()
        readable, _, _ = select.select([output], [], [], timeout_seconds)
        if not readable:
            return []
        data = os.read(output, 1 << 16)
        if not data:
            time.sleep(timeout_seconds)  # end of file stays readable
        *lines, self._unread = (self._unread + data).split(b"\n")
        events = [event for line in lines if (event := Event.parse(line))]
        for event in events:
            self._keep_books(event)
        return events

    def _keep_books(self, event: Event) -> None:
        if event.event == "started":
            self.living[event.name] = event.pid
        elif event.event == "ended":
            self.living.pop(event.name, None)

    def kill_forks(self, signal_number: int) -> None:
        for pid in self.living.values():
            try:
                os.kill(pid, signal_number)
            except ProcessLookupError:
                continue

    def stop(self) -> None:
        """Ends the process and, by closing its input, all its forks. They die with it even if it was killed."""
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process = None
        self.living.clear()
