"""The start of a planned job, and its progress in the task's log. Knows nothing of Airflow."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from pipeline_ops.contract.layout import Attempt, Layout
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.request import Request, compute_request_digest, write_request
from pipeline_ops.errors import DataError
from pipeline_ops.job.job_code import digest_code
from pipeline_ops.job.workspace import REQUEST_VARIABLE
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.places.place import JobLaunch, Place
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.storage.open_store import make_store_environment
from pipeline_ops.storage.store_path import StorePath

_LOG_SECONDS = 2.0
_LOG_CHUNK_BYTES = 32 << 10


def prepare_job(
    plan: JobPlan, layout: Layout, record_name: str, place: Place | None = None
) -> JobHandle:
    """Makes the folder of a new attempt, with the request in it."""
    request = plan.request.model_copy(update={"reason": plan.reason})
    return write_attempt(request, layout, record_name, place)


def write_attempt(
    request: Request, layout: Layout, record_name: str, place: Place | None
) -> JobHandle:
    """Like `prepare_job`, for a request that was not planned."""
    attempt = layout.attempt(request.run_id, record_name, f"attempt-{uuid.uuid4().hex[:8]}")
    handle = JobHandle(attempt, place)
    if not handle.place.is_this_host:
        request = request.model_copy(update={"code_digest": digest_code()})
    write_request(attempt, request)
    handle.request_digest = compute_request_digest(request)
    return handle


def start_job(plan: JobPlan, handle: JobHandle) -> None:
    """Starts the job. Raises MachineError if its place can't be reached.

    Raises ConfigError if the place refuses the job.
    """
    launch_job(plan.request, KINDS[plan.request.job].module, plan.environment, handle)


def launch_job(
    request: Request, module: str, environment: Mapping[str, str], handle: JobHandle
) -> None:
    """Starts the job of a request, like `start_job`.

    Args:
      module: the program of the job.
      environment: variables of the job besides the access to the store.
    """
    launch = JobLaunch(
        attempt=handle.attempt,
        module=module,
        environment={
            **make_store_environment(handle.attempt.folder.root),
            **environment,
            REQUEST_VARIABLE: handle.request_digest,
        },
        deadline_seconds=request.deadline_seconds,
        pipeline=request.pipeline,
        job=request.job,
        versions=request.fingerprint.versions,
    )
    handle.place.start(launch)


class ProgressLog:
    """Writes a job's progress to the task's log, and copies the job's log if it runs elsewhere.

    There is a line for every change of phase, and otherwise one every `_LOG_SECONDS`. `offset` and
    `log_offset` are positions in the files of progress and log. None copies no log.
    """

    def __init__(self, attempt: Attempt[StorePath], offset: int = 0, log_offset: int | None = None):
        self._attempt = attempt
        self._reader = ProgressReader(attempt.progress, offset)
        self._last_time, self._last_phase = 0.0, ""
        self.log_offset = log_offset

    @property
    def offset(self) -> int:
        return self._reader.offset

    def write_due_lines(self, write: Callable[[str], object]) -> None:
        """Writes the lines that are due now, and the problems of unreadable ones."""
        lines = [] if self.log_offset is None else self._read_log_lines(self.log_offset)
        lines += [str(event) for event in self._reader.read_new() if self._is_due(event)]
        for line in lines + self._reader.problems:
            write(line)
        self._reader.problems = []

    def _read_log_lines(self, offset: int) -> list[str]:
        """Reads the new whole lines of the job's log, at most `_LOG_CHUNK_BYTES` of them."""
        try:
            data = self._attempt.log.read_log(offset, _LOG_CHUNK_BYTES)
        except DataError:  # it is not a file, and other readers report that
            return []
        whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == _LOG_CHUNK_BYTES else b"")
        self.log_offset = offset + len(whole)
        return whole.decode(errors="replace").splitlines()

    def _is_due(self, event: ProgressEvent) -> bool:
        is_due = (
            bool(event.message)
            or (event.phase != self._last_phase and bool(event.done))
            or event.time - self._last_time >= _LOG_SECONDS
            or (event.done is not None and event.done == event.total)
        )
        if is_due:
            self._last_time, self._last_phase = event.time, event.phase
        return is_due
