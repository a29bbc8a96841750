"""The view of a run: redrawn in place in a terminal, or as plain lines in a file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline_ops.artifacts.results import compare_with_baseline
from pipeline_ops.cli.watch import RunStatus, TaskStatus
from pipeline_ops.jobs.progress import ProgressEvent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

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
