"""The table of a pipeline's runs: what has become of each, and what it was made of.

Of a finished run it reads one small file, and keeps it. Runs that left none were ended from outside
or are older. Their records are read, once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from pipeline_ops.contract.layout import APPROVE, TRIAL, Layout
from pipeline_ops.contract.outcome import Kind, find_failed
from pipeline_ops.contract.run_summary import (
    RunSummary,
    find_summary,
    is_same_start,
    read_summary,
)
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.airflow_models import DagRun
from pipeline_ops.orchestration.airflow_runs import TaskState, find_pipeline, list_runs
from pipeline_ops.orchestration.run_note import find_canceller
from pipeline_ops.orchestration.ui.progress import Chart, format_metric_title
from pipeline_ops.pages.charts import LARGE, Line, Point, draw_legend, draw_line_chart
from pipeline_ops.storage.request_cache import map_requests

ROWS = 50
_RECENT = dt.timedelta(days=1)
_MAX_KEPT = 4096
_FINISHED = ("success", "failed")
_JOBS = ("preprocess", "train", "evaluate", "export")
WORDS: Mapping[Kind, str] = {
    "running": "running",
    "waiting": "waits for you",
    "published": "published",
    "not_in_service": "not in service",
    "unchanged": "unchanged",
    "refused": "refused",
    "rejected": "rejected",
    "unanswered": "unanswered",
    "failed": "failed",
    "data_refused": "data refused",
    "out_of_date": "out of date",
    "cancelled": "cancelled",
}
"""The badge of each kind of outcome."""


@dataclasses.dataclass(frozen=True)
class RunRow:
    """One run. `seconds` are those of each job that it ran, without cached ones."""

    run_id: str
    summary: RunSummary
    started: dt.datetime | None
    seconds: dict[str, float]
    triggered_by: str
    note: str
    """What a person has written. Our own note is the sentence."""

    @property
    def kind(self) -> Kind:
        return self.summary.outcome.kind

    @property
    def word(self) -> str:
        return WORDS[self.kind]


@dataclasses.dataclass(frozen=True)
class RunsView:
    """A page of the table, the newest run first."""

    rows: list[RunRow]
    metrics: list[str]
    recent: dict[Kind, int]
    """The runs of the last day, by kind."""
    counts: dict[Kind, int]
    hides_unchanged: bool
    num_hidden: int
    chart: Chart | None
    has_older: bool
    problems: list[str]


def view_runs(
    dag_id: str,
    session: Session,
    now: dt.datetime,
    page: int = 0,
    kind: str = "",
    shows_all: bool | None = None,
) -> RunsView:
    """Reads a page of the runs. Unchanged ones are hidden if they are most of them."""
    ref = find_pipeline(dag_id, session)
    layout = Layout(ref.root, ref.pipeline)
    found = list_runs(dag_id, session, ROWS + 1, page * ROWS)
    problems = list[str]()

    left = map_requests(lambda entry: _try_read(layout, entry[0]), found[:ROWS])
    rows = list[RunRow]()
    for (run, tasks), summary in zip(found, left, strict=False):
        try:
            if isinstance(summary, DataError):
                raise summary
            rows.append(_view_row(layout, run, tasks, summary, session))
        except DataError as error:
            problems.append(str(error))
    counts = Counter(row.kind for row in rows)
    hides = 2 * counts["unchanged"] > len(rows) if shows_all is None else not shows_all
    shown = [
        row
        for row in rows
        if (row.kind == kind if kind else not (hides and row.kind == "unchanged"))
    ]
    recent = Counter(row.kind for row in rows if row.started and row.started > now - _RECENT)
    return RunsView(
        rows=shown,
        metrics=list(dict.fromkeys(name for row in shown for name in row.summary.metrics)),
        recent=dict(recent),
        counts=dict(counts),
        hides_unchanged=hides and not kind,
        num_hidden=len(rows) - len(shown),
        chart=_draw_chart(rows),
        has_older=len(found) > ROWS,
        problems=problems,
    )


def view_last_run(dag_id: str, session: Session) -> RunRow | None:
    """Reads the newest run. Returns None without any. Raises DataError for a damaged record."""
    ref = find_pipeline(dag_id, session)
    layout = Layout(ref.root, ref.pipeline)
    for run, tasks in list_runs(dag_id, session, limit=1, offset=0):
        summary = _try_read(layout, run)
        if isinstance(summary, DataError):
            raise summary
        return _view_row(layout, run, tasks, summary, session)
    return None


def _view_row(
    layout: Layout,
    run: DagRun,
    tasks: Sequence[TaskState],
    summary: RunSummary | None,
    session: Session,
) -> RunRow:
    own = [task for task in tasks if not task.task_id.startswith(TRIAL)]
    states = {task.task_id: task.state for task in own}
    failed = find_failed(states, str(run.state))
    summary = summary or find_summary(
        layout,
        run.run_id,
        {task.task_id: task.tries for task in own},
        ended=run.end_date.timestamp() if run.end_date else 0.0,
        is_finished=run.state in _FINISHED,
        failed=failed,
        current=next((task.task_id for task in own if task.is_active), ""),
        is_waiting=states.get(APPROVE) in ("awaiting_input", "deferred"),
        ended_by=find_canceller(run.dag_id, run.run_id, run.start_date, session) if failed else "",
    )
    written = run.dag_run_note
    return RunRow(
        run_id=run.run_id,
        summary=summary,
        started=run.start_date,
        seconds=_measure(own, summary),
        triggered_by=run.triggering_user_name or str(run.run_type),
        note=str(written.content) if written is not None and written.user_id else "",
    )


def _measure(tasks: Iterable[TaskState], summary: RunSummary) -> dict[str, float]:
    seconds = defaultdict[str, float](float)
    for task in tasks:
        job = summary.tasks.get(task.task_id)
        if task.started and task.ended and task.task_id in _JOBS and not (job and job.cached):
            seconds[task.task_id] += (task.ended - task.started).total_seconds()
    return dict(seconds)


def _try_read(layout: Layout, run: DagRun) -> RunSummary | DataError | None:
    """Reads the summary that a finished run has left after its last start."""
    if run.start_date is None or run.state not in _FINISHED:
        return None
    try:
        return _read_kept(layout, run.run_id, run.start_date.timestamp())
    except DataError as error:
        return error


_kept: dict[tuple[str, str, str, float], RunSummary] = {}


def _read_kept(layout: Layout, run_id: str, started: float) -> RunSummary | None:
    key = (str(layout.root), layout.pipeline, run_id, started)
    if key not in _kept:
        summary = read_summary(layout, run_id)
        if summary is None or not is_same_start(summary.started, started):
            return None
        if len(_kept) >= _MAX_KEPT:
            _kept.clear()
        _kept[key] = summary
    return _kept[key]


def _draw_chart(rows: Sequence[RunRow]) -> Chart | None:
    """Draws the gate's first metric of the runs that have it, and the champion's."""
    metric = next((name for row in rows for name in row.summary.metrics), "")
    judged = [row for row in reversed(rows) if metric in row.summary.metrics]
    values = [row.summary.metrics[metric] for row in judged if row.kind != "unchanged"]
    if len(values) < 2:
        return None
    ours: list[Point] = [(number + 1, each.value) for number, each in enumerate(values)]
    theirs: list[Point] = [
        (number + 1, each.champion)
        for number, each in enumerate(values)
        if each.champion is not None
    ]
    lines = [Line("model of the run", "training", ours)]
    if theirs:
        lines.append(Line("in service then", "validation", theirs))
    title = format_metric_title(metric)
    drawing = draw_line_chart(metric, lines, "run", frame=LARGE)
    return Chart(title, draw_legend(lines), drawing)
