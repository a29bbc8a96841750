"""The charts of the plugin's pages, made of the parts in `pages/svg.py`.

Colours are CSS classes, which are in `ui.css`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from pipeline_ops.pages.svg import Axis, Point, line, round_ticks, short, text

_WIDTH, _HEIGHT = 460, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 14, 12, 38
_VALIDATION = "validation_"
_TINY, _HUGE = 1e-100, 1e100
_SPELLINGS = {"f1": "F1", "roc": "ROC", "auc": "AUC", "map": "mAP"}


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a chart. `style` is its CSS class."""

    name: str
    style: str
    points: Sequence[Point]


@dataclasses.dataclass(frozen=True)
class Chart:
    title: str
    curves: Sequence[Curve]
    drawing: Markup


def metric_title(name: str) -> str:
    """Converts `macro_roc_auc` to `Macro ROC AUC`."""
    first, *others = name.replace("top_k", "top-k").split("_")
    return " ".join(
        [
            _SPELLINGS.get(first, first.capitalize()),
            *(_SPELLINGS.get(word, word) for word in others),
        ]
    )


def charts_of_metrics(by_metric: Mapping[str, Sequence[Point]], unit: str) -> list[Chart]:
    """Draws one chart for each metric, with the curves of training and validation data."""
    bases = list(dict.fromkeys(name.removeprefix(_VALIDATION) for name in by_metric))
    charts = []
    for base in bases:
        names = {"training": base, "validation": _VALIDATION + base}
        curves = [
            Curve(label, label, finite)
            for label, name in names.items()
            if (finite := drawable(by_metric.get(name, [])))
        ]
        if curves:
            charts.append(Chart(metric_title(base), curves, line_chart(base, curves, unit)))
    return charts


def line_chart(title: str, curves: Sequence[Curve], x_label: str, dots: bool = False) -> Markup:
    """Draws curves over a whole number, from at least one point.

    `title` is for readers who do not see the drawing.
    """
    points = [point for curve in curves for point in curve.points]
    x, y = _whole_axis([p[0] for p in points]), _value_axis([p[1] for p in points])
    rows = [
        line("grid", (_LEFT, y(tick)), (_WIDTH - _RIGHT, y(tick)))
        + text("end", _LEFT - 8, y(tick) + 4, short(tick))
        for tick in y.ticks
    ]
    columns = [text("middle", x(tick), _HEIGHT - _BOTTOM + 17, f"{tick:g}") for tick in x.ticks]
    label = text("middle", (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, x_label)
    drawn = [_draw(curve, x, y, dots or len(curve.points) == 1) for curve in curves]
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, title, Markup("").join([*rows, *columns, label, *drawn]))


def _draw(curve: Curve, x: Axis, y: Axis, dots: bool) -> Markup:
    path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in curve.points)
    drawn = Markup('<polyline class="curve {}" points="{}"/>').format(curve.style, path)
    marks = (
        [
            Markup(
                '<circle class="point {}" cx="{:.1f}" cy="{:.1f}" r="3">'
                "<title>{}, {:g}: {:.5g}</title></circle>"
            ).format(curve.style, x(px), y(py), curve.name, px, py)
            for px, py in curve.points
        ]
        if dots
        else []
    )
    return Markup("").join([drawn, *marks])


def drawable(points: Iterable[Point]) -> list[Point]:
    """The points that an axis of floats can hold: the distance of 1e308 and -1e308 overflows."""
    return [(x, y if abs(y) > _TINY else 0.0) for x, y in points if abs(y) < _HUGE]


def _whole_axis(values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    return Axis(
        low,
        high,
        _LEFT,
        _WIDTH - _RIGHT,
        [t for t in round_ticks(low, high, 6) if t == int(t) and low <= t <= high],
    )


def _value_axis(values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.05 * (abs(low) or 1.0), high + 0.05 * (abs(high) or 1.0)
    ticks = round_ticks(low, high)
    return Axis(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP, ticks)
