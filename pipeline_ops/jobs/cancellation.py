"""Whether a job is still wanted: the rule, how the job is told, and how it obeys.

A signal needs a sender on the same host who lives long enough to send the second one, too. So whoever ends a job first
leaves a file in its folder, and every job looks for that file: it reaches any host, and it stays there when its writer
is killed a moment later. Silence is no reason to end: a job outlives a restart of all of Airflow.
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
"""Under which a task keeps its job and its claim in Airflow's task state store."""

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL: a job has nothing to save that its last checkpoint does not hold."""

_LOOK_SECONDS = 0.5
_POLL_SECONDS = 0.05
_UNFINISHED = (None, "scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule")
"""States of a task instance that may still need its job. `restarting` is not among them: it was cleared."""


_Count = Annotated[int, Field(ge=-1, lt=2**31)]


class Claim(BaseModel):
    """The task instance that a job belongs to, as Airflow has it.

    A retry and a clear both give the task instance another id. Only a clear allows it more tries than before, and counts
    in the run; so what the next try may take over can be told from what it must begin anew.
    """

    model_config = ConfigDict(frozen=True)

    task_instance: str = Field(max_length=100)
    max_tries: _Count
    clear_number: _Count

    def passes_to(self, later: Claim) -> bool:
        """Whether the later one is the same task instance, or another try of it."""
        return self.task_instance == later.task_instance or (self.max_tries, self.clear_number) == (later.max_tries, later.clear_number)


class StoredJob(BaseModel):
    """What a task keeps of its job in Airflow's task state store.

    Every user who may edit task instances can write there. So it names an attempt, and nothing else: the folder follows from the
    config and from the task instance, and the process from the files in that folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: str = Field(max_length=100)
    claim: Claim

    @classmethod
    def parse(cls, value: object) -> StoredJob:
        """Raises DataError where the value is not one."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise DataError(f"{STORE_KEY} in Airflow's task state store is not a job of Trainyard: {describe(error)}") from None


class _Order(BaseModel):
    """The content of `unwanted.json`."""

    reason: str = Field(max_length=10_000)


def why_unwanted(claim: Claim, now: Claim | None, state: str | None) -> str | None:
    """Why a task instance that is now so, and in that state, does not need the job of a claim any more; None where it does.

    Args:
      now: what it would claim now; None where it is not in Airflow any more.
    """
    if now is None:
        return "its task is not in Airflow any more"
    if not claim.passes_to(now):
        return "its task was cleared in Airflow"
    return None if state in _UNFINISHED else f"its task is {state} in Airflow"


def ask_to_end(attempt: Attempt, reason: str) -> None:
    """Tells a job to end itself, wherever it runs, or is about to.

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
    """What a job was told; None where it is wanted. A file that can't be read says that it is not."""
    try:
        told = attempt.read(_Order, attempt.unwanted)
    except DataError as error:
        return f"it was told to end; {error}"
    return told and told.reason


@contextlib.contextmanager
def while_wanted(attempt: Attempt) -> Iterator[None]:
    """Ends this process and its whole group when the job is told to end: SIGTERM, then SIGKILL to whatever is left.

    Raises:
      Cancelled: the job was told so before it had begun.
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
    """The work is done or given up when `is_over`; what is still left of the group after the grace time is killed, this process too."""
    group, deadline = os.getpgrp(), time.monotonic() + GRACE_SECONDS
    os.killpg(group, signal.SIGTERM)
    while not (is_over.is_set() and group_members(group) == [os.getpid()]):
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
