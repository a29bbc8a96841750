"""The launcher's end of a pipe to the agent of one host.

A command carries the pipe: the agent itself on this machine, or ssh, srun or kubectl with the agent
at the far end. Nothing here blocks, except for the last moment of `close`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline_ops.jobs.gang_protocol import BEAT_SECONDS, AgentSpec, Command, Event, Message

_CLOSE_SECONDS = 3.0
_TAIL_BYTES = 600


class AgentConnection:
    """One pipe, from its start to its end. A host that comes back gets a new one.

    Args:
      argv: the command that carries it.
      spec: the agent's specification. It goes through the pipe, because it contains the
        environment.
      log: the output of the command, the agent and the preloaded process.
    """

    def __init__(self, argv: Sequence[str], spec: AgentSpec, log: Path):
        self._log, self._log_start = log, log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
            )
        self._unread = b""
        self._pinged = 0.0
        self.started = self.heard = time.monotonic()
        self.is_open = True
        self._send(spec)

    def fileno(self) -> int:
        return self._process.stdout.fileno()

    def send(self, order: Command) -> None:
        """Sends an order. A broken pipe is not an error here: it shows in `is_open`."""
        self._send(order)

    def _send(self, message: Message) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            os.write(
                self._process.stdin.fileno(),
                message.model_dump_json(exclude_defaults=True).encode() + b"\n",
            )

    def ping(self) -> None:
        if time.monotonic() - self._pinged >= BEAT_SECONDS:
            self._pinged = time.monotonic()
            self.send(Command(order="ping"))

    @property
    def pinged(self) -> float:
        """The time of the last ping to the agent."""
        return self._pinged

    def read(self) -> list[Event]:
        """Reads the events that have come in. The caller knows that the pipe is readable."""
        data = os.read(self.fileno(), 1 << 16)
        self.is_open = bool(data)
        self.heard = time.monotonic() if data else self.heard
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [event for line in lines if (event := Event.parse(line))]

    def exit_code(self) -> int | None:
        """The exit code of the command, which ends a moment after its pipe; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(0.5)
        return None

    def last_words(self) -> str:
        """The last lines that the command has written since its start."""
        with open(self._log, "rb") as file:
            file.seek(self._log_start)
            lines = file.read()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return "; ".join(line.strip() for line in lines[-3:] if line.strip())

    def kill(self) -> None:
        """Kills the command without waiting for the far end, which may hang or be out of reach."""
        self._process.kill()
        self._close_pipes()
        self._process.wait()

    def hang_up(self) -> None:
        """Ends the agent by closing its input, and with it everything on its host."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """Hangs up and waits for the far end. Kills the command if the far end does not answer."""
        self.hang_up()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        self.is_open = False
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
