"""The rule for whether a job is still needed, the request to cancel it, and how the job obeys it.

A signal needs a sender on the same host that lives long enough to send a second one. A request to
end is therefore first a file in the job's folder, which every job looks for. It reaches any host,
and outlives its writer. Silence is no reason to end: a job survives a restart of all of Airflow.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import Cancelled, DataError, TrainyardError
from pipeline_ops.storage.parsing import describe_validation_error, read_json_as
from pipeline_ops.storage.store_path import StoreAway, StorePath
from pipeline_ops.system.processes import find_group_members

STORE_KEY = "trainyard_job"
"""The key of a task's job and its owner in Airflow's task state store."""

LOST = "its place could not be reached"
"""The reason to end a job that counts as lost. Another try follows it, as after a killed job."""

GRACE_SECONDS = 2.0
"""The time between SIGTERM and SIGKILL. A job has no state to save besides its last checkpoint."""

_CHECK_SECONDS = 0.5
_BUCKET_CHECK_SECONDS = 2.0
_POLL_SECONDS = 0.05
_UNFINISHED_STATES = (
    None,
    "scheduled",
    "queued",
    "running",
    "deferred",
    "up_for_retry",
    "up_for_reschedule",
)
"""States of a task instance that may still need its job. A `restarting` one was cleared."""
_Count = Annotated[int, Field(ge=-1, lt=2**31)]


class TaskInstanceRef(BaseModel):
    """The task instance that a job belongs to, as Airflow describes it.

    A retry and a clear both give the task instance another id. Only a clear raises `max_tries` and
    the run's clear number. After a clear, the next try may not take over the job.
    """

    model_config = ConfigDict(frozen=True)

    task_instance: str = Field(max_length=100)
    max_tries: _Count
    clear_number: _Count

    def can_hand_over_to(self, later: TaskInstanceRef) -> bool:
        """Returns whether `later` is the same task instance, or another try of it."""
        return self.task_instance == later.task_instance or (self.max_tries, self.clear_number) == (
            later.max_tries,
            later.clear_number,
        )


class StoredJob(BaseModel):
    """A task's entry about its job in Airflow's task state store.

    Every user who may edit task instances can write there, so the entry names only an attempt. The
    folder follows from the config and the task instance, and the process from files there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: str = Field(max_length=100)
    owner: TaskInstanceRef

    @classmethod
    def parse(cls, value: object) -> StoredJob:
        """Parses an entry. Raises DataError if it is invalid."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise DataError(
                f"{STORE_KEY} in Airflow's task state store is not a job of Trainyard: "
                f"{describe_validation_error(error)}"
            ) from None


class _CancellationRequest(BaseModel):
    reason: str = Field(max_length=10_000)


def find_cancellation_reason(
    owner: TaskInstanceRef, current: TaskInstanceRef | None, state: str | None
) -> str | None:
    """The reason why a task instance no longer needs a job. None if it needs the job.

    `owner` has started the job, and `current` is the same task instance now, if Airflow has it.
    """
    if current is None:
        return "its task is no longer in Airflow"
    if not owner.can_hand_over_to(current):
        return "its task was cleared in Airflow"
    return None if state in _UNFINISHED_STATES else f"its task is {state} in Airflow"


def request_cancellation(attempt: Attempt[StorePath], reason: str) -> None:
    """Requests the cancellation of a job, on any host, even if it has not started yet."""
    try:
        attempt.request.read_range(0, 1)  # unlike `exists`, it refuses links
    except FileNotFoundError:
        raise DataError(
            f"{attempt.folder} is not the folder of a job: it has no request."
        ) from None
    content = _CancellationRequest(reason=reason).model_dump_json().encode() + b"\n"
    attempt.cancellation.write(content, mode=0o600)


def read_cancellation_reason(attempt: Attempt[StorePath]) -> str | None:
    """The reason in a job's cancellation request, if any. An unreadable file is a request."""
    try:
        request = read_json_as(_CancellationRequest, attempt.cancellation)
    except DataError as error:
        return f"its cancellation was requested; {error}"
    return request.reason if request else None


@contextlib.contextmanager
def monitor_cancellation(attempt: Attempt[StorePath]) -> Iterator[None]:
    """Ends this process and its whole group when the job is asked to end.

    Raises Cancelled if it was before it began.
    """
    if reason := read_cancellation_reason(attempt):
        raise Cancelled(reason)
    is_over = threading.Event()
    monitor = threading.Thread(target=_poll_request, args=(attempt, is_over), name="cancellation")
    monitor.start()
    try:
        yield
    finally:
        is_over.set()
        monitor.join()


def _poll_request(attempt: Attempt[StorePath], is_over: threading.Event) -> None:
    while not is_over.wait(_CHECK_SECONDS if attempt.folder.is_local else _BUCKET_CHECK_SECONDS):
        try:
            reason = read_cancellation_reason(attempt)
        except StoreAway:  # `object_requests.py` has said so, and it is no reason to end
            continue
        except TrainyardError as error:
            logging.getLogger(__name__).warning("%s", error)
            continue
        if reason:
            logging.getLogger(__name__).info("This job ends: %s", reason)
            _end_own_group(is_over)
            return


def _end_own_group(is_over: threading.Event) -> None:
    """Ends the process group: SIGTERM, then SIGKILL to the remaining ones, including this process.

    It returns early if the work has ended (`is_over`) and no other process is left.
    """
    group, deadline = os.getpgrp(), time.monotonic() + GRACE_SECONDS
    os.killpg(group, signal.SIGTERM)
    while not (is_over.is_set() and find_group_members(group) == [os.getpid()]):
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
