"""The state of a run: its tasks from Airflow's REST API, their progress from the jobs' files."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from pipeline_ops.artifacts.layout import Attempt, Layout, format_trial_name
from pipeline_ops.cli.local_airflow.airflow_api import AirflowApi, parse_timestamp
from pipeline_ops.jobs.progress import ProgressEvent, ProgressReader
from pipeline_ops.jobs.task_record import TaskRecord, read_record
from pipeline_ops.planning.job_kinds import JOBS

_TERMINAL_STATES = {"success", "failed", "skipped", "upstream_failed", "removed"}
_STATES_WITH_RECORD = ("success", "failed", "skipped", "up_for_retry")
_CHIEF = (None, 0)
"""The worker whose progress is shown. The workers advance in step."""

_MIN_REFRESH_SECONDS, _MAX_REFRESH_SECONDS = 0.25, 2.0
_BUCKET_LOOK_SECONDS = 1.0
"""The pause between two looks at the files of a running job in a bucket."""


@dataclasses.dataclass(frozen=True)
class TaskStatus:
    """A snapshot of one task.

    `state` is Airflow's, "" until the task's turn comes. `seconds` counts from its start.
    """

    name: str
    state: str = ""
    seconds: float | None = None
    tries: int = 0
    progress: ProgressEvent | None = None
    messages: tuple[str, ...] = ()
    """The messages of the job since the last poll."""
    record: TaskRecord | None = None

    @property
    def is_cached(self) -> bool:
        return bool(self.record and self.record.cached)


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """A snapshot of one run. `seconds` counts from its trigger."""

    run_id: str
    state: str
    seconds: float
    tasks: tuple[TaskStatus, ...]

    @property
    def is_finished(self) -> bool:
        return self.state in ("success", "failed")

    def task(self, name: str) -> TaskStatus:
        return next(task for task in self.tasks if task.name == name)


class RunMonitor:
    """Polls a run, and asks Airflow less often the longer the run takes.

    Args:
      layout: the paths of the pipeline, whose name is that of its DAG.
      triggered: the time of the trigger, in seconds since 1970.
      tasks: the names of the tasks, in the order in which they are shown. Mapped tasks have the
        names of their records.
    """

    def __init__(
        self,
        api: AirflowApi,
        layout: Layout,
        run_id: str,
        triggered: float,
        tasks: Sequence[str] = JOBS,
    ):
        self._api, self._layout, self._run_id = api, layout, run_id
        self._triggered = triggered
        self._jobs = {task: _JobProgress(layout, run_id, task) for task in tasks}
        self._looks: dict[str, _Look] = {}
        self._instances: dict[str, dict[str, Any]] = {}
        self._run: dict[str, Any] = {"state": "queued", "end_date": None}
        self._next_refresh = 0.0

    def poll(self) -> RunStatus:
        """Returns the current state of the run. Raises MachineError if Airflow does not respond."""
        if time.monotonic() >= self._next_refresh:
            self._refresh()
        end = parse_timestamp(self._run["end_date"]) if self._run["end_date"] else time.time()
        tasks = tuple(self._get_task_status(task) for task in self._jobs)
        return RunStatus(self._run_id, self._run["state"], end - self._triggered, tasks)

    def _refresh(self) -> None:
        dag, run_id = self._layout.pipeline, self._run_id
        self._instances = {
            _get_task_name(instance): instance for instance in self._api.tasks(dag, run_id)
        }
        states = {instance["state"] for instance in self._instances.values()}
        if states <= _TERMINAL_STATES or "failed" in states:
            self._run = self._api.run(dag, run_id)
        else:
            self._run["state"] = "running" if any(states) else "queued"
        elapsed = time.time() - self._triggered
        self._next_refresh = time.monotonic() + min(
            max(elapsed / 60, _MIN_REFRESH_SECONDS), _MAX_REFRESH_SECONDS
        )

    def _get_task_status(self, job: str) -> TaskStatus:
        instance = self._instances.get(job)
        state = instance and instance["state"]
        if instance is None or not state:
            return TaskStatus(job)
        seconds, tries = _compute_duration(instance), instance["try_number"]
        last, now = self._looks.get(job), time.monotonic()
        if last and (state, tries) == (last.status.state, last.status.tries) and now < last.due:
            return dataclasses.replace(last.status, seconds=seconds, messages=())
        record = None
        if state in _STATES_WITH_RECORD:
            record = read_record(self._layout.task_record(self._run_id, job))
        progress, messages = self._jobs[job].read_new()
        status = TaskStatus(job, state, seconds, tries, progress, messages, record)
        pause = 0.0 if self._layout.root.is_local else _BUCKET_LOOK_SECONDS
        due = math.inf if state in _TERMINAL_STATES else time.monotonic() + pause
        self._looks[job] = _Look(status, due)
        return status


class _Look(NamedTuple):
    """A look at the files of a task. The next one is due later, or never if the task has ended."""

    status: TaskStatus
    due: float


class _JobProgress:
    """Follows the newest of a task's attempts."""

    def __init__(self, layout: Layout, run_id: str, task: str):
        self._find_newest = partial(layout.newest_attempt, run_id, task)
        self._attempt: Attempt | None = None
        self._reader: ProgressReader | None = None
        self._latest: ProgressEvent | None = None

    def read_new(self) -> tuple[ProgressEvent | None, tuple[str, ...]]:
        """The latest progress event, and the messages since the last call."""
        newest = self._find_newest()
        if newest and newest != self._attempt:
            self._attempt, self._latest = newest, None
            self._reader = ProgressReader(newest.progress)
        events = self._reader.read_new() if self._reader else []
        self._latest = next(
            (event for event in reversed(events) if event.worker in _CHIEF), self._latest
        )
        return self._latest, tuple(event.message for event in events if event.message)


def _get_task_name(instance: dict[str, Any]) -> str:
    """Returns the name of a task instance. Mapped ones differ by number, as their records do."""
    number: int = instance["map_index"]
    name: str = instance["task_id"]
    return name if number < 0 else format_trial_name(number)


def _compute_duration(instance: dict[str, Any]) -> float | None:
    if not instance["start_date"]:
        return None
    end = time.time()
    if instance["end_date"] and instance["state"] in _TERMINAL_STATES:
        end = parse_timestamp(instance["end_date"])
    return max(0.0, end - parse_timestamp(instance["start_date"]))
