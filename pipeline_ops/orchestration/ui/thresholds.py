"""The page of an evaluation's answers at a threshold that a person moves.

All texts for all thresholds are made here, once. The script of the page only puts those of the
chosen threshold into place, so no rate has a second formula.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from pipeline_ops.contract.manifest import find_file
from pipeline_ops.contract.results import ANSWERS_BY_THRESHOLD, format_figure
from pipeline_ops.contract.task_record import find_recorded_manifest
from pipeline_ops.contract.thresholds import (
    MAX_THRESHOLDS_BYTES,
    THRESHOLDS,
    ClassRates,
    ModelCounts,
    ThresholdCounts,
    find_best_f1,
    find_precise,
    trace_curves,
)
from pipeline_ops.orchestration.airflow_runs import PipelineRun
from pipeline_ops.orchestration.ui.progress import Chart
from pipeline_ops.pages.charts import draw_legend, draw_share_chart
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath

_MAX_CLASS_ROWS = 100
Series = dict[str, list[str]]
"""The text of each cell at each threshold, by the cell's name."""
_Total = tuple[str, str, Callable[[ClassRates, int], str]]


@dataclasses.dataclass(frozen=True)
class ThresholdView:
    """The page at one threshold.

    `totals` are title and name of the figures of a whole model. `shown_classes` are indexes, those
    of the lowest recall if there are very many. `presets` are texts with a threshold in hundredths,
    or with None if no threshold does it.
    """

    counts: ThresholdCounts
    threshold: int
    series: Series
    totals: list[tuple[str, str]]
    shown_classes: list[int]
    presets: list[tuple[str, int | None]]
    chart: Chart

    def read(self, name: str) -> str:
        return self.series[name][self.threshold]


def find_evaluation_file(run: PipelineRun, name: str) -> tuple[bool, StorePath | None]:
    """Returns whether the run has an evaluation, and a file of it. One of an older version has
    fewer files. Raises DataError as `find_recorded_manifest` does.
    """
    manifest = find_recorded_manifest(run.layout, run.run_id, "evaluate", "evaluate")
    file = find_file(manifest, name) if manifest else None
    return manifest is not None, run.layout.locate(file) if file else None


def read_counts(run: PipelineRun) -> tuple[bool, ThresholdCounts | None]:
    """Returns whether the run has an evaluation, and its answers by threshold if it has them.

    Raises DataError if they are damaged.
    """
    is_evaluated, file = find_evaluation_file(run, ANSWERS_BY_THRESHOLD)
    counts = read_json_as(ThresholdCounts, file, MAX_THRESHOLDS_BYTES) if file else None
    return is_evaluated, counts


def view_thresholds(counts: ThresholdCounts, threshold: int | None = None) -> ThresholdView:
    """Makes the page at a threshold in hundredths, or at the one of the report."""
    threshold = counts.start if threshold is None else threshold
    challenger = counts.models[0]
    title, x_label, y_label, lines = trace_curves(counts)
    chart = draw_share_chart(title, x_label, lines, y_label=y_label, marked_x=THRESHOLDS[threshold])
    shown = _choose_classes(challenger, counts.start)
    total = challenger.trace_total()
    precise = find_precise(total)
    num_answered = "" if precise is None else f" ({total[precise].answered:,} answered)"
    return ThresholdView(
        counts=counts,
        threshold=threshold,
        series=dict(_iterate_series(counts, shown)),
        totals=[(title, name) for title, name, _ in _list_totals(counts)],
        shown_classes=shown,
        presets=[
            ("as in the report", counts.start),
            ("best F1, mean over classes", find_best_f1(challenger)),
            (f"precision of 0.99{num_answered}", precise),
        ],
        chart=Chart(title, draw_legend(lines), chart),
    )


def _choose_classes(model: ModelCounts, threshold: int) -> list[int]:
    classes = list(range(len(model.classes)))
    if len(classes) > _MAX_CLASS_ROWS:
        recalls = [each.trace()[threshold].recall or 0.0 for each in model.classes]
        classes.sort(key=recalls.__getitem__)
    return classes[:_MAX_CLASS_ROWS]


def _list_totals(counts: ThresholdCounts) -> list[_Total]:
    """Lists the figures that all classes have together, each with its text from counts.

    The precision of all answers of a classifier is the share of right ones.
    """
    if counts.task == "detection":
        return [
            ("Precision", "precision", lambda rates, _: _format(rates.precision)),
            ("Recall", "recall", lambda rates, _: _format(rates.recall)),
            ("F1", "f1", lambda rates, _: _format(rates.f1)),
            ("Boxes found", "right", lambda rates, _: f"{rates.right:,}"),
            ("Boxes missed", "missed", lambda rates, _: f"{rates.support - rates.right:,}"),
            ("False alarms", "false", lambda rates, _: f"{rates.answered - rates.right:,}"),
        ]
    return [
        ("Answered", "answered", lambda rates, total: _share(rates.answered, total)),
        ("Precision: right of the answered", "precision", lambda r, _: _format(r.precision)),
        ("Mistakes", "false", lambda rates, _: f"{rates.answered - rates.right:,}"),
        ("Without an answer", "missed", lambda rates, total: f"{total - rates.answered:,}"),
    ]


def _iterate_series(
    counts: ThresholdCounts, shown: Sequence[int]
) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the texts of every cell. Names end with the number of the model."""
    yield "threshold", [f"{threshold:.2f}" for threshold in THRESHOLDS]
    for number, model in enumerate(counts.models):
        total = model.trace_total()
        for _, name, describe in _list_totals(counts):
            yield f"{name}-{number}", [describe(rates, counts.num_examples) for rates in total]
        yield f"mean-f1-{number}", [_format(value) for value in model.trace_mean_f1()]
        for index in shown:
            rates = model.classes[index].trace()
            yield f"class-{index}-f1-{number}", [_format(each.f1) for each in rates]
            if number == 0:
                yield f"class-{index}-precision-0", [_format(each.precision) for each in rates]
                yield f"class-{index}-recall-0", [_format(each.recall) for each in rates]
    if counts.has_matrix:
        yield from _iterate_confusions(counts.models[0])


def _iterate_confusions(model: ModelCounts) -> Iterator[tuple[str, list[str]]]:
    for label, row in enumerate(model.count_confusions()):
        for answer, cell in enumerate(row):
            yield f"cell-{label}-{answer}", [str(count or "") for count in cell]
        support = model.classes[label].support
        unanswered = [support - sum(cells) for cells in zip(*row, strict=True)]
        yield f"cell-{label}-none", [str(count or "") for count in unanswered]


def _format(value: float | None) -> str:
    return "–" if value is None else format_figure(value)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"
