"""The view of a run: redrawn in place in a terminal, or as plain lines in a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pipeline_ops.cli.watch import RunView, TaskStatus

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
_PLAIN_WIDTH = 160
_BAR_WIDTH = 24
_EVERY_SECONDS = 2.0


class Screen(Protocol):
    """Shows a run while it runs."""

    def __enter__(self) -> Screen: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, run: RunView) -> None: ...


def make_console(stderr: bool) -> Console:
    """The console for all output that a person reads."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)
    return (
        console
        if console.is_terminal
        else Console(stderr=stderr, highlight=False, markup=False, width=_PLAIN_WIDTH)
    )


def make_screen(console: Console) -> Screen:
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """Prints a line per change of a task's state, and for progress at most every two seconds."""

    def __init__(self, console: Console):
        self._console = console
        self._states: dict[str, tuple[str, int]] = {}
        self._progress: dict[str, str] = {}
        self._progress_time: dict[str, float] = {}

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, run: RunView) -> None:
        for task in run.tasks:
            for message in task.messages:
                self._print(run, task, message)
            state = (state_word(task), task.tries)
            if task.state and self._states.get(task.name) != state:
                self._states[task.name] = state
                self._print(run, task, f"{state[0]}{_because(task)}")
            self._show_progress(run, task)

    def _show_progress(self, run: RunView, task: TaskStatus) -> None:
        now, text = time.monotonic(), str(task.progress or "")
        is_news = (
            is_running(task)
            and text not in ("", self._progress.get(task.name))
            and not task.progress.message
        )
        if not is_news or now - self._progress_time.get(task.name, 0.0) < _EVERY_SECONDS:
            return
        self._progress[task.name], self._progress_time[task.name] = text, now
        self._print(run, task, text)

    def _print(self, run: RunView, task: TaskStatus, text: str) -> None:
        self._console.print(f"{run.seconds:7.1f} s  {task.name:<10}  {text}", soft_wrap=True)


class LiveScreen:
    """A table of the tasks that is redrawn in its place."""

    def __init__(self, console: Console):
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, run: RunView) -> None:
        for task in run.tasks:
            for message in task.messages:
                self._console.print(f"{run.seconds:7.1f} s  {task.name:<10}  {message}")
        self._live.update(_live_table(run), refresh=True)


def is_running(task: TaskStatus) -> bool:
    return task.state in ("running", "deferred")


def state_word(task: TaskStatus) -> str:
    """The word for a task's state. It is Airflow's, except for states that a reader may not know.

    A deferred task is running, and a cached one did not have to run.
    """
    if task.is_cached:
        return "cached"
    return "running" if task.state == "deferred" else task.state.replace("_", " ")


def print_result(console: Console, summary: Mapping[str, Any], run: RunView) -> None:
    """Prints the tasks, the metrics, the gate, and the places of model and report."""
    console.print(_result_table(run))
    for line in summary["search"]["table"] if summary["search"] else ():
        console.print(f"Trial   {line}", soft_wrap=True)
    if summary["training"]["warm_start"]:
        console.print(
            f"Began     with the weights of {summary['training']['warm_start']}", soft_wrap=True
        )
    if summary["metrics"]:
        console.print(
            "Metrics   "
            + "  ".join(f"{name} {value:.4f}" for name, value in summary["metrics"].items())
        )
    _print_gate(console, summary)
    if summary["model"]["version"] is not None:
        console.print(
            f"Model     {summary['model']['name']} version {summary['model']['version']}: "
            f"{summary['model']['uri']}",
            soft_wrap=True,
        )
    if summary["report"]:
        console.print(f"Report    {summary['report']}", soft_wrap=True)
    console.print(f"Run       {run.state}, {run.seconds:.1f} s from the trigger to the end")


def _print_gate(console: Console, summary: Mapping[str, Any]) -> None:
    gate = summary["gate"]
    if gate["passed"] is None:
        return
    against = (
        f"against version {gate['champion_version']}"
        if gate["champion_version"] is not None
        else "there was no champion to beat"
    )
    verdict = "passed" if gate["passed"] else "not passed: trained, not published"
    console.print(f"Gate      {verdict} ({against})", style="green" if gate["passed"] else "blue")
    for reason in gate["reasons"]:
        console.print(f"          {reason}", soft_wrap=True)


def _live_table(run: RunView) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for task in run.tasks:
        detail = _progress_line(task) if is_running(task) else _because(task).removeprefix(": ")
        table.add_row(task.name, _state_text(task), _seconds(task), detail)
    return table


def _result_table(run: RunView) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in ("task", "state", "seconds", "why"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for task in run.tasks:
        table.add_row(
            task.name, _state_text(task), _seconds(task), _because(task).removeprefix(": ")
        )
    return table


def _state_text(task: TaskStatus):
    from rich.text import Text

    word = state_word(task)
    return Text(word or "waiting", style=_STYLES.get(word, _STYLES.get(task.state, "dim")))


def _seconds(task: TaskStatus) -> str:
    return "" if task.seconds is None else f"{task.seconds:.1f}"


def _because(task: TaskStatus) -> str:
    """The reason for a task's state, such as `: unchanged`, or its error; may be empty."""
    if task.record is None:
        return ""
    text = task.record.message if task.record.state == "failed" else task.record.reason
    return f": {text}" if text else ""


def _progress_line(task: TaskStatus) -> str:
    progress = task.progress
    if progress is None:
        return "starting"
    if not progress.total or progress.done is None:
        return str(progress)
    filled = round(_BAR_WIDTH * min(1.0, progress.done / progress.total))
    return f"{'━' * filled}{'╌' * (_BAR_WIDTH - filled)}  {progress}"
