"""The launcher's end of a pipe to the agent of one host.

A command carries the pipe: the agent itself on this machine, or ssh, srun or kubectl with the agent
at the far end. Nothing here blocks, except for the wait in `close`.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline_ops.jobs.gang_protocol import HEARTBEAT_SECONDS, AgentSpec, Command, Event, Message
from pipeline_ops.launch.messages import LineReader, get_pipes, send_message

_CLOSE_SECONDS = 3.0
_TAIL_BYTES = 600


class AgentConnection:
    """One pipe, from its start to its end. A host that comes back gets a new one.

    Args:
      argv: the command that carries it.
      spec: the agent's specification. It goes through the pipe, because it contains the
        environment.
      log: the output of the command, the agent and the fork server.
    """

    def __init__(self, argv: Sequence[str], spec: AgentSpec, log: Path):
        self._log, self._log_offset = log, log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
            )
        self._stdin, self._stdout = get_pipes(self._process)
        self._events = LineReader(self._stdout.fileno())
        self.last_ping = 0.0
        self.started_at = self.last_received = time.monotonic()
        self.is_open = True
        self._send(spec)

    def fileno(self) -> int:
        return self._events.fileno()

    def send(self, command: Command) -> None:
        """Sends a command. A broken pipe is not an error here: it shows in `is_open`."""
        self._send(command)

    def _send(self, message: Message) -> None:
        if not self._stdin.closed:
            send_message(self._stdin.fileno(), message)

    def ping(self) -> None:
        if time.monotonic() - self.last_ping >= HEARTBEAT_SECONDS:
            self.last_ping = time.monotonic()
            self.send(Command(action="ping"))

    def read_events(self) -> list[Event]:
        """Reads the events that have arrived. The caller knows that the pipe is readable."""
        lines = self._events.read_lines()
        if lines is None:
            self.is_open = False
            return []
        self.last_received = time.monotonic()
        return list(filter(None, map(Event.parse, lines)))

    def wait_for_exit_code(self) -> int | None:
        """Returns the command's exit code, or None while it runs. It ends just after its pipe."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(0.5)
        return None

    def read_log_tail(self) -> str:
        """The last lines that the command has written since its start."""
        with open(self._log, "rb") as file:
            file.seek(self._log_offset)
            lines = file.read()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return "; ".join(line.strip() for line in lines[-3:] if line.strip())

    def close_input(self) -> None:
        """Ends the agent by closing its input, and with it everything on its host."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def close(self) -> None:
        """Closes the input and waits for the far end. Kills the command if there is no answer."""
        self.close_input()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kills the command without waiting for the far end, which may hang or be out of reach."""
        self._process.kill()
        self._process.wait()
        self.is_open = False
        self.close_input()
        self._stdout.close()
