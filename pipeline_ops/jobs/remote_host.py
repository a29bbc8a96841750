"""The commands that Airflow runs over ssh on a host where a job runs (`places/ssh.py`).

    python -m pipeline_ops.jobs.remote_host start|find|cancel|clean|versions|check

The question is one line of JSON on standard input, because other users of the host see command
lines, and the question holds the access to the store. The answer is one line of JSON.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipeline_ops.artifacts.fingerprint import find_versions
from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.errors import ConfigError, DataError, ExitCode, TrainyardError
from pipeline_ops.jobs.cancellation import GRACE_SECONDS
from pipeline_ops.jobs.job_code import digest_code
from pipeline_ops.jobs.places.local import is_local
from pipeline_ops.jobs.workspace import find_jobs_folder, make_local_folder, ship_leftovers
from pipeline_ops.storage.atomic import format_json, write_atomically
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host_check import Finding, check_host
from pipeline_ops.system.locks import exclusive_lock
from pipeline_ops.system.processes import (
    ATTEMPT_VARIABLE,
    ProcessIdentity,
    find_processes,
    has_environment_variable,
    kill_processes,
    start_detached,
)
from pipeline_ops.system.temp_dirs import sweep

INIT_MODULE = "pipeline_ops.jobs.init_process"
_INIT, _LOCK, _OUTPUT = "init.json", "init.lock", "init.log"
_POLL_SECONDS = 0.05
_TAIL_BYTES = 2000
_LOCK_SECONDS = 30.0


class Question(BaseModel):
    """The input of each command.

    `attempt` is the URI of the job's folder. `environment` has the access to the store.
    """

    model_config = ConfigDict(frozen=True)

    attempt: str = ""
    module: str = ""
    environment: dict[str, str] = {}
    packages: list[str] = []


class Answer(BaseModel):
    """The output of each command. With an `error`, the rest has no meaning."""

    model_config = ConfigDict(frozen=True)

    error: str = ""
    exit_code: ExitCode = ExitCode.SUCCESS
    """How an error counts."""
    phase: str = ""
    output: str = ""
    """The end of what the init process has printed."""
    is_clean: bool = False
    findings: list[Finding] = []
    code: str = ""
    """The digest of this project's code."""
    time: float = 0.0
    versions: dict[str, str] = {}


def main() -> None:
    question = Question.model_validate_json(sys.stdin.buffer.readline())
    os.environ |= question.environment
    try:
        answer = _COMMANDS[sys.argv[1]](question)
    except TrainyardError as error:
        answer = Answer(error=str(error), exit_code=error.exit_code)
    except OSError as error:
        answer = Answer(error=str(error), exit_code=ExitCode.RETRY)
    print(answer.model_dump_json(), flush=True)


def start(question: Question) -> Answer:
    """Starts the init process of a job in a session of its own, unless it was started before."""
    attempt = _open_attempt(question)
    with contextlib.suppress(FileNotFoundError):
        attempt.request.read_range(0, 1)
        return _start(attempt, question)
    raise ConfigError(
        f"it does not see {attempt.request}, which was written on Airflow's host. Mount the same "
        "file system at the same path, or keep the storage root in a bucket"
    )


def _start(attempt: Attempt[StorePath], question: Question) -> Answer:
    folder = make_local_folder(attempt.folder)
    with exclusive_lock(folder / _LOCK, str(attempt.folder), _LOCK_SECONDS):
        if _read_init(folder) is not None:
            return find(question)
        argv = [sys.executable, "-m", INIT_MODULE, question.module, str(attempt.request)]
        environment = os.environ | {ATTEMPT_VARIABLE: str(attempt.folder)}
        process = start_detached(argv, folder / _OUTPUT, env=environment, cwd=Path("/"))
        identity = ProcessIdentity.from_pid(process.pid)
        write_atomically(folder / _INIT, format_json(identity.to_json()))
    return Answer(phase="running")


def find(question: Question) -> Answer:
    """The state of the job on this host."""
    folder = make_local_folder(_open_attempt(question).folder)
    init = _read_init(folder)
    if init is None:
        return Answer(phase="absent")
    output = ""
    with contextlib.suppress(OSError), open(folder / _OUTPUT, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        output = file.read().decode(errors="replace").strip()
    return Answer(phase="running" if init.is_alive() else "ended", output=output)


def cancel(question: Question) -> Answer:
    """Ends all processes of a job: SIGTERM to the first one, then SIGKILL to all."""
    attempt = _open_attempt(question)
    init = _read_init(make_local_folder(attempt.folder))
    variable = (ATTEMPT_VARIABLE, str(attempt.folder))
    if init is not None and has_environment_variable(init.pid, variable):
        with contextlib.suppress(ProcessLookupError):
            os.kill(init.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while find_processes(variable) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    kill_processes(variable, GRACE_SECONDS)
    return Answer(phase="ended")


def clean(question: Question) -> Answer:
    """Ends what is left of a job, copies its logs to the store, and removes its files here."""
    attempt = _open_attempt(question)
    cancel(question)
    ship_leftovers(attempt)
    sweep()
    return Answer(is_clean=True)


def versions(question: Question) -> Answer:
    """The versions of packages, and of Python, in this environment."""
    found = find_versions(question.packages)
    return Answer(versions={"python": platform.python_version()} | found)


def check(question: Question) -> Answer:
    """The state of this host before any job."""
    return Answer(
        findings=check_host({"jobs on a bucket": find_jobs_folder()}),
        code=digest_code(),
        time=time.time(),
        versions=find_versions(question.packages),
    )


def _open_attempt(question: Question) -> Attempt[StorePath]:
    return Attempt(open_root(question.attempt))


def _read_init(folder: Path) -> ProcessIdentity | None:
    """The init process of a job on this host. The folder may be shared with other hosts."""
    try:
        init = read_json_as(ProcessIdentity, open_root(folder) / _INIT)
    except DataError:
        return None
    return init if init is not None and is_local(init) else None


_COMMANDS: Mapping[str, Callable[[Question], Answer]] = {
    "start": start,
    "find": find,
    "cancel": cancel,
    "clean": clean,
    "versions": versions,
    "check": check,
}

if __name__ == "__main__":
    main()
