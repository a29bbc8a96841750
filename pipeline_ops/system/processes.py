"""One process tree on this host: identifies it, checks whether it is alive, and ends all of it.

A job is the leader of a process group, so one signal reaches the whole group. Pids are reused: only
with its start time does a pid identify a process. No process escapes from one that adopts orphans
(`host.adopt_orphans`), by a new session, a double fork, or the death of the parents in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
import pydantic
import pydantic.dataclasses

from pipeline_ops.storage.local_files import translate_write_errors

_STATE, _START_TICKS = 0, 19  # fields of /proc/<pid>/stat after the command's name
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_POLL_SECONDS = 0.05

ATTEMPT_VARIABLE = "TRAINYARD_ATTEMPT"
"""The environment variable that holds the folder of the attempt in each process of a job."""
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Keeps Python from importing modules from the working folder or from the folder of a script."""
JOB_PYTHON = SAFE_PATH | {"PYTHONHASHSEED": "0"}
"""The variables of Python in a job. All its processes walk a set of texts in the same order, so a
model whose layers are made in such an order has them in one order everywhere.
"""
_Number = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


@pydantic.dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """The unique identity of a process: host, pid and start time in clock ticks since boot."""

    host: Annotated[str, pydantic.Field(min_length=1, max_length=255)]
    pid: Annotated[int, pydantic.Field(ge=1, lt=2**31)]
    start_ticks: _Number

    @classmethod
    def from_pid(cls, pid: int) -> ProcessIdentity:
        """The identity of a process that runs now on this host. Raises ProcessLookupError."""
        fields = _read_stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(socket.gethostname(), pid, int(fields[_START_TICKS]))

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def is_alive(self) -> bool:
        """Returns whether the process still runs here. A zombie is dead."""
        fields = _read_stat(self.pid)
        return (
            fields is not None
            and fields[_STATE] not in "ZX"
            and int(fields[_START_TICKS]) == self.start_ticks
        )


def get_pid_space() -> str:
    """Names the set of processes in which a pid is unique: this boot of this machine, and the
    container. Two containers may have the same host name."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def is_stopped(pid: int) -> bool:
    """Returns whether a signal or a debugger has stopped the process."""
    fields = _read_stat(pid)
    return fields is not None and fields[_STATE] in "Tt"


def _read_stat(pid: int) -> list[str] | None:
    """State and start time of a process. psutil's start time follows changes of the clock."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def find_group_members(group: int) -> list[int]:
    """The living processes of a process group, without zombies."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(pid) == group and psutil.Process(pid).status() not in _DEAD:
                found.append(pid)
    return found


def find_processes(variable: tuple[str, str]) -> list[psutil.Process]:
    """The living processes of this user that were started with a variable in their environment."""
    name, value = variable
    return [process for process, found in _read_environments() if found.get(name) == value]


def find_environment_values(name: str) -> set[str]:
    """The values of an environment variable in the processes of this user on this host."""
    return {found[name] for _, found in _read_environments() if found.get(name)}


def _read_environments() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it is gone, or belongs to another user
            yield process, process.environ()  # empty for a zombie


def start_detached(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process as the leader of its own session. Appends both of its outputs to `log`."""
    with contextlib.ExitStack() as stack:
        with translate_write_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(open(log, "ab"))
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
    leader: ProcessIdentity, grace_seconds: float, variable: tuple[str, str] | None = None
) -> bool:
    """Ends a process group: SIGTERM, then SIGKILL to the remaining processes after the grace time.

    Members may outlive their leader, and the kernel does not reuse the pid of a group in use. A
    group without a member that has the environment variable `variable` (name and value) belongs to
    another program and gets no signal. None if the caller has started the leader. Returns whether
    no process of the group is left.
    """
    stat = _read_stat(leader.pid)
    if stat and int(stat[_START_TICKS]) != leader.start_ticks:  # the pid belongs to another process
        return True
    if variable and not {process.pid for process in find_processes(variable)}.intersection(
        find_group_members(leader.pid)
    ):
        return True
    _signal_group(leader.pid, signal.SIGTERM)
    if wait_until_gone(lambda: find_group_members(leader.pid), grace_seconds):
        return True
    _signal_group(leader.pid, signal.SIGKILL)
    return wait_until_gone(lambda: find_group_members(leader.pid), grace_seconds)


def kill_processes(variable: tuple[str, str], grace_seconds: float) -> bool:
    """Kills the processes of this user that were started with a variable in their environment.

    The caller is spared. Returns False if the kernel cannot end one within the grace time.
    """
    deadline = time.monotonic() + grace_seconds
    while processes := [each for each in find_processes(variable) if each.pid != os.getpid()]:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def wait_until_gone(
    find: Callable[[], object], seconds: float, poll_seconds: float = _POLL_SECONDS
) -> bool:
    """Waits until nothing is found any more. Returns False after the time."""
    deadline = time.monotonic() + seconds
    while find():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_seconds)
    return True


def find_descendants(root: int | None = None) -> list[int]:
    """The living processes below `root` (default: this process), without zombies."""
    return [process.pid for process in _find_descendants(root)]


def _find_descendants(root: int | None = None) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() not in _DEAD:
                    found.append(process)
    return found


def end_descendants(
    grace_seconds: float, is_awaited: Callable[[int], bool] = lambda pid: True
) -> None:
    """Ends all descendants: SIGTERM, then SIGKILL to the rest.

    The grace time ends early when no process is left that `is_awaited`.
    """
    _signal(_find_descendants(), signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(map(is_awaited, find_descendants())) and time.monotonic() < deadline:
        collect_children()
        time.sleep(_POLL_SECONDS)
    # Repeatedly, because a dying process may still fork, and each time twice, because psutil misses
    # the children of a process that ends during the search.
    while left := _find_descendants() or _find_descendants():
        _signal(left, signal.SIGKILL)
        collect_children()
        time.sleep(_POLL_SECONDS)
    collect_children()


def collect_children() -> dict[int, int]:
    """Collects ended children. Returns their exit statuses, negative for a signal, by pid."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            ended[result[0]] = os.waitstatus_to_exitcode(result[1])
    return ended


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
