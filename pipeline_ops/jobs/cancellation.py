"""The rule for whether a job is still wanted, the order to end, and how the job obeys it.

A signal needs a sender on the same host that lives long enough to send the second one, too. The
process that ends a job therefore first writes a file into the job's folder, and every job looks for
that file. It reaches any host, and remains if its writer is killed a moment later. Silence is no
reason to end: a job survives a restart of all of Airflow.
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

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.errors import Cancelled, DataError
from pipeline_ops.storage.atomic import could_not_write
from pipeline_ops.storage.parsing import describe
from pipeline_ops.storage.safe_paths import write_below
from pipeline_ops.system.processes import group_members

STORE_KEY = "trainyard_job"
"""The key of a task's job and claim in Airflow's task state store."""

GRACE_SECONDS = 2.0
"""The time between SIGTERM and SIGKILL. A job has no state to save besides its last checkpoint."""

_LOOK_SECONDS = 0.5
_POLL_SECONDS = 0.05
_UNFINISHED = (
    None,
    "scheduled",
    "queued",
    "running",
    "deferred",
    "up_for_retry",
    "up_for_reschedule",
)
"""States of a task instance that may still need its job.

`restarting` is not among them, because such a task instance was cleared.
"""


_Count = Annotated[int, Field(ge=-1, lt=2**31)]


class TaskInstanceRef(BaseModel):
    """The task instance that a job belongs to, as Airflow describes it.

    A retry and a clear both give the task instance another id. Only a clear raises its `max_tries`
    and the run's clear number. These show whether the next try may take over the job or must start
    again.
    """

    model_config = ConfigDict(frozen=True)

    task_instance: str = Field(max_length=100)
    max_tries: _Count
    clear_number: _Count

    def passes_to(self, later: TaskInstanceRef) -> bool:
        """Returns whether the later claim is of the same task instance, or of another try of it."""
        return self.task_instance == later.task_instance or (self.max_tries, self.clear_number) == (
            later.max_tries,
            later.clear_number,
        )


class StoredJob(BaseModel):
    """A task's entry about its job in Airflow's task state store.

    Every user who may edit task instances can write there. The entry therefore names only an
    attempt. The folder follows from the config and from the task instance, and the process from the
    files in that folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: str = Field(max_length=100)
    claim: TaskInstanceRef

    @classmethod
    def parse(cls, value: object) -> StoredJob:
        """Parses an entry. Raises DataError if it is invalid."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise DataError(
                f"{STORE_KEY} in Airflow's task state store is not a job of Trainyard: "
                f"{describe(error)}"
            ) from None


class _Order(BaseModel):
    """The content of `unwanted.json`."""

    reason: str = Field(max_length=10_000)


def why_unwanted(
    claim: TaskInstanceRef, now: TaskInstanceRef | None, state: str | None
) -> str | None:
    """The reason why a task instance no longer needs the job of a claim. None if it needs the job.

    Args:
      claim: the claim of the job.
      now: the claim that the task instance would make now. None if it is no longer in Airflow.
      state: the present state of the task instance.
    """
    if now is None:
        return "its task is not in Airflow any more"
    if not claim.passes_to(now):
        return "its task was cleared in Airflow"
    return None if state in _UNFINISHED else f"its task is {state} in Airflow"


def ask_to_end(attempt: Attempt, reason: str) -> None:
    """Orders a job to end, on any host, even if it has not started yet.

    Raises:
      DataError: its folder is missing, or is reached through a link.
      MachineError: the disk refused the file.
    """
    content = _Order(reason=reason).model_dump_json().encode() + b"\n"
    try:
        write_below(*attempt.below_root(attempt.unwanted), content)
    except OSError as error:
        raise could_not_write(attempt.unwanted, error) from error


def reason_to_end(attempt: Attempt) -> str | None:
    """The reason in a job's order to end. None if there is no order.

    An unreadable file counts as an order.
    """
    try:
        told = attempt.read(_Order, attempt.unwanted)
    except DataError as error:
        return f"it was told to end; {error}"
    return told and told.reason


@contextlib.contextmanager
def while_wanted(attempt: Attempt) -> Iterator[None]:
    """Ends this process and its whole group when the job is ordered to end.

    It sends SIGTERM, then SIGKILL to the rest.

    Raises:
      Cancelled: the job received the order before it began.
    """
    if reason := reason_to_end(attempt):
        raise Cancelled(reason)
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(attempt, is_over), name="wanted")
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()


def _watch(attempt: Attempt, is_over: threading.Event) -> None:
    while not is_over.wait(_LOOK_SECONDS):
        if reason := reason_to_end(attempt):
            logging.getLogger(__name__).info("This job ends: %s", reason)
            _end_own_group(is_over)
            return


def _end_own_group(is_over: threading.Event) -> None:
    """Ends the process group: SIGTERM, then SIGKILL to the rest, including this process.

    It returns early if the work has ended (`is_over`) and no other process is left.
    """
    group, deadline = os.getpgrp(), time.monotonic() + GRACE_SECONDS
    os.killpg(group, signal.SIGTERM)
    while not (is_over.is_set() and group_members(group) == [os.getpid()]):
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
