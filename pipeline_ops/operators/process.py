"""The mechanism under the operators: start one job process, look at it, end it. Knows nothing of Airflow.

A job outlives whoever started it. What is needed to find it again is a JobHandle, which fits into JSON and is there before
the process is: whoever is killed in between leaves a folder that says so, and no process that nobody knows.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.contracts.errors import ExitCode
from pipeline_ops.contracts.files import read_json, write_json
from pipeline_ops.contracts.fingerprint import CODE_ROOT
from pipeline_ops.contracts.layout import Attempt, Layout
from pipeline_ops.contracts.plan import KINDS, JobPlan
from pipeline_ops.contracts.processes import ProcessIdentity, kill_group, start_detached
from pipeline_ops.contracts.progress import Progress, ProgressReader
from pipeline_ops.contracts.request import Status, read_status, write_request
from pipeline_ops.contracts.scratch import sweep
from pipeline_ops.contracts.wanted import GRACE_SECONDS, ask_to_end, reason_to_end

_LAST_LOOK_SECONDS = 0.5
_LOG_TAIL_BYTES = 2000
_OUR_PACKAGES = ("pipeline_ops", "beam_jobs")
_AIRFLOW_ONLY = ("AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_")


@dataclasses.dataclass(frozen=True)
class JobHandle:
    """A job: in which folder, and why. Once it is started, its folder says which process it is."""

    attempt: Attempt
    reason: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobHandle:
        return cls(Attempt(Path(value["attempt"])), value["reason"])

    def to_json(self) -> dict[str, Any]:
        return {"attempt": str(self.attempt.folder), "reason": self.reason}

    @property
    def process(self) -> ProcessIdentity | None:
        """None where it was not started."""
        value = read_json(self.attempt.process)
        return value and ProcessIdentity.from_json(value)

    def is_alive(self) -> bool:
        """Whether it runs, or may: of a process on another host, only its status is seen here."""
        process = self.process
        return process is not None and (not _is_here(process) or process.is_alive())

    def is_told_to_end(self) -> bool:
        """Whether it won't run for long any more."""
        return reason_to_end(self.attempt) is not None

    def has_ended(self) -> bool:
        """Whether it has said how."""
        return read_status(self.attempt) is not None

    def outcome(self) -> Status | None:
        """How the job ended, or None while it runs."""
        status = read_status(self.attempt)
        if status or self.is_alive():
            return status
        time.sleep(_LAST_LOOK_SECONDS)  # it may have ended between the two looks
        return read_status(self.attempt) or Status(exit_code=ExitCode.RETRY, message=self._obituary())

    def end(self, reason: str) -> bool:
        """Ends the job and everything that it started. It is told first, and so it ends even if the caller is killed meanwhile.

        Returns:
          Whether nothing of it is left on this host.
        """
        try:
            ask_to_end(self.attempt, reason)
        finally:  # a full disk is no reason to let it live
            is_gone = self.bury()
        return is_gone

    def bury(self) -> bool:
        """Ends what is left of a job on this host, if it was killed by signal 9: its workers, and its temporary files. Returns as `end` does."""
        process = self.process
        if process is None or not _is_here(process):
            return True
        is_gone = kill_group(process, GRACE_SECONDS)
        if is_gone:
            shutil.rmtree(self.attempt.scratch, ignore_errors=True)
            sweep()
        return is_gone

    def _obituary(self) -> str:
        log, process = self.attempt.log, self.process
        if process is None:
            return f"the job in {self.attempt.folder} was not started"
        tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() if log.exists() else ""
        return (f"the job process {process.pid} on {process.host} ended without a status, so it was killed or its host went down; "
                f"its log is {log}" + (f" and ends with:\n{tail}" if tail else ""))


def _is_here(process: ProcessIdentity) -> bool:
    return process.host == socket.gethostname()


def prepare_job(plan: JobPlan, layout: Layout, record_name: str) -> JobHandle:
    """A fresh attempt folder with the request in it; nothing runs yet."""
    attempt = Attempt(layout.attempts(plan.request.run_id, record_name) / f"attempt-{uuid.uuid4().hex[:8]}")
    write_request(attempt, plan.request)
    return JobHandle(attempt, plan.reason)


def start_job(plan: JobPlan, attempt: Attempt) -> ProcessIdentity:
    """Starts the planned job in a session of its own."""
    if plan.damage:
        set_aside(plan.manifest.parent)
    argv = [str(plan.python or sys.executable), "-m", KINDS[plan.request.job].module, "--request", str(attempt.request)]
    environment = job_environment(os.environ)
    if plan.python:
        environment |= bring_our_code(attempt, environment)
    process = ProcessIdentity.of(start_detached(argv, attempt.log, env=environment, cwd=attempt.folder).pid)
    write_json(attempt.process, process.to_json())
    return process


def set_aside(artifact: Path) -> None:
    """Removes a damaged artifact by rename first, so that no reader meets it half removed."""
    doomed = artifact.with_name(f".{artifact.name}.damaged")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(artifact, doomed)
    shutil.rmtree(doomed)


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a job inherits: not Airflow's settings, among which are its database and its keys."""
    return {name: value for name, value in environment.items() if not name.startswith(_AIRFLOW_ONLY)}


def bring_our_code(attempt: Attempt, environment: Mapping[str, str]) -> dict[str, str]:
    """Lets another interpreter find the code that the fingerprint was taken of, and nothing else that is installed beside it."""
    folder = attempt.folder / "code"
    folder.mkdir()
    for package in _OUR_PACKAGES:
        (folder / package).symlink_to(CODE_ROOT / package)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), environment.get("PYTHONPATH")]))}


class ProgressLog:
    """Turns a job's progress into task-log lines: every change of phase, and one line every few seconds."""

    def __init__(self, path: Path, offset: int = 0, every_seconds: float = 2.0):
        self._reader, self._every_seconds = ProgressReader(path, offset), every_seconds
        self._last_time, self._last_phase = 0.0, ""

    @property
    def offset(self) -> int:
        return self._reader.offset

    def lines(self) -> list[str]:
        """The lines that are due now."""
        return [str(moment) for moment in self._reader.new() if self._is_due(moment)]

    def _is_due(self, moment: Progress) -> bool:
        due = bool(moment.message) or moment.phase != self._last_phase or moment.time - self._last_time >= self._every_seconds
        due = due or (moment.done is not None and moment.done == moment.total)
        if due:
            self._last_time, self._last_phase = moment.time, moment.phase
        return due
