"""One process tree on this host: identifies it, checks whether it is alive, and ends all of it.

A job is started as the leader of its own session and process group, and so are all processes that
it starts. One signal therefore reaches the whole tree. A pid alone does not identify a process,
because pids are reused. The start time completes it.
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

_STATE, _GROUP, _SESSION, _START_TICKS = (
    0,
    2,
    3,
    19,
)  # fields of /proc/<pid>/stat after the command's name
_POLL_SECONDS = 0.05


ATTEMPT_VARIABLE = "TRAINYARD_ATTEMPT"
"""The environment variable that holds the folder of the attempt in each process of a job."""
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Keeps Python from importing modules from the working folder or from the folder of a script."""
_Number = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


@pydantic.dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """The unique identity of a process: host, pid and start time in clock ticks since boot."""

    host: Annotated[str, pydantic.Field(min_length=1, max_length=255)]
    pid: Annotated[int, pydantic.Field(ge=1, lt=2**31)]
    start_ticks: _Number

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of a process that runs now on this host. Raises ProcessLookupError."""
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(socket.gethostname(), pid, int(fields[_START_TICKS]))

    @classmethod
    def from_json(cls, value: Mapping) -> ProcessIdentity:
        """Parses an identity. Raises ValueError or TypeError if the value is invalid."""
        return cls(**value)

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    def is_alive(self) -> bool:
        """Returns whether the process still runs here. A zombie is dead."""
        fields = _stat(self.pid)
        return (
            fields is not None
            and fields[_STATE] not in "ZX"
            and int(fields[_START_TICKS]) == self.start_ticks
        )


def is_stopped(pid: int) -> bool:
    """Returns whether a signal or a debugger has stopped the process."""
    fields = _stat(pid)
    return fields is not None and fields[_STATE] in "Tt"


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def group_members(group: int) -> list[int]:
    """The living processes of a process group, without zombies."""
    found = []
    for entry in os.listdir("/proc"):
        fields = _stat(int(entry)) if entry.isdigit() else None
        if fields and int(fields[_GROUP]) == group and fields[_STATE] not in "ZX":
            found.append(int(entry))
    return found


def bears(pid: int, mark: tuple[str, str]) -> bool:
    """Returns whether a process of this user was started with that variable in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it is gone, or belongs to another user
        return False
    return f"{mark[0]}={mark[1]}".encode(errors="surrogateescape") in environment.split(b"\0")


def start_detached(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen:
    """Starts a process as the leader of its own session. Appends both of its outputs to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )


def kill_group(
    leader: ProcessIdentity, grace_seconds: float, mark: tuple[str, str] | None = None
) -> bool:
    """Ends a process group: SIGTERM, then SIGKILL to the rest after the grace time.

    Members outlive a leader that was killed by signal 9, so they are looked up even if the leader
    is gone. That is safe, because the kernel assigns no pid that is still in use as a process
    group.

    Args:
      leader: the leader that the caller has started, or that a file names.
      grace_seconds: the time between the two signals.
      mark: a variable that all members inherit from their start. A group without a member that has
        it belongs to another program and gets no signal. None if the caller has started the leader.

    Returns:
      Whether no process of the group is left.
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
