"""The host of this process: cores, memory limit, network, ties of processes, and checks."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import errno
import fcntl
import math
import os
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from pipeline_ops.system.gpus import find_gpu_problem

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies. Raises OSError."""
    _check_call(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends.

    A function for `preexec_fn`. Raises OSError.
    """
    _check_call(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _check_call(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_lock = threading.Lock()
"""CPython before 3.11.9 and 3.12.3 counts the recursion of all threads together, and then raises a
SystemError (python/cpython#106905)."""


def parse_python(file: Path) -> ast.Module:
    """Parses a file. Raises SyntaxError or ValueError if it is not valid Python."""
    return parse_source(file.read_bytes(), str(file))


def parse_source(content: bytes, file: str) -> ast.Module:
    """Parses the content of a file, like `parse_python`."""
    with _lock:
        return ast.parse(content, filename=file)


_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def count_cores(mount: Path = _MOUNT, own: Path = _OWN) -> int:
    """Returns the number of cores, at least 1. A part of a core counts as one.

    `mount` is where the cgroups are mounted, and `own` the file with those of the process.
    """
    quotas = [quota for folder in _list_folders(mount, own) if (quota := _read_quota(folder))]
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *quotas])))


def _list_folders(mount: Path, own: Path) -> Iterator[Path]:
    """Yields the folders of the process's cgroup and of those around it.

    Each line of `own` is `number:controllers:path`. Without a namespace of its own, the path of a
    container is one on its machine, which the container does not see. Then its root counts.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = mount
        elif "cpu" in controllers.split(","):
            root = mount / controllers
        else:
            continue
        folder = root / path.lstrip("/")
        yield from (parent for parent in (folder, *folder.parents) if parent.is_relative_to(root))


def _read_quota(folder: Path) -> float | None:
    """Returns the cores of a cgroup, or None for no limit."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # "max" is no number
        return None


OUT_OF_MEMORY = (
    "out of memory: the kernel has killed processes that used more memory than their host, "
    "container or pod may. Give it more `memory` in the hosts file, or lower the batch size"
)
_V2 = Path("/sys/fs/cgroup/memory.events")
_V1 = Path("/sys/fs/cgroup/memory/memory.oom_control")


def count_memory_kills(files: tuple[Path, ...] = (_V2, _V1)) -> int:
    """Counts the processes of this container that the kernel has killed for want of memory.

    0 where the kernel does not count them.
    """
    for file in files:
        try:
            found = re.search(r"^oom_kill ([0-9]+)$", file.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0


def find_unreachable(addresses: Sequence[str], timeout_seconds: float) -> dict[str, str]:
    """The addresses, as `host:port`, that refuse a connection or do not answer, and why.

    It returns after the timeout at the latest, apart from the look-up of names.
    """

    def connect(address: str) -> str:
        host, _, port = address.rpartition(":")
        # TensorFlow's servers and our workers listen on IPv4.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_seconds)
            try:
                connection.connect((socket.gethostbyname(host), int(port)))
            except socket.gaierror as error:
                return f"its name can't be resolved ({error.strerror})"
            except TimeoutError:
                return "no answer"
            except OSError as error:
                return os.strerror(error.errno or 0)
        return ""

    with ThreadPoolExecutor(max(1, len(addresses))) as threads:
        problems = dict(zip(addresses, threads.map(connect, addresses), strict=True))
    return {address: problem for address, problem in problems.items() if problem}


# A gang's TensorFlow servers listen on all interfaces and serve any client, and no setting changes
# that. Inside a network namespace there is only a loopback interface, which no other process of the
# host reaches. The namespace belongs to the processes in it and ends with the last of them.
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h

OPEN_PORTS = "TensorFlow's servers of the gang listen on all interfaces and ask for no credentials"
_ALLOW_NAMESPACES = (
    "Allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0, or the container's seccomp profile)"
)


class IsolationProblem(NamedTuple):
    """The reason why a gang here can have no network namespace, and the cure."""

    reason: str
    cure: str


def enter_network_namespace() -> None:
    """Moves this process, and all that it starts from now on, into a new network namespace.

    Needs no privileges where the kernel lets users make namespaces. Must be called before there is
    a second thread. Raises OSError if the kernel refuses. The process may then have no network.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _check_call(_libc.unshare(_CLONE_NEWNET))
    except PermissionError:
        _check_call(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def find_isolation_problem() -> IsolationProblem | None:
    """Why a gang here can have no network namespace, None if it can. A child process tries it."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            enter_network_namespace()
            code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == errno.ENOSPC:  # not of a disk
        return IsolationProblem(
            "the kernel's limit of namespaces is reached",
            "Raise it (sysctl user.max_net_namespaces and user.max_user_namespaces), or end what "
            "has so many (lsns)",
        )
    if code:
        reason = f"the kernel refuses a network namespace ({os.strerror(abs(code))})"
        return IsolationProblem(reason, _ALLOW_NAMESPACES)
    return None


# The checks before a job or a gang starts here take less than a second.
_MIN_FREE_BYTES = 256 << 20
_MIN_SHARED_BYTES = 128 << 20
_MIN_OPEN_FILES = 1024
_PYTHON = ((3, 11), (3, 13))


class Finding(BaseModel):
    """The result of one check. With a `problem`, it or `cure` says what to do."""

    model_config = ConfigDict(frozen=True)

    check: str
    problem: str = ""
    cure: str = ""
    is_warning: bool = False
    """Whether jobs can work nevertheless."""


def has_slow_tar_headers(version: tuple[int, int, int]) -> bool:
    """Returns whether this version of Python was released with CVE-2024-6232."""
    return version < (3, 11, 10) or (3, 12) <= version < (3, 12, 6)


def check_host(folders: dict[str, Path]) -> list[Finding]:
    """Checks this host, and folders that jobs write to, by the name for messages.

    The temporary folder counts in any case. A folder that does not exist yet stands for the one
    that will hold it.
    """
    folders = {"the temporary folder": Path(tempfile.gettempdir())} | folders
    version, (least, newest) = sys.version_info[:2], _PYTHON
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shared, shared_bytes = "/dev/shm", 0  # noqa: S108
    with contextlib.suppress(OSError):
        shared_bytes = shutil.disk_usage(shared).total
    findings = [
        _to_finding(
            "Python",
            least <= version <= newest,
            f"{sys.executable} is Python {version[0]}.{version[1]}",
            "Use Python 3.11, 3.12 or 3.13.",
        ),
        _to_finding(
            "tar headers",
            not has_slow_tar_headers(sys.version_info[:3]),
            f"{sys.executable} is Python {'.'.join(map(str, sys.version_info[:3]))}, whose tarfile "
            "can take days for one archive (CVE-2024-6232) unless its distribution has mended it. "
            "Trainyard's own readers refuse such archives, and code of yours may not",
            "Use Python 3.11.10, 3.12.6, 3.13 or a later one.",
            is_warning=True,
        ),
        *(_check_folder(name, folder) for name, folder in folders.items()),
        _to_finding(
            "shared memory",
            shared_bytes >= _MIN_SHARED_BYTES,
            f"{shared} holds {shared_bytes >> 20} MiB, and workers with GPUs exchange gradients "
            "there",
            "Mount a larger one. For a container: --shm-size=1g.",
            is_warning=True,
        ),
        _to_finding(
            "open files",
            soft == resource.RLIM_INFINITY or soft >= _MIN_OPEN_FILES,
            f"a process may open {soft} files, and {_MIN_OPEN_FILES} are the least",
            f"Raise the limit with `ulimit -n` (up to {hard}), or in limits.conf.",
        ),
    ]
    if gpu_problem := find_gpu_problem():
        findings.append(_to_finding("GPUs", False, *gpu_problem, is_warning=True))
    return findings


def _to_finding(
    check: str, is_fine: bool, problem: str, cure: str, is_warning: bool = False
) -> Finding:
    if is_fine:
        return Finding(check=check)
    return Finding(check=check, problem=problem, cure=cure, is_warning=is_warning)


def _check_folder(name: str, folder: Path) -> Finding:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    check = f"disk of {name}"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"1")
            file.flush()
        num_free = shutil.disk_usage(folder).free
    except OSError as error:
        cure = "Give this user the right to write there, or free space on that disk."
        return _to_finding(check, False, f"{folder} can't be written: {error.strerror}", cure)
    return _to_finding(
        check,
        num_free >= _MIN_FREE_BYTES,
        f"{folder} has {num_free >> 20} MiB free; a training needs at least "
        f"{_MIN_FREE_BYTES >> 20} MiB",
        "Free space there (`trainyard gc` removes what no run needs), or use another disk.",
    )


def describe_problems(findings: list[Finding]) -> Iterator[str]:
    """The problems among some findings, with their cures, warnings left out."""
    for finding in findings:
        if finding.problem and not finding.is_warning:
            yield f"{finding.check}: {finding.problem}. {finding.cure}"
