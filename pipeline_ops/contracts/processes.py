"""One process tree on this host: identify it, ask whether it lives, end all of it.

A job is started as the leader of its own session and process group, and so is everything that it starts, so one
signal reaches the whole tree. A pid alone does not identify a process, because pids are reused: its start time goes
with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_STATE, _GROUP, _SESSION, _START_TICKS = 0, 2, 3, 19  # fields of /proc/<pid>/stat after the command's name
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """A process that can't be mistaken for another one: host, pid and start time in clock ticks since boot."""

    host: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Of a process that runs now on this host. Raises ProcessLookupError."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(socket.gethostname(), pid, int(fields[_START_TICKS]))

    @classmethod
    def from_json(cls, value: Mapping) -> ProcessIdentity:
        return cls(**value)

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    def is_alive(self) -> bool:
        """Whether it still runs here; a zombie is dead."""
        fields = _stat(self.pid)
        return fields is not None and fields[_STATE] not in "ZX" and int(fields[_START_TICKS]) == self.start_ticks


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped it."""
    fields = _stat(pid)
    return fields is not None and fields[_STATE] in "Tt"


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def group_members(group: int) -> list[int]:
    """The living processes of a process group, zombies left out."""
    found = []
    for entry in os.listdir("/proc"):
        fields = _stat(int(entry)) if entry.isdigit() else None
        if fields and int(fields[_GROUP]) == group and fields[_STATE] not in "ZX":
            found.append(int(entry))
    return found


def start_detached(argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen:
    """Starts a process as the leader of its own session; both of its outputs are appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=cwd, start_new_session=True
        )


def kill_group(leader: ProcessIdentity, grace_seconds: float) -> bool:
    """Ends a process group: SIGTERM, then SIGKILL to whatever is left after the grace time.

    Members outlive a leader that was killed by signal 9, so the group is looked for even when the leader is gone. That
    is safe: the kernel gives out no pid that is still in use as a process group.

    Returns:
      Whether the group is empty now.
    """
    if not leader.is_alive() and _is_reused(leader):
        return True
    _signal_group(leader.pid, signal.SIGTERM)
    if _wait_until_empty(leader.pid, grace_seconds):
        return True
    _signal_group(leader.pid, signal.SIGKILL)
    return _wait_until_empty(leader.pid, grace_seconds)


def _is_reused(leader: ProcessIdentity) -> bool:
    fields = _stat(leader.pid)
    return fields is not None and int(fields[_START_TICKS]) != leader.start_ticks


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _wait_until_empty(group: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while group_members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
