"""The table of a pipeline's runs: what has become of each, and what it was made of.

Of a finished run it reads one small file, and keeps it. Runs that left none were ended from outside
or are older. Their records are read, once.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup
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
from pipeline_ops.orchestration.ui.pages import IN_PIPELINE
from pipeline_ops.orchestration.ui.progress import Chart
from pipeline_ops.pages.charts import Line, Mark, draw_mark_chart
from pipeline_ops.pages.metric_titles import format_metric_title
from pipeline_ops.storage.request_cache import map_requests

ROWS = 50
"""The rows of a page."""
SPAN = 500
"""The runs that a filter or an order looks at. The next ones are a link away."""
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
_SHAPES: Mapping[Kind, str] = {
    "published": "dot",
    "not_in_service": "dot",
    "unchanged": "speck",
    "failed": "cross",
    "data_refused": "cross",
    "out_of_date": "cross",
    "cancelled": "cross",
}
LEGEND = (
    ("dot", "published"),
    ("ring", "not published"),
    ("cross", "failed or cancelled"),
    ("speck", "unchanged"),
)


@dataclasses.dataclass(frozen=True)
class RunRow:
    """One run. `seconds` are those of each job that it ran, without cached ones."""

    run_id: str
    address: str
    """Of the run's report in Airflow, from the page of a pipeline."""
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

    @property
    def num_examples(self) -> int:
        return sum(self.summary.num_examples.values())

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    def is_recent(self, now: dt.datetime) -> bool:
        return self.started is not None and self.started > now - _RECENT

    def contains(self, text: str) -> bool:
        summary = self.summary
        values = (f"{key}={value}" for key, value in summary.values.items())
        version = f"version {summary.version}" if summary.version else ""
        words = (self.run_id, summary.outcome.sentence, self.note, self.triggered_by, version)
        return text.casefold() in " ".join((*words, *values)).casefold()


_ORDERS: Mapping[str, Callable[[RunRow], Any]] = {
    "started": lambda row: row.started,
    "outcome": lambda row: row.word,
    "version": lambda row: row.summary.version,
    "examples": lambda row: row.num_examples or None,
    "time": lambda row: row.total_seconds or None,
    "by": lambda row: row.triggered_by or None,
}
"""What a column is sorted by. Any other name is that of a metric. Rows with None come last."""


@dataclasses.dataclass(frozen=True)
class RunsQuery:
    """The choice of rows of a page of the table. All of it is in the page's address.

    `span` counts back in steps of `SPAN` runs. `sort` is a column, with a minus sign for the
    largest first. `all` is None for the default: without unchanged ones, if they are most.
    """

    span: int = 0
    page: int = 0
    kind: str = ""
    text: str = ""
    sort: str = "-started"
    all: bool | None = None
    recent: bool = False
    """Whether only runs of the last 24 hours are shown."""

    @property
    def column(self) -> str:
        return self.sort.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        return self.sort.startswith("-")

    def link(self, **changes: Any) -> str:
        """The address of the page with some changes. It begins with the first row again."""
        query = dataclasses.replace(self, **{"page": 0} | changes)
        values = {
            field.name: getattr(query, field.name)
            for field in dataclasses.fields(self)
            if getattr(query, field.name) != field.default
        }
        return f"runs?{urlencode(values)}" if values else "runs"

    def link_sorted(self, column: str) -> str:
        """The address of the page in the order of a column, or in its reverse."""
        return self.link(sort=column if self.sort == f"-{column}" else f"-{column}")

    def select(
        self, rows: Iterable[RunRow], hides_unchanged: bool, now: dt.datetime
    ) -> list[RunRow]:
        """Returns the rows to show, on all pages, in order."""
        chosen = [
            row
            for row in rows
            if (row.kind == self.kind if self.kind else not (hides_unchanged and is_unchanged(row)))
            and row.contains(self.text)
            and not (self.recent and not row.is_recent(now))
        ]

        def get_key(row: RunRow) -> Any:
            if self.column in _ORDERS:
                return _ORDERS[self.column](row)
            metric = row.summary.metrics.get(self.column)
            return metric.value if metric else None

        known = [row for row in chosen if get_key(row) is not None]
        unknown = [row for row in chosen if get_key(row) is None]
        known.sort(key=get_key, reverse=self.is_descending)
        return unknown + known if self.sort == "-started" else known + unknown


def link_run(dag_id: str, run_id: str) -> str:
    """The address of a run's report in Airflow, from the page of a pipeline."""
    run = f"{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    return f"{IN_PIPELINE}../dags/{run}/plugin/trainyard_report"


def is_unchanged(row: RunRow) -> bool:
    return row.kind == "unchanged"


@dataclasses.dataclass(frozen=True)
class RunsView:
    """A page of the table, the newest run first unless it is sorted."""

    rows: list[RunRow]
    metrics: list[str]
    recent: dict[Kind, int]
    """The runs of the last day, by kind."""
    counts: dict[Kind, int]
    num_runs: int
    """In the span, of all kinds."""
    num_chosen: int
    """On all pages."""
    hides_unchanged: bool
    chart: Chart | None
    has_next: bool
    has_older: bool
    """Whether there are runs before the span."""
    only_user: str
    """Who has started all of the runs on the page, or ""."""
    problems: list[str]

    @property
    def num_hidden(self) -> int:
        return self.counts.get("unchanged", 0) if self.hides_unchanged else 0

    @property
    def has_values(self) -> bool:
        return any(row.summary.values for row in self.rows)


def view_runs(dag_id: str, session: Session, now: dt.datetime, query: RunsQuery) -> RunsView:
    """Reads the runs of a span, and returns a page of those that a query selects."""
    ref = find_pipeline(dag_id, session)
    layout = Layout(ref.root, ref.pipeline)
    found = list_runs(dag_id, session, SPAN + 1, query.span * SPAN)
    rows, problems = _read_rows(layout, found[:SPAN], session)
    counts = Counter(row.kind for row in rows)
    is_mostly_unchanged = 2 * counts["unchanged"] > len(rows)
    hides = not query.kind and (is_mostly_unchanged if query.all is None else not query.all)
    chosen = query.select(rows, hides, now)
    first = query.page * ROWS
    shown = chosen[first : first + ROWS]
    recent = Counter(row.kind for row in rows if row.is_recent(now))
    users = {row.triggered_by for row in shown}
    return RunsView(
        rows=shown,
        metrics=list(dict.fromkeys(name for row in shown for name in row.summary.metrics)),
        recent=dict(recent),
        counts=dict(counts),
        num_runs=len(rows),
        num_chosen=len(chosen),
        hides_unchanged=hides,
        chart=_draw_chart(rows),
        has_next=len(chosen) > first + ROWS,
        has_older=len(found) > SPAN,
        only_user=users.pop() if len(users) == 1 and len(shown) > 1 else "",
        problems=problems,
    )


def _read_rows(
    layout: Layout, found: Sequence[tuple[DagRun, list[TaskState]]], session: Session
) -> tuple[list[RunRow], list[str]]:
    """Reads runs, in parallel as far as they have left a summary. Returns rows and problems."""
    rows, problems = list[RunRow](), list[str]()
    left = map_requests(lambda entry: _try_read(layout, entry[0]), found)
    for (run, tasks), summary in zip(found, left, strict=True):
        try:
            if isinstance(summary, DataError):
                raise summary
            rows.append(_view_row(layout, run, tasks, summary, session))
        except DataError as error:
            problems.append(str(error))
    return rows, problems


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


def find_last_good_run(dag_id: str, session: Session, before: dt.datetime | None) -> RunRow | None:
    """Finds the newest earlier run that was published or unchanged, among the last `ROWS` runs."""
    ref = find_pipeline(dag_id, session)
    found = list_runs(dag_id, session, ROWS, 0)
    rows, _ = _read_rows(Layout(ref.root, ref.pipeline), found, session)
    good = (row for row in rows if row.kind in ("published", "unchanged", "not_in_service"))
    earlier = (row for row in good if row.started and before and row.started < before)
    return next(earlier, None)


def _view_row(
    layout: Layout,
    run: DagRun,
    tasks: Sequence[TaskState],
    summary: RunSummary | None,
    session: Session,
) -> RunRow:
    own = [task for task in tasks if not task.task_id.startswith(TRIAL)]
    if summary is None:
        summary = _summarize_from_records(layout, run, own, session)
    written = run.dag_run_note
    return RunRow(
        run_id=run.run_id,
        address=link_run(run.dag_id, run.run_id),
        summary=summary,
        started=run.start_date,
        seconds=_measure(own, summary),
        triggered_by=run.triggering_user_name or str(run.run_type),
        note=str(written.content) if written is not None and written.user_id else "",
    )


def _summarize_from_records(
    layout: Layout, run: DagRun, tasks: Sequence[TaskState], session: Session
) -> RunSummary:
    states = {task.task_id: task.state for task in tasks}
    failed = find_failed(states, str(run.state))
    summary = find_summary(
        layout,
        run.run_id,
        {task.task_id: task.tries for task in tasks},
        ended=run.end_date.timestamp() if run.end_date else 0.0,
        is_finished=run.state in _FINISHED,
        failed=failed,
        current=next((task.task_id for task in tasks if task.is_active), ""),
        is_waiting=states.get(APPROVE) in ("awaiting_input", "deferred"),
        ended_by=find_canceller(run.dag_id, run.run_id, run.start_date, session) if failed else "",
    )
    if run.state in _FINISHED and run.start_date:
        _keep(_get_key(layout, run), summary)
    return summary


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
        return _read_kept(layout, run)
    except DataError as error:
        return error


_Key = tuple[str, str, str, dt.datetime | None, dt.datetime | None]
_kept: dict[_Key, RunSummary] = {}


def _get_key(layout: Layout, run: DagRun) -> _Key:
    return str(layout.root), layout.pipeline, run.run_id, run.start_date, run.end_date


def _keep(key: _Key, summary: RunSummary) -> None:
    if len(_kept) >= _MAX_KEPT:
        _kept.clear()
    _kept[key] = summary


def _read_kept(layout: Layout, run: DagRun) -> RunSummary | None:
    key = _get_key(layout, run)
    if key not in _kept:
        summary = read_summary(layout, run.run_id)
        started = run.start_date.timestamp() if run.start_date else None
        if summary is None or not is_same_start(summary.started, started):
            return None
        _keep(key, summary)
    return _kept[key]


def _draw_chart(rows: Sequence[RunRow]) -> Chart | None:
    """Draws the gate's first metric of the runs, and that of the version in service then."""
    metric = next((name for row in rows for name in row.summary.metrics), "")
    oldest_first = [row for row in reversed(rows) if row.kind not in ("running", "waiting")]
    if sum(metric in row.summary.metrics for row in oldest_first) < 2:
        return None
    marks, champion, days = list[Mark](), list[tuple[float, float]](), list[tuple[float, str]]()
    for number, row in enumerate(oldest_first):
        judged = row.summary.metrics.get(metric)
        text = f"{row.started:%d %b %H:%M}: {row.summary.outcome.sentence}" if row.started else ""
        value = judged.value if judged else None
        marks.append(Mark(number, value, _SHAPES.get(row.kind, "ring"), text, row.address))
        if judged and judged.champion is not None:
            champion.append((number, judged.champion))
        if row.started:
            days.append((number, f"{row.started:%d %b}"))
    line = Line("version in service then", "champion", champion)
    return Chart(
        format_metric_title(metric),
        Markup(),
        draw_mark_chart(f"{format_metric_title(metric)} by run", marks, line, days),
    )
