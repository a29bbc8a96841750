"""The mechanism under the operators: start one job process, look at it, end it. Knows nothing of Airflow.

A job outlives whoever started it. What is needed to find it again is a JobHandle, which fits into JSON.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline_ops.contracts.errors import ExitCode
from pipeline_ops.contracts.fingerprint import CODE_ROOT
from pipeline_ops.contracts.layout import Attempt, Layout
from pipeline_ops.contracts.plan import KINDS, JobPlan
from pipeline_ops.contracts.processes import ProcessIdentity, kill_group, start_detached
from pipeline_ops.contracts.progress import Progress, ProgressReader
from pipeline_ops.contracts.request import Status, read_status, write_request

_GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL: a job has nothing to save that its last checkpoint does not hold."""

_LAST_LOOK_SECONDS = 0.5
_LOG_TAIL_BYTES = 2000
_OUR_PACKAGES = ("pipeline_ops", "beam_jobs")
_AIRFLOW_ONLY = ("AIRFLOW__", "_AIRFLOW_", "AIRFLOW_CONN_", "AIRFLOW_VAR_")


@dataclasses.dataclass(frozen=True)
class JobHandle:
    """A job that was started: which process, in which folder, and why."""

    process: ProcessIdentity
    attempt: Attempt
    reason: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobHandle:
        return cls(ProcessIdentity.from_json(value["process"]), Attempt(Path(value["attempt"])), value["reason"])

    def to_json(self) -> dict[str, Any]:
        return {"process": self.process.to_json(), "attempt": str(self.attempt.folder), "reason": self.reason}

    def outcome(self) -> Status | None:
        """How the job ended, or None while it runs."""
        status = read_status(self.attempt)
        if status or self.process.is_alive():
            return status
        time.sleep(_LAST_LOOK_SECONDS)  # it may have ended between the two looks
        return read_status(self.attempt) or Status(exit_code=ExitCode.RETRY, message=self._obituary())

    def end(self) -> bool:
        """Kills the job and everything that it started; True once nothing of it is left."""
        return kill_group(self.process, _GRACE_SECONDS)

    def _obituary(self) -> str:
        log = self.attempt.log
        tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() if log.exists() else ""
        return (f"the job process {self.process.pid} on {self.process.host} ended without a status, so it was killed or its host went down; "
                f"its log is {log}" + (f" and ends with:\n{tail}" if tail else ""))


def start_job(plan: JobPlan, layout: Layout, record_name: str) -> JobHandle:
    """Starts the planned job in a session of its own and in a fresh attempt folder."""
    request = plan.request
    if plan.damage:
        set_aside(plan.manifest.parent)
    attempt = Attempt(layout.attempts(request.run_id, record_name) / f"attempt-{uuid.uuid4().hex[:8]}")
    write_request(attempt, request)
    argv = [str(plan.python or sys.executable), "-m", KINDS[request.job].module, "--request", str(attempt.request)]
    environment = job_environment(os.environ)
    if plan.python:
        environment |= bring_our_code(attempt, environment)
    process = start_detached(argv, attempt.log, env=environment, cwd=attempt.folder)
    return JobHandle(ProcessIdentity.of(process.pid), attempt, plan.reason)


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
