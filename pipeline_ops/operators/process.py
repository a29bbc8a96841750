"""The mechanism under the operators: starts one job process, observes it and ends it.

It knows nothing of Airflow. A job outlives its starter. The name of its attempt is enough to find
it again, and this name exists before the process does. A kill in between leaves a folder without a
process, and never an unknown process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.errors import DataError, ExitCode, TrainyardError
from pipeline_ops.jobs.cancellation import GRACE_SECONDS, ask_to_end, reason_to_end
from pipeline_ops.jobs.progress import Progress, ProgressReader
from pipeline_ops.jobs.request import Status, read_request, read_status, write_request
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.storage.atomic import remove_by_rename, write_json
from pipeline_ops.storage.own_folders import owners_below, remove_folder
from pipeline_ops.storage.safe_paths import UnsafePath, folder_below, open_below
from pipeline_ops.system.processes import (
    ATTEMPT_VARIABLE,
    SAFE_PATH,
    ProcessIdentity,
    kill_group,
    start_detached,
)
from pipeline_ops.system.temp_dirs import sweep

_LAST_LOOK_SECONDS = 0.5
_LOG_TAIL_BYTES = 2000
_BRIDGE = CODE_ROOT / "pipeline_ops" / "operators" / "bridge"
_AIRFLOW_ONLY = ("AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_")


@dataclasses.dataclass(frozen=True)
class JobHandle:
    """A job, given by its folder.

    The files in the folder contain the reason for the job, its process and its outcome. Other jobs
    of the pipeline can write there, so each file is checked when it is read.
    """

    attempt: Attempt

    @property
    def reason(self) -> str:
        """The reason why it was started; "" if its request cannot be read."""
        try:
            return read_request(self.attempt.request, self.attempt.root).reason
        except (TrainyardError, OSError):
            return ""

    @property
    def process(self) -> ProcessIdentity | None:
        """The job's process; None if it was not started, or if its file is damaged."""
        try:
            return self.attempt.read(ProcessIdentity, self.attempt.process)
        except DataError:
            return None

    def is_alive(self) -> bool:
        """Returns whether the job runs, or may run.

        For a process on another host, only its status is visible here.
        """
        process = self.process
        return process is not None and (not _is_here(process) or process.is_alive())

    def is_told_to_end(self) -> bool:
        """Returns whether the job was asked to end, so that it will not run for long."""
        return reason_to_end(self.attempt) is not None

    def has_ended(self) -> bool:
        """Returns whether the job has reported its outcome."""
        return self._status()[0] is not None

    def outcome(self) -> Status | None:
        """The outcome of the job, or None while it runs."""
        status, _ = self._status()
        if status or self.is_alive():
            return status
        time.sleep(_LAST_LOOK_SECONDS)  # it may have ended between the two checks
        status, problem = self._status()
        return status or Status(exit_code=ExitCode.RETRY, message=problem or self._exit_message())

    def end(self, reason: str) -> bool:
        """Ends the job and every process that it started.

        The request to end is written first, so the job ends even if the caller is killed.

        Returns:
          Whether all of its processes on this host are gone.
        """
        try:
            ask_to_end(self.attempt, reason)
        finally:  # a full disk must not keep it alive
            is_gone = self.reap()
        return is_gone

    def reap(self) -> bool:
        """Ends the remains of a job on this host after signal 9: its workers and temporary files.

        A process group gets no signal unless one of its processes was started for this very
        attempt, whatever the file says. Returns the same as `end`.
        """
        process = self.process
        if process is None or not _is_here(process):
            return True
        is_gone = kill_group(process, GRACE_SECONDS, _mark(self.attempt))
        if is_gone:
            self._remove_scratch()
            sweep()
        return is_gone

    def _remove_scratch(self) -> None:
        root = self.attempt.root or self.attempt.folder.parent
        with (
            contextlib.suppress(FileNotFoundError, UnsafePath),
            folder_below(root, str(self.attempt.folder.relative_to(root))) as folder,
        ):
            remove_folder(self.attempt.scratch.name, folder, owners_below(folder))

    def _status(self) -> tuple[Status | None, str]:
        """The outcome of the job, and the problem with its status file."""
        try:
            return read_status(self.attempt), ""
        except DataError as error:
            return None, f"the job has left no usable status: {error}"

    def _exit_message(self) -> str:
        log, process = self.attempt.log, self.process
        if process is None:
            return (
                f"the job in {self.attempt.folder} was not started, "
                f"or {self.attempt.process.name} there is damaged"
            )
        tail = self._log_tail()
        return (
            f"the job process {process.pid} on {process.host} ended without a status, "
            "so it was killed or its host went down; "
            f"its log is {log}" + (f" and ends with:\n{tail}" if tail else "")
        )

    def _log_tail(self) -> str:
        try:
            with open_below(*self.attempt.below_root(self.attempt.log)) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
                return file.read(_LOG_TAIL_BYTES).decode(errors="replace").strip()
        except (OSError, UnsafePath):
            return ""


def _is_here(process: ProcessIdentity) -> bool:
    return process.host == socket.gethostname()


def _mark(attempt: Attempt) -> tuple[str, str]:
    """A variable in the environment of all processes of a job."""
    return ATTEMPT_VARIABLE, str(attempt.folder)


def prepare_job(plan: JobPlan, layout: Layout, record_name: str) -> JobHandle:
    """Makes a new attempt folder with the request in it. No process runs yet."""
    attempt = layout.attempt(plan.request.run_id, record_name, f"attempt-{uuid.uuid4().hex[:8]}")
    write_request(attempt, plan.request.model_copy(update={"reason": plan.reason}))
    return JobHandle(attempt)


def start_job(plan: JobPlan, attempt: Attempt) -> ProcessIdentity:
    """Starts the planned job in a session of its own.

    Its working directory is not a folder to which others can write.
    """
    if plan.damage:
        remove_by_rename(plan.manifest.parent)  # by rename, so that no reader finds it half removed
    argv = [
        str(plan.python or sys.executable),
        "-m",
        KINDS[plan.request.job].module,
        "--request",
        str(attempt.request),
    ]
    environment = job_environment(os.environ) | dict([_mark(attempt)])
    if plan.python:
        environment |= bring_our_code(environment)
    process = ProcessIdentity.of(
        start_detached(argv, attempt.log, env=environment, cwd=Path("/")).pid
    )
    write_json(attempt.process, process.to_json())
    return process


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that a job inherits.

    It lacks Airflow's settings, among which are its database and its keys. Python adds no folder of
    its own to `sys.path`.
    """
    kept = {
        name: value for name, value in environment.items() if not name.startswith(_AIRFLOW_ONLY)
    }
    return kept | SAFE_PATH


def bring_our_code(environment: Mapping[str, str]) -> dict[str, str]:
    """Lets another interpreter find the code of the fingerprint, and no package next to it."""
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_BRIDGE), environment.get("PYTHONPATH")]))
    }


class ProgressLog:
    """Turns a job's progress into task-log lines.

    There is a line for every change of phase, and otherwise one every few seconds.
    """

    def __init__(self, attempt: Attempt, offset: int = 0, every_seconds: float = 2.0):
        self._reader = ProgressReader(attempt.progress, offset, attempt.root)
        self._every_seconds = every_seconds
        self._last_time, self._last_phase = 0.0, ""

    @property
    def offset(self) -> int:
        return self._reader.offset

    def lines(self) -> list[str]:
        """The lines that are due now, and the problems of unreadable ones."""
        lines = [str(moment) for moment in self._reader.new() if self._is_due(moment)]
        problems, self._reader.problems = self._reader.problems, []
        return lines + problems

    def _is_due(self, moment: Progress) -> bool:
        due = (
            bool(moment.message)
            or moment.phase != self._last_phase
            or moment.time - self._last_time >= self._every_seconds
        )
        due = due or (moment.done is not None and moment.done == moment.total)
        if due:
            self._last_time, self._last_phase = moment.time, moment.phase
        return due
