"""The drawings of the report, made of the parts in `pages/svg.py`.

Colours are CSS classes, which the style sheets define.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from markupsafe import Markup

from pipeline_ops.pages.svg import Axis, Point, line, round_ticks, short, text

_WIDTH, _HEIGHT = (
    330,
    212,
)  # about the size on a wide screen, so that text has the size of the style sheet
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 20, 36
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve. `style` is its CSS classes. Points that are not finite are left out."""

    name: str
    style: str
    points: Sequence[Point]


def line_chart(
    title: str,
    lines: Sequence[Line],
    at_least: float = math.inf,
    at_most: float = math.inf,
    marked: float | None = None,
    mark: str = "",
) -> Markup:
    """Draws curves over epochs.

    Args:
      title: the text for screen readers.
      at_least: a value that the y axis must reach down to.
      at_most: the upper end of the y axis, for figures that cannot be larger.
      marked: the x of a vertical line, with the text `mark`.
    """
    lines = [
        dataclasses.replace(
            line, points=[point for point in line.points if all(map(math.isfinite, point))]
        )
        for line in lines
    ]
    points = [point for line in lines for point in line.points]
    if not points:
        return Markup('<p class="soft">Nothing was recorded.</p>')
    x = _epoch_axis([point[0] for point in points])
    y = _value_axis(
        min(at_least, *(point[1] for point in points)), max(point[1] for point in points), at_most
    )
    parts = [_grid(x, y, "epoch"), *(_curve(line, x, y) + _dots(line, x, y) for line in lines)]
    if marked is not None:
        parts.insert(1, _mark(x(marked), mark))
    return _drawing(title, parts)


def share_chart(
    title: str,
    x_name: str,
    lines: Sequence[Line],
    bars: Sequence[tuple[float, float, float, str]] = (),
) -> Markup:
    """Draws curves between shares. Both axes go from 0 to 1.

    Args:
      bars: (low, high, height, text) of rectangles under the curves.
    """
    x, y = (
        Axis(0.0, 1.0, _LEFT, _WIDTH - _RIGHT, _SHARES),
        Axis(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP, _SHARES),
    )
    drawn = [
        Markup(
            '<rect class="bin" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
            "<title>{}</title></rect>"
        ).format(x(low) + 0.5, y(height), x(high) - x(low) - 1.0, max(1.0, y(0) - y(height)), says)
        for low, high, height, says in bars
    ]
    return _drawing(title, [_grid(x, y, x_name), *drawn, *(_curve(line, x, y) for line in lines)])


def interval_chart(
    value: float, other: float | None, low: float, interval: tuple[float, float] | None = None
) -> Markup:
    """Draws one metric between `low` and 1.

    A dot is the challenger, a ring the champion, a bar the interval.
    """
    place = Axis(low, 1.0, 8, 292, ())
    parts = [line("rail", (8, 11), (292, 11))]
    if interval:
        parts.append(line("interval", (place(max(low, interval[0])), 11), (place(interval[1]), 11)))
    if other is not None:
        parts.append(
            Markup('<circle class="ring" cx="{:.1f}" cy="11" r="5.5"/>').format(place(other))
        )
    parts.append(Markup('<circle class="dot" cx="{:.1f}" cy="11" r="5"/>').format(place(value)))
    return Markup('<svg class="rule" viewBox="0 0 300 22" aria-hidden="true">{}</svg>').format(
        Markup("").join(parts)
    )


def _epoch_axis(values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    whole = [
        tick for tick in round_ticks(low, high, 6) if tick == int(tick) and low <= tick <= high
    ]
    return Axis(low, high, _LEFT, _WIDTH - _RIGHT, whole)


def _value_axis(low: float, high: float, at_most: float) -> Axis:
    if low == high:
        low = high - 0.1 * (abs(high) or 1.0)
    ticks = [tick for tick in round_ticks(low, high) if tick <= at_most + 1e-12]
    return Axis(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP, ticks)


def _drawing(title: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, title, Markup("").join(parts))


def _grid(x: Axis, y: Axis, x_name: str) -> Markup:
    rows = [
        line("grid", (_LEFT, y(tick)), (_WIDTH - _RIGHT, y(tick)))
        + text("end", _LEFT - 8, y(tick) + 4, short(tick))
        for tick in y.ticks
    ]
    columns = [text("middle", x(tick), _HEIGHT - _BOTTOM + 17, f"{tick:g}") for tick in x.ticks]
    return Markup("").join(
        [*rows, *columns, text("middle", (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 3, x_name)]
    )


def _mark(x: float, label: str) -> Markup:
    room = _WIDTH - 16 - x  # room for half of a short word
    return line("mark", (x, _TOP), (x, _HEIGHT - _BOTTOM)) + text(
        "middle", x + min(0, room), _TOP - 6, label
    )


def _curve(line: Line, x: Axis, y: Axis) -> Markup:
    path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in line.points)
    return Markup('<polyline class="curve {}" points="{}"><title>{}</title></polyline>').format(
        line.style, path, line.name
    )


def _dots(line: Line, x: Axis, y: Axis) -> Markup:
    return Markup("").join(
        Markup(
            '<circle class="point {}" cx="{:.1f}" cy="{:.1f}" r="2.5">'
            "<title>{}, epoch {:g}: {:.5g}</title></circle>"
        ).format(line.style, x(px), y(py), line.name, px, py)
        for px, py in line.points
    )
