"""The mechanism under the operators: starts one job process, observes it and ends it.

It knows nothing of Airflow. A job outlives its starter. The name of its attempt is enough to find
it again, and this name exists before the process does. A kill in between leaves a folder without a
process, and never an unknown process.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.artifacts.source_code import CODE_ROOT
from pipeline_ops.errors import DataError, ExitCode, TrainyardError
from pipeline_ops.jobs.cancellation import (
    GRACE_SECONDS,
    read_cancellation_reason,
    request_cancellation,
)
from pipeline_ops.jobs.progress import ProgressEvent, ProgressReader
from pipeline_ops.jobs.request import Status, read_request, read_status, write_request
from pipeline_ops.jobs.workspace import make_local_folder, ship_leftovers
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.storage.atomic import format_json
from pipeline_ops.storage.open_store import make_store_environment
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import (
    ATTEMPT_VARIABLE,
    SAFE_PATH,
    ProcessIdentity,
    kill_group,
    start_detached,
)
from pipeline_ops.system.temp_dirs import sweep

_FINAL_CHECK_SECONDS = 0.5
_LOG_SECONDS = 2.0
_LOG_TAIL_BYTES = 2000
_BRIDGE_FOLDER = CODE_ROOT / "pipeline_ops" / "operators" / "bridge"
_AIRFLOW_PREFIXES = ("AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_")


@dataclasses.dataclass(frozen=True)
class JobHandle:
    """A job, given by its folder.

    The files in the folder contain the reason for the job, its process and its outcome. Other jobs
    of the pipeline can write there, so each file is checked when it is read.
    """

    attempt: Attempt[StorePath]

    @property
    def reason(self) -> str:
        """The reason why it was started; "" if its request cannot be read."""
        try:
            return read_request(self.attempt.request).reason
        except (TrainyardError, OSError):
            return ""

    @property
    def process(self) -> ProcessIdentity | None:
        """The job's process; None if it was not started, or if its file is damaged."""
        try:
            return read_json_as(ProcessIdentity, self.attempt.process)
        except DataError:
            return None

    def is_alive(self) -> bool:
        """Returns whether the job runs, or may run.

        For a process on another host, only its status is visible here.
        """
        process = self.process
        return process is not None and (not _is_local(process) or process.is_alive())

    def is_cancellation_requested(self) -> bool:
        """Returns whether the job was asked to end, so that it will not run for long."""
        return read_cancellation_reason(self.attempt) is not None

    def has_ended(self) -> bool:
        """Returns whether the job has reported its outcome."""
        return self._try_read_status()[0] is not None

    def read_outcome(self) -> Status | None:
        """Returns the outcome of the job, or None while it runs."""
        status, _ = self._try_read_status()
        if status or self.is_alive():
            return status
        time.sleep(_FINAL_CHECK_SECONDS)  # it may have ended between the two checks
        status, problem = self._try_read_status()
        return status or Status(
            exit_code=ExitCode.RETRY, message=problem or self._build_exit_message()
        )

    def end(self, reason: str) -> None:
        """Ends the job and every process that it started.

        The request to end is written first, so the job ends even if the caller is killed.
        """
        try:
            request_cancellation(self.attempt, reason)
        finally:  # a full disk must not keep it alive
            self.reap()

    def reap(self) -> bool:
        """Ends the remains of a job on this host after signal 9: its workers and temporary files.

        A process group gets no signal unless one of its processes was started for this very
        attempt, whatever the file contains.

        Returns:
          Whether all of its processes on this host are gone.
        """
        process = self.process
        if process is None or not _is_local(process):
            return True
        is_gone = kill_group(process, GRACE_SECONDS, _make_attempt_variable(self.attempt))
        if is_gone:
            self.attempt.scratch.remove_tree()
            ship_leftovers(self.attempt)
            sweep()
        return is_gone

    def _try_read_status(self) -> tuple[Status | None, str]:
        """Returns the outcome of the job, and the problem with its status file."""
        try:
            return read_status(self.attempt), ""
        except DataError as error:
            return None, f"the job has left no usable status: {error}"

    def _build_exit_message(self) -> str:
        log, process = self.attempt.log, self.process
        if process is None:
            return (
                f"the job in {self.attempt.folder} was not started, "
                f"or {self.attempt.process.name} there is damaged"
            )
        tail = self._read_log_tail()
        return (
            f"the job process {process.pid} on {process.host} ended without a status, "
            "so it was killed or its host went down. "
            f"Its log is {log}" + (f" and ends with:\n{tail}" if tail else "")
        )

    def _read_log_tail(self) -> str:
        try:
            _, tail = self.attempt.log.read_log_end(_LOG_TAIL_BYTES)
        except (OSError, TrainyardError):
            return ""
        return tail.decode(errors="replace").strip()


def _is_local(process: ProcessIdentity) -> bool:
    return process.host == socket.gethostname()


def _make_attempt_variable(attempt: Attempt[StorePath]) -> tuple[str, str]:
    """Makes the name and value of a variable in the environment of all processes of a job."""
    return ATTEMPT_VARIABLE, str(attempt.folder)


def prepare_job(plan: JobPlan, layout: Layout, record_name: str) -> JobHandle:
    """Makes a new attempt folder with the request in it. No process runs yet."""
    attempt = layout.attempt(plan.request.run_id, record_name, f"attempt-{uuid.uuid4().hex[:8]}")
    write_request(attempt, plan.request.model_copy(update={"reason": plan.reason}))
    return JobHandle(attempt)


def start_job(plan: JobPlan, attempt: Attempt[StorePath]) -> ProcessIdentity:
    """Starts the planned job in a session of its own.

    Its working directory is not a folder to which others can write.
    """
    argv = [
        str(plan.python or sys.executable),
        "-m",
        KINDS[plan.request.job].module,
        "--request",
        str(attempt.request),
    ]
    environment = build_job_environment(os.environ) | dict([_make_attempt_variable(attempt)])
    environment |= make_store_environment(plan.request.root)
    if plan.python:
        environment |= build_bridge_environment(environment)
    log = make_local_folder(attempt.folder) / attempt.log.name
    process = ProcessIdentity.from_pid(
        start_detached(argv, log, env=environment, cwd=Path("/")).pid
    )
    attempt.process.write(format_json(process.to_json()))
    return process


def build_job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Makes the environment that a job inherits.

    It lacks Airflow's settings, among which are its database and its keys. Python adds no folder of
    its own to `sys.path`.
    """
    inherited = {
        name: value for name, value in environment.items() if not name.startswith(_AIRFLOW_PREFIXES)
    }
    return inherited | SAFE_PATH


def build_bridge_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Makes the variable by which another interpreter finds the code of the fingerprint.

    It finds no package next to that code.
    """
    return {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(_BRIDGE_FOLDER), environment.get("PYTHONPATH")])
        )
    }


class ProgressLog:
    """Turns a job's progress into task-log lines.

    There is a line for every change of phase, and otherwise one every `_LOG_SECONDS`.
    """

    def __init__(self, attempt: Attempt[StorePath], offset: int = 0):
        self._reader = ProgressReader(attempt.progress, offset)
        self._last_time, self._last_phase = 0.0, ""

    @property
    def offset(self) -> int:
        return self._reader.offset

    def write_due_lines(self, write: Callable[[str], object]) -> None:
        """Writes the lines that are due now, and the problems of unreadable ones."""
        for event in self._reader.read_new():
            if self._is_due(event):
                write(str(event))
        problems, self._reader.problems = self._reader.problems, []
        for problem in problems:
            write(problem)

    def _is_due(self, event: ProgressEvent) -> bool:
        is_due = (
            bool(event.message)
            or event.phase != self._last_phase
            or event.time - self._last_time >= _LOG_SECONDS
            or (event.done is not None and event.done == event.total)
        )
        if is_due:
            self._last_time, self._last_phase = event.time, event.phase
        return is_due
