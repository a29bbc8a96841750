"""This host: a job is a process in a session of its own, which outlives the process that starts it.

The identity of the process is in the job's folder, where other jobs of the pipeline can write. A
process gets no signal unless it was started for this very attempt.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline_ops.config.train import Train
from pipeline_ops.contract.cancellation import GRACE_SECONDS
from pipeline_ops.contract.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.job.runner import Job
from pipeline_ops.job.workspace import make_local_folder, ship_leftovers
from pipeline_ops.places.launcher import Host, Launcher
from pipeline_ops.places.place import (
    JobLaunch,
    JobState,
    Place,
    PlaceSection,
    build_job_environment,
    read_tail,
)
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.locks import exclusive_lock
from pipeline_ops.system.processes import (
    ATTEMPT_VARIABLE,
    ProcessIdentity,
    kill_group,
    kill_processes,
    start_detached,
)
from pipeline_ops.system.temp_dirs import sweep
from pipeline_ops.user_code.interpreter import read_versions

_LOCK, _LOCK_SECONDS = "start.lock", 30.0
_BRIDGE_FOLDER = CODE_ROOT / "pipeline_ops" / "places" / "bridge"


class LocalPlace(Place):
    """See `Place`.

    Args:
      python: the interpreter of jobs. None is that of the caller. A link is not followed, because a
        virtual environment is found by it.
      environment: variables of jobs.
    """

    is_this_host = True
    check_seconds = 0.0

    def __init__(self, python: Path | None = None, environment: Mapping[str, str] | None = None):
        self._python, self._environment = python, environment or {}

    def start(self, launch: JobLaunch) -> None:
        """Starts the job. Its working directory is not a folder to which others can write."""
        attempt, argv = launch.attempt, self.build_command(launch)
        environment = build_job_environment(os.environ)
        environment |= {**launch.environment, **self._environment}
        if self._python:
            environment |= build_bridge_environment(environment)
        log = make_local_folder(attempt.folder) / attempt.log.name
        start_once(attempt, attempt.process, log, argv, environment)

    def build_command(self, launch: JobLaunch) -> list[str]:
        """The command of a job. Its first process is the parent of all others, or becomes them."""
        python = str(self._python or sys.executable)
        return [python, "-m", launch.module, "--request", str(launch.attempt.request)]

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        """The state of a job. For a process on another host, only its status is visible here."""
        process = read_identity(attempt.process)
        if process is None:
            return JobState(
                "absent",
                f"the job in {attempt.folder} was not started, "
                f"or {attempt.process.name} there is damaged",
            )
        if not is_local(process) or process.is_alive():
            return JobState("running")
        return JobState(
            "ended",
            f"the job process {process.pid} on {process.host} ended without a status, so it was "
            "killed or its host went down",
        )

    def read_output(self, attempt: Attempt[StorePath]) -> str:
        return read_tail(attempt.log)

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        end_job(attempt, attempt.process)

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        return clean_job(attempt, attempt.process)

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        return read_versions(self._python, packages)


def start_once(
    attempt: Attempt[StorePath],
    identity: StorePath,
    output: Path,
    argv: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Starts the first process of a job in a session of its own, unless it was started before.

    The file `identity` will name the process. `output` is in a folder of this host.
    """
    with exclusive_lock(output.parent / _LOCK, str(attempt.folder), _LOCK_SECONDS):
        if read_identity(identity) is None:
            variables = {**environment, ATTEMPT_VARIABLE: str(attempt.folder)}
            started = start_detached(argv, output, env=variables, cwd=Path("/"))
            process = ProcessIdentity.from_pid(started.pid)
            try:
                identity.write(format_json(process.to_json()))
            except BaseException:  # without this file nobody would find the job
                kill_group(process, 0.0)
                raise


def end_job(attempt: Attempt[StorePath], identity: StorePath) -> bool:
    """Ends the process group of a job on this host, then its other processes.

    A process gets no signal unless it was started for this very attempt, whatever the file says.
    Returns whether all are gone.
    """
    process = read_identity(identity)
    if process is None or not is_local(process):
        return True
    variable = (ATTEMPT_VARIABLE, str(attempt.folder))
    is_group_gone = kill_group(process, GRACE_SECONDS, variable)
    return kill_processes(variable, GRACE_SECONDS) and is_group_gone


def clean_job(attempt: Attempt[StorePath], identity: StorePath) -> bool:
    """Ends the remains of a job on this host after signal 9. Its logs go to the store."""
    is_gone = end_job(attempt, identity)
    if is_gone:
        ship_leftovers(attempt)
        sweep()
    return is_gone


def read_identity(file: StorePath) -> ProcessIdentity | None:
    """The process that a file names; None if there is no file, or if it is damaged."""
    try:
        return read_json_as(ProcessIdentity, file)
    except DataError:
        return None


def is_local(process: ProcessIdentity) -> bool:
    return process.host == socket.gethostname()


def build_bridge_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variable by which another interpreter finds this code, and no package next to it."""
    return {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(_BRIDGE_FOLDER), environment.get("PYTHONPATH")])
        )
    }


class LocalLauncher(Launcher):
    """This machine as the only host. At most `workers` share its `cores`, 0 for all cores.

    Its agent is in the job's process group, so a signal to the job reaches the gang, too.
    """

    def __init__(self, workers: int = 1024, cores: int = 0):
        self._host = Host(name="localhost", address="127.0.0.1", workers=workers, cores=cores)

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        return [self._host]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        return [sys.executable, "-m", AGENT_MODULE, agent.run]


class LocalHosts(PlaceSection):
    """This machine, with an interpreter or an environment of its own for jobs, or with fewer
    workers or cores for a gang."""

    is_this_host = True
    launcher: Literal["local"]
    workers: int = Field(1024, ge=1, le=1024)
    """Number of workers that it can take."""
    cores: int | None = Field(None, ge=1)
    """Number of cores that its workers share. Null is all of its cores."""

    @property
    def capacity(self) -> int:
        return self.workers

    @property
    def code_digests(self) -> dict[str, str]:
        """Without `python`, because the versions that it has are in the fingerprint."""
        return super(LocalHosts, self.model_copy(update={"python": None})).code_digests

    @field_validator("python")
    @classmethod
    def _validate_python(cls, python: str | None) -> str | None:
        path = python and os.path.expanduser(python)
        if path and not os.path.isabs(path):
            raise ValueError(f"must be an absolute path, or begin with ~/, got {python!r}")
        return path

    @field_validator("code")
    @classmethod
    def _validate_code(cls, code: str | None) -> str | None:
        if code is not None:
            raise ValueError("is for other hosts: a job here runs this copy of the code. Remove it")
        return code

    def validate_gang(self, train: Train, location: str) -> None:
        if self.python:
            raise ConfigError(
                f"{location}: train.hosts: {train.hosts} has `python`, which is for jobs: a gang "
                "on this machine has the interpreter of its supervisor. "
                f"Write train.runs_on: {train.hosts} instead"
            )
        super().validate_gang(train, location)

    def open_place(self) -> LocalPlace:
        return LocalPlace(Path(self.python) if self.python else None, self.environment)

    def make_launcher(self, job: Job) -> LocalLauncher:
        return LocalLauncher(self.workers, self.cores or 0)

    def list_hosts(self) -> list[Host]:
        return LocalLauncher(self.workers, self.cores or 0).allocate(lambda: None)
