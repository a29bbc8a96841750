"""The messages between a preprocess job and its workers: small objects in the store.

They are below the job's work folder, in the same store as the artifact, so that a worker on any
host can reach them. If the job is killed, its next try takes over the results.

    plans.jsonl            the plans. A task is the range of one of them
    plans.digest           tells to which plans the results belong
    results/<name>.json    the result of a plan, which is done when this exists
    progress/<name>.json   records done and rejected, while a plan is worked on
    errors/<name>.json     the error with which a worker ended
    stop                   tells all workers to stop

All are JSON, so no message can run code. Tasks travel through Beam as rows with typed fields. There
is no `from __future__ import annotations` here: Beam reads the types of the fields, and would
serialise a field whose type is a text as Python code.
"""

import dataclasses
import functools
import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from beam_jobs.planning.plan import ShardPlan
from beam_jobs.statistics.summary import PlanSummary, Summary
from pipeline_ops.contract.request import Status
from pipeline_ops.errors import ExitCode, MachineError, TrainyardError
from pipeline_ops.storage.parsing import describe_validation_error
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.user_code.code_location import get_location
from pipeline_ops.user_code.planned_imports import attach_location, get_planned_code

_PLANS, _DIGEST, _STOP = "plans.jsonl", "plans.digest", "stop"
_RESULTS, _PROGRESS, _ERRORS = "results", "progress", "errors"
_MAX_BYTES = 256 << 20
_FOLDER_SECONDS, _BUCKET_SECONDS = 1.0, 5.0
_STOP_SECONDS = 10
"""How long the signal to stop waits for a store that is away."""
DISK_CURE = "Free disk space or repair the disk, then retry."
_Message = TypeVar("_Message", bound=BaseModel)
_PLAN = TypeAdapter(ShardPlan)
_log = logging.getLogger(__name__)


class ShardTask(NamedTuple):
    """A plan to work on: its name, and its bytes in the file of all plans."""

    name: str
    start: int
    num_bytes: int


class StoppedByDriver(Exception):
    """The driver has given up and does not need the result."""


class PlanProgress(BaseModel, frozen=True):
    """The records of a plan that are done, and those of them that were rejected."""

    done: int
    rejected: int


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The messages of one pass over the data. `folder` holds all of them."""

    folder: StorePath

    @property
    def poll_seconds(self) -> float:
        """The polling interval. It is longer for a bucket, whose requests cost money."""
        return _FOLDER_SECONDS if self.folder.is_local else _BUCKET_SECONDS

    def write_plans(self, plans: Iterable[ShardPlan]) -> list[ShardTask]:
        """Writes all plans. Of an earlier try, only results of the same plans stay."""
        plans = tuple(plans)
        tasks, position = [], 0
        with (self.folder / _PLANS).open_for_writing() as file:
            for plan in plans:
                line = _PLAN.dump_json(plan, exclude_defaults=True) + b"\n"
                file.write(line)
                tasks.append(ShardTask(plan.name, position, len(line)))
                position += len(line)
        self.clear()
        digest, known = digest_plans(plans).encode(), self.folder / _DIGEST
        if not known.exists() or known.read() != digest:
            (self.folder / _RESULTS).remove_tree()
            known.write(digest)
        return tasks

    def clear(self) -> None:
        """Removes the messages of an earlier try, except for plans and results."""
        for kind in (_PROGRESS, _ERRORS):
            (self.folder / kind).remove_tree()
        (self.folder / _STOP).remove()

    def read_plan(self, task: ShardTask) -> ShardPlan:
        """Reads a plan. Raises MachineError if it is missing or damaged."""
        path = self.folder / _PLANS
        try:
            return _PLAN.validate_json(path.read_range(task.start, task.num_bytes))
        except FileNotFoundError:
            raise MachineError(f"{path} is missing. Retry.") from None
        except ValidationError as error:
            fault = describe_validation_error(error)
            raise MachineError(f"{path} has no plan {task.name}: {fault}. Retry.") from None

    def find_result(self, name: str, model: type[Summary]) -> Summary | None:
        """The result of a plan that was built before, by this try or by an earlier one."""
        try:
            return self.read(model, f"{_RESULTS}/{name}.json")
        except FileNotFoundError:
            return None

    def write_result(self, name: str, result: PlanSummary) -> None:
        """Writes the result of a plan, which is its worker's last message."""
        self._write(_RESULTS, name, result)

    def write_error(self, name: str, error: Exception) -> None:
        """Leaves an error for the driver, and stops all workers."""
        attach_location(error, get_planned_code())
        location = get_location(error)
        if isinstance(error, OSError):
            error = MachineError(f"{name}: {error}", DISK_CURE)
        if not isinstance(error, TrainyardError):
            error = TrainyardError(f"{type(error).__name__} while building {name}: {error}")
        if error.exit_code is ExitCode.BUG:
            _log.exception("%s", error)
        error.location = location
        self._write(_ERRORS, name, Status.of_error(error))
        self.stop()

    def raise_error(self) -> None:
        """Raises the error that a worker has left. Of several, the others are usually the same."""
        for entry in (self.folder / _ERRORS).list_folder():
            status = self.read(Status, f"{_ERRORS}/{entry.name}")
            raise status.restore_error(status.exit_code)

    def stop(self) -> None:
        """Stops all workers: each raises StoppedByDriver at its next report."""
        with wait_at_most(_STOP_SECONDS):
            (self.folder / _STOP).write(b"")

    def check_stop(self) -> None:
        if (self.folder / _STOP).exists():
            raise StoppedByDriver

    def write_progress(self, name: str, progress: PlanProgress) -> None:
        self._write(_PROGRESS, name, progress)

    def count_done(self) -> int:
        """The records of all plans that are worked on, by their last reports."""
        files = (self.folder / _PROGRESS).list_folder()
        return sum(self.read(PlanProgress, f"{_PROGRESS}/{file.name}").done for file in files)

    def read(self, model: type[_Message], name: str) -> _Message:
        """Reads a message by its name in the folder. Raises MachineError if it is damaged."""
        path = self.folder / name
        try:
            return model.model_validate_json(path.read(_MAX_BYTES))
        except ValidationError as error:
            fault = describe_validation_error(error)
            raise MachineError(f"{path} is no message of a worker: {fault}. Retry.") from None

    def _write(self, kind: str, name: str, message: BaseModel) -> None:
        (self.folder / kind / f"{name}.json").write(message.model_dump_json().encode())


def digest_plans(plans: Iterable[ShardPlan]) -> str:
    """A digest of the places of all records. Their contents are in the fingerprint of the job."""
    hashed = hashlib.sha256()
    for plan in plans:
        keys = "\0".join(record.key for record in plan.records)
        hashed.update(f"{plan.name}\0{keys}\n".encode())
    return hashed.hexdigest()


class ProgressReporter:
    """Reports the work on one plan. It raises StoppedByDriver, also before the first record."""

    def __init__(self, exchange: Exchange, name: str):
        self._exchange, self._name = exchange, name
        self._done = self._rejected = 0
        exchange.check_stop()
        self._next = time.monotonic() + exchange.poll_seconds

    def add(self, is_rejected: bool) -> None:
        self._done += 1
        self._rejected += is_rejected
        if time.monotonic() >= self._next:
            self._exchange.check_stop()
            progress = PlanProgress(done=self._done, rejected=self._rejected)
            self._exchange.write_progress(self._name, progress)
            self._next = time.monotonic() + self._exchange.poll_seconds


class Results(Generic[Summary]):
    """The driver's side: reads each result as soon as it is there."""

    def __init__(self, exchange: Exchange, plans: Sequence[ShardPlan], model: type[Summary]):
        self._exchange, self._plans, self._model = exchange, plans, model
        self._sizes = {plan.name: len(plan.records) for plan in plans}
        self._found = dict[str, Summary]()
        self._seen = dict[str, tuple[float, PlanProgress]]()

    def read_progress(self) -> tuple[int, int]:
        """The records that are done so far, and those of them that were rejected."""
        entries = {entry.name: entry for entry in self._exchange.folder.walk()}
        open_plans = self._sizes.keys() - self._found.keys()
        files = {name: f"{_RESULTS}/{name}.json" for name in open_plans}
        fresh = {name: file for name, file in files.items() if file in entries}
        read_result = functools.partial(self._exchange.read, self._model)
        self._found |= zip(fresh, map_requests(read_result, fresh.values()), strict=True)
        for name in open_plans.difference(fresh):
            entry = entries.get(file := f"{_PROGRESS}/{name}.json")
            if entry and (name not in self._seen or self._seen[name][0] != entry.modified):
                self._seen[name] = entry.modified, self._exchange.read(PlanProgress, file)
        working = [self._seen[name][1] for name in self._seen.keys() - self._found.keys()]
        done = sum(self._sizes[name] for name in self._found) + sum(each.done for each in working)
        rejected = sum(len(result.rejected) for result in self._found.values())
        return done, rejected + sum(each.rejected for each in working)

    def collect(self) -> list[Summary]:
        """All results, in the order of the plans, after the last call of `read_progress`."""
        if lost := [plan.name for plan in self._plans if plan.name not in self._found]:
            fault = f"the runner has ended without {lost[0]}"
            raise MachineError(fault, "Check its log, then retry.")
        return [self._found[plan.name] for plan in self._plans]
