"""The state of a run, and its view: redrawn in place in a terminal, or as plain lines in a file.

The tasks come from Airflow's REST API, their progress from the jobs' files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline_ops.artifacts.layout import Attempt, Layout, format_trial_name
from pipeline_ops.artifacts.results import compare_with_baseline
from pipeline_ops.cli.airflow_api import AirflowApi, parse_timestamp
from pipeline_ops.jobs.progress import ProgressEvent, ProgressReader
from pipeline_ops.jobs.task_record import TaskRecord, read_record
from pipeline_ops.planning.job_kinds import JOBS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

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


_STYLES = {
    "success": "green",
    "cached": "cyan",
    "failed": "bold red",
    "upstream_failed": "red",
    "running": "yellow",
    "deferred": "yellow",
    "up_for_retry": "magenta",
    "skipped": "blue",
}
_DEFAULT_WIDTH = 160
_BAR_WIDTH = 24
_PROGRESS_INTERVAL_SECONDS = 2.0


def make_console(stderr: bool) -> Console:
    """Makes the console for all output that a person reads."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _DEFAULT_WIDTH
    return console


@contextlib.contextmanager
def terminal_view(console: Console) -> Iterator[Callable[[RunStatus], None]]:
    """Yields a function that shows a run: in place in a terminal, else as plain lines."""
    from rich.live import Live

    if not console.is_terminal:
        yield PlainView(console).show
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(run: RunStatus) -> None:
            for task in run.tasks:
                for message in task.messages:
                    console.print(_format_line(run, task, message))
            live.update(_build_live_table(run), refresh=True)

        yield show


class PlainView:
    """Prints a line per change of a task's state, and for progress at most every two seconds.

    The first metrics of a task are printed at once.
    """

    def __init__(self, console: Console):
        self._console = console
        self._states: dict[str, tuple[str, int]] = {}
        self._progress: dict[tuple[str, bool], tuple[float, str]] = {}

    def show(self, run: RunStatus) -> None:
        for task in run.tasks:
            for message in task.messages:
                self._print(run, task, message)
            state = (format_state(task), task.tries)
            if task.state and self._states.get(task.name) != state:
                self._states[task.name] = state
                reason = _format_reason(task)
                self._print(run, task, f"{state[0]}: {reason}" if reason else state[0])
            self._show_progress(run, task)

    def _show_progress(self, run: RunStatus, task: TaskStatus) -> None:
        if not task.progress or task.progress.message or not is_running(task):
            return
        now, text = time.monotonic(), str(task.progress)
        kind = task.name, bool(task.progress.metrics)
        shown, previous = self._progress.get(kind, (0.0, ""))
        if text != previous and now - shown >= _PROGRESS_INTERVAL_SECONDS:
            self._progress[kind] = now, text
            self._print(run, task, text)

    def _print(self, run: RunStatus, task: TaskStatus, text: str) -> None:
        self._console.print(_format_line(run, task, text))


def _format_line(run: RunStatus, task: TaskStatus, text: str) -> str:
    return f"{run.seconds:7.1f} s  {task.name:<10}  {text}"


def is_running(task: TaskStatus) -> bool:
    return task.state in ("running", "deferred")


def format_state(task: TaskStatus) -> str:
    """Returns the displayed state of a task. It is Airflow's, except for deferred and cached tasks.

    A deferred task is running, and a cached one did not have to run.
    """
    if task.is_cached:
        return "cached"
    return "running" if task.state == "deferred" else task.state.replace("_", " ")


def print_result(console: Console, summary: Mapping[str, Any], run: RunStatus) -> None:
    """Prints the tasks, the metrics, the gate, and the locations of model and report."""
    console.print(_build_result_table(run), soft_wrap=False)
    search, model, warm_start = (
        summary["search"],
        summary["model"],
        summary["training"]["warm_start"],
    )
    if rejected := (dataset := summary["dataset"])["rejected"]:
        console.print(f"Rejected  {rejected:,} unusable entries of the raw data: {dataset['page']}")
    for line in search["table"] if search else ():
        console.print(f"Trial   {line}")
    if warm_start:
        console.print(f"Start     from the weights of {warm_start}")
    if summary["metrics"]:
        metrics = [f"{name} {value:.4f}" for name, value in summary["metrics"].items()]
        console.print(f"Metrics   {'  '.join(metrics)}")
    if baseline := compare_with_baseline(summary["metrics"], summary["baseline"]):
        console.print(f"Baseline  {baseline}")
    if summary["overfitting"]:
        console.print(f"Note      {summary['overfitting']}")
    if summary["gate"]["passed"] is not None:
        _print_gate(console, summary["gate"])
    if model["version"] is not None:
        console.print(f"Model     {model['name']} version {model['version']}: {model['uri']}")
    if summary["report"]:
        console.print(f"Report    {summary['report']}")
    if summary["predictions"]:
        console.print(f"Pictures  {summary['predictions']}")
    if (store := summary["store"])["requests"]:
        console.print(
            f"Store     {store['requests']} requests, {store['bytes_read'] / 1e6:.1f} MB read, "
            f"{store['bytes_written'] / 1e6:.1f} MB written"
        )
    console.print(f"Run       {run.state}, {run.seconds:.1f} s from the trigger to the end")


def _print_gate(console: Console, gate: Mapping[str, Any]) -> None:
    champion, passed = gate["champion_version"], gate["passed"]
    against = "no champion to compare with" if champion is None else f"against version {champion}"
    verdict = "passed" if passed else "not passed: trained, not published"
    console.print(f"Gate      {verdict} ({against})", style="green" if passed else "blue")
    for reason in gate["reasons"]:
        console.print(f"          {reason}")


def _build_live_table(run: RunStatus) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for task in run.tasks:
        detail = _draw_progress(task.progress) if is_running(task) else _format_reason(task)
        table.add_row(task.name, _style_state(task), _format_seconds(task), detail)
    return table


def _build_result_table(run: RunStatus) -> Table:
    from rich import box
    from rich.table import Table

    table = Table("task", "state", box=box.SIMPLE_HEAD)
    table.add_column("seconds", justify="right")
    table.add_column("reason")
    for task in run.tasks:
        table.add_row(task.name, _style_state(task), _format_seconds(task), _format_reason(task))
    return table


def _style_state(task: TaskStatus) -> Text:
    from rich.text import Text

    word = format_state(task)
    return Text(word or "waiting", style=_STYLES.get(word, _STYLES.get(task.state, "dim")))


def _format_seconds(task: TaskStatus) -> str:
    return "" if task.seconds is None else f"{task.seconds:.1f}"


def _format_reason(task: TaskStatus) -> str:
    """Returns the reason for a task's state, such as `unchanged`, or its error; may be empty."""
    if task.record is None:
        return ""
    return task.record.message if task.record.state == "failed" else task.record.reason


def _draw_progress(progress: ProgressEvent | None) -> RenderableType:
    """Draws the progress as text, with a bar in front of it if the total is known."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    if progress is None or not progress.total or progress.done is None:
        return str(progress or "starting")
    row = Table.grid(padding=(0, 2))
    row.add_row(ProgressBar(progress.total, progress.done, width=_BAR_WIDTH), str(progress))
    return row
