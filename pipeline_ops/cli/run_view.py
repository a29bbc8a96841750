"""The state of a run, and its view: redrawn in place in a terminal, or as plain lines in a file.

The tasks come from Airflow's REST API, their progress from the jobs' files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline_ops.cli.airflow_api import AirflowApi, parse_timestamp
from pipeline_ops.contract.layout import APPROVE, TRIAL, Attempt, Layout, format_trial_name
from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.results import compare_with_baseline, format_figure
from pipeline_ops.contract.task_record import TaskRecord, read_record

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
    """A snapshot of one run. `seconds` counts from its trigger. `started` is in Unix time."""

    run_id: str
    state: str
    seconds: float
    tasks: tuple[TaskStatus, ...]
    started: float | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in ("success", "failed")

    def task(self, name: str) -> TaskStatus:
        return next(task for task in self.tasks if task.name == name)


class RunMonitor:
    """Polls a run, and asks Airflow less often the longer the run takes.

    The name of the pipeline in `layout` is the name of its DAG. `triggered` is in Unix time. Mapped
    tasks have the names of their records in `tasks`. Trials are shown once they are there.
    """

    def __init__(
        self, api: AirflowApi, layout: Layout, run_id: str, triggered: float, tasks: Sequence[str]
    ):
        self._api, self._dag, self._run_id = api, layout.pipeline, run_id
        self._triggered = triggered
        self._tasks = {task: _TaskMonitor(layout, run_id, task) for task in tasks}
        self._instances: dict[str, dict[str, Any]] = {}
        self._run: dict[str, Any] = {"state": "queued", "end_date": None}
        self._next_refresh = 0.0

    def poll(self) -> RunStatus:
        """Returns the current state of the run. Raises MachineError if Airflow does not respond."""
        if time.monotonic() >= self._next_refresh:
            self._refresh()
        end = parse_timestamp(self._run["end_date"]) if self._run["end_date"] else time.time()
        tasks = tuple(
            task.look(self._instances.get(name))
            for name, task in self._tasks.items()
            if name in self._instances or not name.startswith(TRIAL)
        )
        started = self._run.get("start_date")
        return RunStatus(
            self._run_id,
            self._run["state"],
            end - self._triggered,
            tasks,
            parse_timestamp(started) if started else None,
        )

    def _refresh(self) -> None:
        instances = self._api.tasks(self._dag, self._run_id)
        self._instances = {
            each["task_id"] if each["map_index"] < 0 else format_trial_name(each["map_index"]): each
            for each in instances
        }
        states = {each["state"] for each in instances}
        if states <= _TERMINAL_STATES or "failed" in states:
            self._run = self._api.run(self._dag, self._run_id)
        else:
            self._run["state"] = "running" if any(states) else "queued"
        elapsed = time.time() - self._triggered
        self._next_refresh = time.monotonic() + min(
            max(elapsed / 60, _MIN_REFRESH_SECONDS), _MAX_REFRESH_SECONDS
        )


class _TaskMonitor:
    """Reads the files of a task: its record, and the progress of its newest attempt.

    In a bucket, it reads them once in a while, and only once after the end of the task.
    """

    def __init__(self, layout: Layout, run_id: str, task: str):
        self._layout, self._run_id = layout, run_id
        self._status = TaskStatus(task)
        self._due = 0.0
        self._attempt: Attempt | None = None
        self._reader: ProgressReader | None = None

    def look(self, instance: Mapping[str, Any] | None) -> TaskStatus:
        """Returns the status. `instance` is the task as Airflow's API describes it."""
        last, name = self._status, self._status.name
        if instance is None or not instance["state"]:
            return TaskStatus(name)
        state, tries, seconds = instance["state"], instance["try_number"], None
        has_ended = state in _TERMINAL_STATES
        if start := instance["start_date"]:
            end = instance["end_date"] if has_ended else None
            now = parse_timestamp(end) if end else time.time()
            seconds = max(0.0, now - parse_timestamp(start))
        if (state, tries) == (last.state, last.tries) and time.monotonic() < self._due:
            return dataclasses.replace(last, seconds=seconds, messages=())
        record, progress = None, last.progress
        if state in _STATES_WITH_RECORD:
            record = read_record(self._layout.task_record(self._run_id, name))
        newest = self._layout.newest_attempt(self._run_id, name)
        if newest and newest != self._attempt:
            self._attempt, progress = newest, None
            self._reader = ProgressReader(newest.progress)
        events = self._reader.read_new() if self._reader else []
        progress = next((each for each in reversed(events) if each.worker in _CHIEF), progress)
        messages = tuple(event.message for event in events if event.message)
        self._status = TaskStatus(name, state, seconds, tries, progress, messages, record)
        pause = 0.0 if self._layout.root.is_local else _BUCKET_LOOK_SECONDS
        self._due = math.inf if has_ended else time.monotonic() + pause
        return self._status


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
_OUTCOME_STYLES: dict[str, str] = {
    "published": "bold green",
    "unchanged": "bold cyan",
    **dict.fromkeys(("not_in_service", "refused", "rejected", "unanswered"), "bold blue"),
}
_WAITING = "waiting"
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
                    _print_line(console, run, task, message)
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
                _print_line(self._console, run, task, message)
            state = (_format_state(task), task.tries)
            if task.state and self._states.get(task.name) != state:
                self._states[task.name] = state
                reason = _format_reason(task)
                text = f"{state[0]}: {reason}" if reason else state[0]
                _print_line(self._console, run, task, text)
            if not task.progress or task.progress.message or not _is_running(task):
                continue
            now, text = time.monotonic(), str(task.progress)
            kind = task.name, bool(task.progress.metrics)
            shown, previous = self._progress.get(kind, (0.0, ""))
            if text != previous and now - shown >= _PROGRESS_INTERVAL_SECONDS:
                self._progress[kind] = now, text
                _print_line(self._console, run, task, text)


def _print_line(console: Console, run: RunStatus, task: TaskStatus, text: str) -> None:
    console.print(f"{run.seconds:7.1f} s  {task.name:<10}  {text}")


def _is_running(task: TaskStatus) -> bool:
    return _format_state(task) == "running"


def _format_state(task: TaskStatus) -> str:
    """Returns Airflow's state, except for deferred tasks, which run or ask, and cached ones."""
    if task.is_cached:
        return "cached"
    if task.name == APPROVE and task.state in ("awaiting_input", "deferred"):
        return _WAITING
    return "running" if task.state == "deferred" else task.state.replace("_", " ")


def print_result(console: Console, summary: Mapping[str, Any], run: RunStatus) -> None:
    """Prints the outcome, the tasks, the metrics, the gate, and where model and report are."""
    outcome = summary["outcome"]
    console.print(outcome["sentence"], style=_OUTCOME_STYLES.get(outcome["kind"], "red"))
    if outcome["next_step"]:
        console.print(outcome["next_step"])
    console.print(_build_result_table(run), soft_wrap=False)
    dataset, search, model = summary["dataset"], summary["search"], summary["model"]
    if rejected := dataset["rejected"]:
        console.print(f"Rejected  {rejected:,} unusable entries of the raw data: {dataset['page']}")
    for line in search["table"] if search else ():
        console.print(f"Trial   {line}")
    if warm_start := summary["training"]["warm_start"]:
        console.print(f"Start     from the weights of {warm_start}")
    if early_stop := summary["training"]["early_stop"]:
        console.print(f"Training  {early_stop}")
    if summary["metrics"]:
        metrics = [f"{name} {format_figure(value)}" for name, value in summary["metrics"].items()]
        for line in wrap_words(metrics, "Metrics   "):
            console.print(line)
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
    console.print(f"Time      {run.seconds:.1f} s from the trigger to the end")


def wrap_words(words: Iterable[str], head: str, width: int = 100) -> Iterator[str]:
    """Yields lines of words, two blanks apart, below each other behind a head."""
    line = head
    for word in words:
        if len(line) > len(head) and len(line) + len(word) > width:
            yield line.rstrip()
            line = " " * len(head)
        line += f"{word}  "
    yield line.rstrip()


def _print_gate(console: Console, gate: Mapping[str, Any]) -> None:
    champion, passed = gate["champion_version"], gate["passed"]
    against = "no champion to compare with" if champion is None else f"against version {champion}"
    verdict = "passed" if passed else "not passed"
    console.print(f"Gate      {verdict} ({against})", style="green" if passed else "blue")
    for reason in gate["reasons"]:
        console.print(f"          {reason}")


def _build_live_table(run: RunStatus) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for task in run.tasks:
        detail = _draw_progress(task.progress) if _is_running(task) else _format_reason(task)
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

    word = _format_state(task)
    return Text(word or _WAITING, style=_STYLES.get(word, _STYLES.get(task.state, "dim")))


def _format_seconds(task: TaskStatus) -> str:
    return "" if task.seconds is None else f"{task.seconds:.1f}"


def _format_reason(task: TaskStatus) -> str:
    """Returns the reason for the state, such as `unchanged`, or the error; may be empty."""
    if _format_state(task) == _WAITING:
        return "for a person's answer, under Required Actions on the page of the run"
    if task.record is None:
        return ""
    is_reason_in_message = task.record.state in ("failed", "pruned")
    return task.record.message if is_reason_in_message else task.record.reason


def _draw_progress(progress: ProgressEvent | None) -> RenderableType:
    """Draws the progress as text, with a bar in front of it if the total is known."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    if progress is None or not progress.total or progress.done is None:
        return str(progress or "starting")
    row = Table.grid(padding=(0, 2))
    row.add_row(ProgressBar(progress.total, progress.done, width=_BAR_WIDTH), str(progress))
    return row
