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
from typing import Annotated

import pydantic
import pydantic.dataclasses

_STATE, _GROUP, _SESSION, _START_TICKS = 0, 2, 3, 19  # fields of /proc/<pid>/stat after the command's name
_POLL_SECONDS = 0.05


ATTEMPT_VARIABLE = "TRAINYARD_ATTEMPT"
"""Each process of a job has the folder of its attempt here."""
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Keeps Python from importing modules out of the working folder, or out of the folder of a script."""
_Number = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


@pydantic.dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """A process that can't be mistaken for another one: host, pid and start time in clock ticks since boot."""

    host: Annotated[str, pydantic.Field(min_length=1, max_length=255)]
    pid: Annotated[int, pydantic.Field(ge=1, lt=2**31)]
    start_ticks: _Number

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Of a process that runs now on this host. Raises ProcessLookupError."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(socket.gethostname(), pid, int(fields[_START_TICKS]))

    @classmethod
    def from_json(cls, value: Mapping) -> ProcessIdentity:
        """Raises ValueError or TypeError where the value is not one."""
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


def bears(pid: int, mark: tuple[str, str]) -> bool:
    """Whether a process of this user was started with that variable in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it is gone, or belongs to another user
        return False
    return f"{mark[0]}={mark[1]}".encode(errors="surrogateescape") in environment.split(b"\0")


def start_detached(argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen:
    """Starts a process as the leader of its own session; both of its outputs are appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=cwd, start_new_session=True
        )


def kill_group(leader: ProcessIdentity, grace_seconds: float,
               mark: tuple[str, str] | None = None) -> bool:
    """Ends a process group: SIGTERM, then SIGKILL to whatever is left after the grace time.

    Members outlive a leader that was killed by signal 9, so the group is looked for even when the
    leader is gone. That is safe: the kernel gives out no pid that is still in use as a process
    group.

    Args:
      leader: what the caller has started, or what a file says of it.
      grace_seconds: between the two signals.
      mark: a variable that all members inherit from their start. A group of which no member
        bears it belongs to somebody else and gets no signal. None where the leader was started by
        the caller.

    Returns:
      Whether nothing of the group is left.
    """
    if not leader.is_alive() and _is_reused(leader):
        return True
    if mark and not any(bears(pid, mark) for pid in group_members(leader.pid)):
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
