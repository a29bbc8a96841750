"""Checks of a host before a job or a gang starts there. They take less than a second.

`trainyard doctor` prints the findings, and the agents of a gang report the problems among them.
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.system.host import find_gpu_problem

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


def check_host(folders: dict[str, Path]) -> list[Finding]:
    """Checks this host, and folders that jobs write to, by the name for messages.

    The temporary folder counts in any case. A folder that does not exist yet stands for the one
    that will hold it.
    """
    folders = {"the temporary folder": Path(tempfile.gettempdir())} | folders
    gpu_problem = find_gpu_problem()
    return [
        _check_python(),
        *(_check_folder(name, folder) for name, folder in folders.items()),
        _check_shared_memory(Path("/dev/shm")),  # noqa: S108
        _check_open_files(),
        *(
            [Finding(check="GPUs", problem=gpu_problem[0], cure=gpu_problem[1], is_warning=True)]
            if gpu_problem
            else []
        ),
    ]


def _check_python() -> Finding:
    least, newest = _PYTHON
    if least <= sys.version_info[:2] <= newest:
        return Finding(check="Python")
    return Finding(
        check="Python",
        problem=f"{sys.executable} is Python {sys.version_info.major}.{sys.version_info.minor}",
        cure="Use Python 3.11, 3.12 or 3.13.",
    )


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
        return Finding(
            check=check,
            problem=f"{folder} can't be written: {error.strerror}",
            cure="Give this user the right to write there, or free space on that disk.",
        )
    if num_free >= _MIN_FREE_BYTES:
        return Finding(check=check)
    return Finding(
        check=check,
        problem=f"{folder} has {num_free >> 20} MiB free, and {_MIN_FREE_BYTES >> 20} are the "
        "least for a training",
        cure="Free space there (`trainyard gc` removes what no run needs), or use another disk.",
    )


def _check_shared_memory(folder: Path) -> Finding:
    try:
        total = shutil.disk_usage(folder).total
    except OSError:
        total = 0
    if total >= _MIN_SHARED_BYTES:
        return Finding(check="shared memory")
    return Finding(
        check="shared memory",
        problem=f"{folder} holds {total >> 20} MiB, and workers with GPUs exchange gradients there",
        cure="Mount a larger one. For a container: --shm-size=1g.",
        is_warning=True,
    )


def _check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MIN_OPEN_FILES:
        return Finding(check="open files")
    return Finding(
        check="open files",
        problem=f"a process may open {soft} files, and {_MIN_OPEN_FILES} are the least",
        cure=f"Raise the limit with `ulimit -n` (up to {hard}), or in limits.conf.",
    )


def describe_problems(findings: list[Finding]) -> Iterator[str]:
    """The problems among some findings, with their cures, warnings left out."""
    for finding in findings:
        if finding.problem and not finding.is_warning:
            yield f"{finding.check}: {finding.problem}. {finding.cure}"
