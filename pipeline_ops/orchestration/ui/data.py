"""The data sets of a pipeline: the newest one, a refused one, and what has changed over the last.

It reads manifests, and never an index or a shard. The pages of the jobs are shown as they are.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import functools
import io
from collections.abc import Callable, Iterable, Sequence

from pydantic import ValidationError
from sqlalchemy.orm import Session

from pipeline_ops.contract.dataset import (
    DATA_PAGE,
    QUARANTINE,
    REFUSED,
    DatasetFigures,
    RejectedRecord,
)
from pipeline_ops.contract.features import get_title
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import BASE, NAME, Manifest, find_file, read_manifest
from pipeline_ops.contract.remarks import describe_moves
from pipeline_ops.contract.task_record import find_recorded_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.orchestration.airflow_runs import PipelineRun, find_pipeline, find_run, list_runs
from pipeline_ops.orchestration.ui.progress import Chart
from pipeline_ops.pages.charts import Line, draw_legend, draw_line_chart
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath

NUM_DATASETS = 20
"""The number of data sets over which the page shows drift and counts."""
_NUM_RUNS = 50
_TASK = "preprocess"
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_COLUMNS = ("key", "stage", "reason", "detail", "file")

Read = Callable[[int], bytes]
"""Reads a file up to a number of bytes."""


@dataclasses.dataclass(frozen=True)
class DatasetRow:
    """One data set. `number` counts those that are shown, from the oldest on."""

    number: int
    run_id: str
    made: dt.datetime | None
    figures: DatasetFigures
    digest: str

    @property
    def num_examples(self) -> int:
        return sum(self.figures.num_examples.values())

    @property
    def drifted(self) -> list[str]:
        """The titles of the features that have drifted."""
        return [get_title(each.feature) for each in self.figures.drift if each.is_above]


@dataclasses.dataclass(frozen=True)
class DataView:
    """The newest runs that left a data set, or that refused the data after that, and the history.

    `rows` are the newest data sets, the newest first.
    """

    good: PipelineRun | None
    refused: PipelineRun | None
    sentence: str
    """What the data set of `good` has, and what came and left."""
    rows: list[DatasetRow]
    charts: list[Chart]
    num_without_drift: int
    """The data sets without a drift: the first one, and those made before figures had it."""
    num_older: int
    problems: list[str]


def view_data(dag_id: str, session: Session) -> DataView:
    """Raises NotFound as `find_pipeline` does, and DataError for a damaged record of a run."""
    ref = find_pipeline(dag_id, session)
    layout = Layout(ref.root, ref.pipeline)
    refused, good = _find_runs(dag_id, session)
    rows, problems, num_older = _read_history(layout)
    return DataView(
        good=good,
        refused=refused,
        sentence=_describe(good, rows) if good else "",
        rows=rows,
        charts=list(_draw_charts(rows[::-1])),
        num_without_drift=sum(not row.figures.drift for row in rows),
        num_older=num_older,
        problems=problems,
    )


def find_data_page(run: PipelineRun) -> Read | None:
    """Finds the page of a run's data set, or of the data that it has refused.

    Raises DataError if the record of the run is damaged, or names no artifact of the pipeline.
    """
    return _find(run, DATA_PAGE, DATA_PAGE)


def find_rejected(run: PipelineRun) -> Read | None:
    """Finds the list of a run's rejected records, if it has one. Raises as `find_data_page` does.

    A run that refused the data for another reason than too many of them has left no list.
    """
    return _find(run, QUARANTINE, REFUSED)


def _find(run: PipelineRun, name: str, name_if_refused: str) -> Read | None:
    if dataset := find_recorded_manifest(run.layout, run.run_id, _TASK, _TASK):
        file = find_file(dataset, name)
        place = run.layout.locate(file) if file else None
        entry = place.stat() if place else None
        return place.read if place and entry and entry.num_bytes else None
    attempt = run.layout.newest_attempt(run.run_id, _TASK)
    if attempt is None:
        return None
    refused = attempt.folder / name_if_refused
    _, end = refused.read_log_end(1)
    return functools.partial(refused.read_log, 0) if end else None


def format_rejected(content: bytes, source: str) -> str:
    """A list of rejected records as CSV. A spreadsheet takes no field of it for a formula.

    Raises DataError, which names the `source`, for a line that is no rejected record.
    """
    output = io.StringIO()
    writer = csv.writer(output, quoting=csv.QUOTE_ALL)
    writer.writerow(_COLUMNS)
    for number, line in enumerate(content.splitlines(), 1):
        record = parse_json_as(RejectedRecord, line, f"{source}, line {number}")
        writer.writerow(_escape_formula(getattr(record, name)) for name in _COLUMNS)
    return output.getvalue()


def _escape_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _find_runs(dag_id: str, session: Session) -> tuple[PipelineRun | None, PipelineRun | None]:
    """Finds the newest run that left a data set, and before it the newest that refused the data."""
    refused = None
    for found, tasks in list_runs(dag_id, session, _NUM_RUNS, 0):
        states = {task.task_id: task.state for task in tasks}
        if states.get(_TASK) not in ("success", "failed"):
            continue
        run = find_run(dag_id, found.run_id, session)
        if find_data_page(run) is None:
            continue
        if states[_TASK] == "success":
            return refused, run
        refused = refused or run
    return refused, None


def _read_history(layout: Layout) -> tuple[list[DatasetRow], list[str], int]:
    """Reads the newest manifests. Returns rows, problems, and the number of older data sets."""
    folder = layout.artifacts(_TASK)
    entries = sorted(
        folder.find_in_folders(NAME), key=lambda entry: (entry.modified, entry.name), reverse=True
    )
    read = functools.partial(_try_read, folder)
    found = map_requests(read, [entry.name for entry in entries[:NUM_DATASETS]])
    problems = [each for each in found if isinstance(each, str)]
    valid = [each for each in found if not isinstance(each, str)]
    rows = [
        DatasetRow(
            len(valid) - index,
            manifest.made_by.run_id if manifest.made_by else "",
            manifest.made_by.time if manifest.made_by else None,
            figures,
            manifest.digest,
        )
        for index, (manifest, figures) in enumerate(valid)
    ]
    return rows, problems, len(entries) - len(found)


def _try_read(folder: StorePath, name: str) -> tuple[Manifest, DatasetFigures] | str:
    try:
        manifest = read_manifest(folder / name)
        return manifest, DatasetFigures.model_validate(manifest.figures)
    except DataError as error:
        return str(error)
    except ValidationError as error:
        return f"{folder / name}: not the manifest of a data set: {error.error_count()} problems"


def _describe(run: PipelineRun, rows: Iterable[DatasetRow]) -> str:
    path = find_recorded_manifest(run.layout, run.run_id, _TASK, _TASK)
    if path is None:
        return ""
    manifest = read_manifest(path)
    try:
        figures = DatasetFigures.model_validate(manifest.figures)
    except ValidationError as error:
        raise DataError(f"{path}: not the manifest of a data set: {error}") from None
    total = f"{sum(figures.num_examples.values()):,} examples"
    if figures.came is None or figures.left is None:
        return f"{total}."
    base = manifest.inputs.get(BASE)
    made = next((row.made for row in rows if base and row.digest == base.digest), None)
    since = f"{made.astimezone(dt.UTC):%d %b %Y %H:%M} UTC" if made else "the previous data set"
    return f"{total}: {describe_moves(figures.came, figures.left)} since {since}."


def _draw_charts(rows: Sequence[DatasetRow]) -> Iterable[Chart]:
    """Draws the numbers of examples and classes, and each distance that was above its limit.

    A number of classes that was always the same is in the table only.
    """
    if len(rows) < 2:
        return
    counts = {"Examples": [row.num_examples for row in rows]}
    num_classes = [len(row.figures.class_names) for row in rows]
    if len({*num_classes}) > 1:
        counts["Classes"] = num_classes
    for title, values in counts.items():
        points = [(row.number, float(value)) for row, value in zip(rows, values, strict=True)]
        line = Line(title.lower(), "training", points)
        yield Chart(title, draw_legend([line]), draw_line_chart(title, [line], "data set", y_min=0))
    features = {each.feature for row in rows for each in row.figures.drift if each.is_above}
    for feature in sorted(features, key=get_title):
        yield from _draw_drift(feature, rows)


def _draw_drift(feature: str, rows: Sequence[DatasetRow]) -> Iterable[Chart]:
    distances = [
        (row.number, each, limits)
        for row in rows
        for each in row.figures.drift
        if each.feature == feature and (limits := row.figures.drift_limits)
    ]
    js = [(n, each.jensen_shannon, limits.max_js_distance) for n, each, limits in distances]
    linf = [(n, each.l_infinity, limits.max_linf_distance) for n, each, limits in distances]
    for measure, found in (("Jensen-Shannon", js), ("L-infinity", linf)):
        if not any(value > limit for _, value, limit in found):
            continue
        lines = [
            Line("distance", "training", [(number, value) for number, value, _ in found]),
            Line("threshold", "validation", [(number, limit) for number, _, limit in found]),
        ]
        title = f"Drift of {get_title(feature)}, {measure}"
        drawing = draw_line_chart(title, lines, "data set", y_min=0, y_max=1)
        yield Chart(title, draw_legend(lines), drawing)
