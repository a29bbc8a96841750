"""The charts of a training's metrics on the plugin's pages. `pages/charts.py` draws them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from pipeline_ops.pages.axes import LARGE, Point
from pipeline_ops.pages.charts import (
    Line,
    draw_legend,
    draw_line_chart,
    drop_undrawable,
)

_VALIDATION = "validation_"
_SPELLINGS = {"f1": "F1", "roc": "ROC", "auc": "AUC", "map": "mAP"}


@dataclasses.dataclass(frozen=True)
class Chart:
    title: str
    legend: Markup
    drawing: Markup


def format_metric_title(name: str) -> str:
    """Converts `macro_roc_auc` to `Macro ROC AUC`."""
    first, *others = name.replace("top_k", "top-k").split("_")
    return " ".join(
        [
            _SPELLINGS.get(first, first.capitalize()),
            *(_SPELLINGS.get(word, word) for word in others),
        ]
    )


def draw_metric_charts(by_metric: Mapping[str, Sequence[Point]], x_label: str) -> list[Chart]:
    """Draws one chart for each metric, with the curves of training and validation data."""
    charts = []
    for base in dict.fromkeys(name.removeprefix(_VALIDATION) for name in by_metric):
        names = {"training": base, "validation": _VALIDATION + base}
        lines = [
            Line(label, label, points)
            for label, name in names.items()
            if (points := drop_undrawable(by_metric.get(name, [])))
        ]
        if lines:
            drawing = draw_line_chart(base, lines, x_label, frame=LARGE, has_dots=False)
            charts.append(Chart(format_metric_title(base), draw_legend(lines), drawing))
    return charts


def draw_version_charts(by_metric: Mapping[str, Sequence[Point]]) -> list[Chart]:
    """Draws one chart for each metric of a model, over its versions."""
    return [
        Chart(
            format_metric_title(name),
            Markup(),
            draw_line_chart(name, [Line(name, "training", drawable)], "version", frame=LARGE),
        )
        for name, points in by_metric.items()
        if (drawable := drop_undrawable(points))
    ]
