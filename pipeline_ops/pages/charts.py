"""Charts as inline SVG: scales, ticks, grids, curves, bars and legends.

A drawing is complete in itself and runs no script. It takes its colours from the page, as CSS
classes, so it follows light, dark and print. All text in it is escaped.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from markupsafe import Markup

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Axis:
    """A linear scale from `low` to `high` data units onto `start` to `end` pixels."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[float] = ()

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclasses.dataclass(frozen=True)
class Frame:
    """The size of a drawing and its margins, in pixels. The drawing scales with its page."""

    width: int
    height: int
    left: int = 46
    right: int = 14
    top: int = 20
    bottom: int = 36

    def make_axes(
        self, x_ends: Point, x_ticks: Sequence[float], y_ticks: Sequence[float]
    ) -> tuple[Axis, Axis]:
        """Makes the axes of x and y. The y axis goes from its first to its last tick."""
        return (
            Axis(*x_ends, self.left, self.width - self.right, x_ticks),
            Axis(y_ticks[0], y_ticks[-1], self.height - self.bottom, self.top, y_ticks),
        )


SMALL, LARGE, WIDE = Frame(330, 212), Frame(460, 220), Frame(1000, 240)
FLAT = Frame(330, 158, top=8, bottom=22)


def compute_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Returns about `count` multiples of 1, 2 or 5 times a power of ten, from `low` to `high`."""
    span = (high - low) or abs(high) or 1.0
    magnitude = 10 ** math.floor(math.log10(span / count))
    step = next(
        factor * magnitude for factor in (1, 2, 5, 10) if span / (factor * magnitude) <= count
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def format_short(value: float) -> str:
    """Formats a value briefly: `0.25`, and `5e-4` instead of `0.0005`, which would be too wide."""
    plain, (mantissa, exponent) = f"{value:.4g}", f"{value:.3e}".split("e")
    scientific = f"{float(mantissa):g}e{int(exponent)}"
    return plain if len(plain) <= max(5, len(scientific)) else scientific


_TINY, _HUGE = 1e-100, 1e100
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_MAX_LABELS = 6
MAX_POINTS = 400
"""The number of points of a curve that are drawn. The width of a chart has about as many pixels."""
_THINNED = " (lowest and highest values of neighbours)"
"""What the x axis of a thinned curve adds to its label."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve. `style` is its CSS classes."""

    name: str
    style: str
    points: Sequence[Point]


@dataclasses.dataclass(frozen=True)
class Bar:
    """A rectangle from `low` to `high` on the x axis, with a text for the pointer."""

    low: float
    high: float
    height: float
    text: str


def drop_undrawable(points: Iterable[Point]) -> list[Point]:
    """Drops points that are NaN, infinite, or so large that the distance of two overflows."""
    return [(x, y if abs(y) > _TINY else 0.0) for x, y in points if abs(y) < _HUGE]


def thin(points: Sequence[Point], count: int) -> Sequence[Point]:
    """Returns at most `count` of drawable points: first, last, and of each group of neighbours its
    lowest and its highest one. So the lowest and the highest of all points are kept, too.
    """
    if len(points) <= count:
        return points
    inner = points[1:-1]
    size = -(-2 * len(inner) // (count - 2))
    kept = []
    for start in range(0, len(inner), size):
        group = inner[start : start + size]
        kept += sorted({min(group, key=_get_y), max(group, key=_get_y)})
    return [points[0], *kept, points[-1]]


def _get_y(point: Point) -> float:
    return point[1]


def draw_legend(lines: Iterable[Line]) -> Markup:
    """Draws the names of curves, each with its colour."""
    entry = Markup('<span><i class="swatch line {}"></i><span class="clip">{}</span></span>')
    entries = Markup("").join(entry.format(line.style, line.name) for line in lines)
    return Markup('<span class="key">{}</span>').format(entries)


def draw_line_chart(
    title: str,
    lines: Sequence[Line],
    x_label: str = "epoch",
    *,
    frame: Frame = SMALL,
    has_dots: bool = True,
    y_min: float = math.inf,
    y_max: float = math.inf,
    marked_x: float | None = None,
    marked_label: str = "",
    is_thinned: bool = False,
) -> Markup:
    """Draws curves over a whole number. Those of more than `MAX_POINTS` are thinned.

    Args:
      title: the text for screen readers.
      has_dots: whether the points of a curve are marked. A single point always is.
      y_min: a value that the y axis must reach down to.
      y_max: the upper end of the y axis, for figures that cannot be larger.
      marked_x: the x of a vertical line, with the text `marked_label`.
      is_thinned: whether the curves were thinned before. The x axis says so.
    """
    lines = [dataclasses.replace(line, points=drop_undrawable(line.points)) for line in lines]
    if any(len(line.points) > MAX_POINTS for line in lines):
        lines = [dataclasses.replace(line, points=thin(line.points, MAX_POINTS)) for line in lines]
        is_thinned, has_dots = True, False
    points = [point for line in lines for point in line.points]
    if not points:
        return Markup('<p class="soft">Nothing was recorded.</p>')
    x, y = _make_line_axes(frame, points, y_min, y_max)
    parts = []
    if marked_x is not None:
        label_x = min(x(marked_x), frame.width - 16)  # leaves space for half of a short word
        parts += [
            _draw_line("mark", (x(marked_x), y.end), (x(marked_x), y.start)),
            _draw_text("middle", label_x, y.end - 6, marked_label),
        ]
    for line in lines:
        parts.append(_draw_curve(f"curve {line.style}", line.points, x, y, line.name))
        if has_dots or len(line.points) == 1:
            parts += [_draw_dot(line, point, x, y, x_label) for point in line.points]
    return _draw_plot(title, frame, x, y, x_label + _THINNED * is_thinned, parts)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point that is a link. It lies on the x axis if `y` is None.

    `shape` is a dot, a ring, a cross or a speck. `text` is for the pointer and screen readers.
    """

    x: float
    y: float | None
    shape: str
    text: str
    address: str


def draw_mark_chart(
    title: str, marks: Sequence[Mark], steps: Line, labels: Sequence[tuple[float, str]]
) -> Markup:
    """Draws marks, and over them a line that keeps each value until the next one.

    Args:
      title: the text for screen readers.
      marks: in the order of x, some with a `y`.
      steps: the second series. It may be empty.
      labels: texts below the x axis, by their x, of which as many are drawn as fit.
    """
    drawn = drop_undrawable((mark.x, mark.y) for mark in marks if mark.y is not None)
    line = drop_undrawable(steps.points)
    if not drawn:
        return Markup('<p class="soft">Nothing was recorded.</p>')
    x, y = _make_line_axes(WIDE, [*drawn, *line, (marks[0].x, drawn[0][1])], math.inf, math.inf)
    x = dataclasses.replace(x, low=marks[0].x - 0.5, high=marks[-1].x + 0.5, ticks=())
    corners = [corner for start, end in itertools.pairwise(line) for corner in _step(start, end)]
    parts = []
    if line:
        corners = [*(corners or line), (x.high, line[-1][1])]
        parts.append(_draw_curve(f"curve {steps.style}", corners, x, y, steps.name))
    known = set(drawn)
    for mark in marks:
        place = (x(mark.x), y(mark.y) if (mark.x, mark.y) in known else y.start)  # type: ignore[arg-type]
        parts.append(_draw_mark(mark, *place))
    shown = labels[:: -(-len(labels) // _MAX_LABELS) or 1]
    parts += [_draw_text("middle", x(at), y.start + 17, text) for at, text in shown]
    return _draw_plot(title, WIDE, x, y, "", parts, is_interactive=True)


def _step(start: Point, end: Point) -> tuple[Point, Point]:
    return start, (end[0], start[1])


def _draw_mark(mark: Mark, x: float, y: float) -> Markup:
    shape = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>')
    radius = {"speck": 1.8, "dot": 4.2, "ring": 3.8}
    if mark.shape == "cross":
        corners = (x - 3.5, y - 3.5, x + 3.5, y + 3.5, x - 3.5, y + 3.5, x + 3.5, y - 3.5)
        drawn = Markup(
            '<path class="cross" d="M{:.1f} {:.1f}L{:.1f} {:.1f}M{:.1f} {:.1f}L{:.1f} {:.1f}"/>'
        ).format(*corners)
    else:
        drawn = shape.format(mark.shape, x, y, radius[mark.shape])
    return Markup('<a href="{}" target="_top" aria-label="{}"><title>{}</title>{}</a>').format(
        mark.address, mark.text, mark.text, drawn
    )


def draw_share_chart(
    title: str,
    x_label: str,
    lines: Sequence[Line],
    bars: Sequence[Bar] = (),
    *,
    y_label: str = "",
    marked_x: float | None = None,
) -> Markup:
    """Draws curves between shares, over bars. Both axes go from 0 to 1.

    A curve of a single point is a dot. `marked_x` is the x of a vertical line.
    """
    x, y = SMALL.make_axes((0.0, 1.0), _SHARES, _SHARES)
    parts = [_draw_bar("bin", bar, x, y) for bar in bars]
    if marked_x is not None:
        parts.append(_draw_line("mark", (x(marked_x), y.end), (x(marked_x), y.start)))
    if y_label:
        parts.append(_draw_text("start", x.start, y.end - 8, y_label))
    for line in lines:
        if len(line.points) == 1:
            parts.append(_draw_dot(line, line.points[0], x, y, x_label))
        else:
            parts.append(_draw_curve(f"curve {line.style}", line.points, x, y, line.name))
    return _draw_plot(title, SMALL, x, y, x_label, parts)


def draw_histogram(
    title: str, bars: Sequence[Bar], outline: Sequence[float], labels: Iterable[tuple[float, str]]
) -> Markup:
    """Draws bars of per cent, and over them a second histogram as an outline.

    Args:
      bars: neighbours of width 1, from 0 on. Empty ones are not drawn.
      outline: the heights of the second histogram, with as many bars. Empty for none.
      labels: texts below the x axis, by their x.
    """
    ticks = compute_ticks(0, max([*(bar.height for bar in bars), *outline]), 3)
    x, y = FLAT.make_axes((0, len(bars)), (), ticks)
    parts = [_draw_bar("bar", bar, x, y) for bar in bars if bar.height]
    if outline:
        edges = [(index + side, share) for index, share in enumerate(outline) for side in (0, 1)]
        corners = [(0.0, 0.0), *edges, (len(outline), 0.0)]
        parts.append(_draw_curve("outline", corners, x, y))
    parts += [_draw_text("middle", x(place), FLAT.height - 5, text) for place, text in labels]
    return _draw_plot(title, FLAT, x, y, "", parts, "{:g} %".format)


def draw_binned_histogram(
    title: str,
    unit: str,
    edges: Sequence[float],
    counts: Sequence[int],
    outline: Sequence[int] = (),
) -> Markup:
    """Draws the share of each bin, from the first to the last filled one, all equally wide.

    Args:
      title: the name of the values.
      edges: the inner borders of the bins. The first and the last bin are open.
      outline: the counts of a second histogram with the same bins. Empty for none.
    """
    filled = [index for each in (counts, outline) for index, count in enumerate(each) if count]
    shown = range(min(filled), max(filled) + 1)
    bars = [
        Bar(index, index + 1, share, f"{_describe_bin(edges, unit, shown[index])}: {share:.2f} %")
        for index, share in enumerate(_compute_percentages(counts, shown))
    ]
    return draw_histogram(
        f"Histogram of {title.lower()}",
        bars,
        _compute_percentages(outline, shown) if outline else [],
        _iterate_labels(edges, shown),
    )


def _compute_percentages(counts: Sequence[int], bins: range) -> list[float]:
    total = max(1, sum(counts))
    return [100 * counts[index] / total for index in bins]


def _describe_bin(edges: Sequence[float], unit: str, index: int) -> str:
    if index == 0:
        return f"below {edges[0]:g} {unit}"
    if index == len(edges):
        return f"{edges[-1]:g} {unit} and more"
    return f"{edges[index - 1]:g} to {edges[index]:g} {unit}"


def _iterate_labels(edges: Sequence[float], shown: range) -> Iterator[tuple[int, str]]:
    inner = [
        (index, edges[bin_index - 1])
        for index, bin_index in enumerate([*shown, shown[-1] + 1])
        if 1 <= bin_index <= len(edges)
    ]
    step = -(-len(inner) // _MAX_LABELS)
    return ((index, _format_edge(edge)) for index, edge in inner[::step])


def _format_edge(edge: float) -> str:
    """Formats an edge for a label in short form: `724`, `16.4k`, `0.84`, `3.2e-5`."""
    if edge >= 1000:
        return f"{edge / 1000:.3g}k" if edge < 1e6 else f"{edge / 1e6:.3g}M"
    return format_short(float(f"{edge:.3g}" if edge >= 1 else f"{edge:.2g}"))


def format_number(value: float | None) -> str:
    """Formats a number with few digits: `1,204`, `0.0317`, `28`."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def draw_interval_chart(
    value: float, other: float | None, low: float, interval: tuple[float, float] | None = None
) -> Markup:
    """Draws a metric of the challenger (dot) and of the champion (ring) between `low` and 1."""
    x = Axis(low, 1.0, 8, 292)
    parts = [_draw_line("rail", (8, 11), (292, 11))]
    if interval:
        parts.append(_draw_line("interval", (x(max(low, interval[0])), 11), (x(interval[1]), 11)))
    circle = Markup('<circle class="{}" cx="{:.1f}" cy="11" r="{}"/>')
    if other is not None:
        parts.append(circle.format("ring", x(other), 5.5))
    parts.append(circle.format("dot", x(value), 5))
    return _wrap("rule", 300, 22, parts)


def draw_distance(value: float, threshold: float, is_above: bool) -> Markup:
    """Draws a bar from 0 to 1, with a mark at the threshold."""
    x = Axis(0, 1, 4, 196)
    parts = [
        _draw_line("rail", (4, 9), (196, 9)),
        _draw_line("reach bad-reach" if is_above else "reach", (4, 9), (x(min(1.0, value)), 9)),
        _draw_line("threshold", (x(threshold), 2), (x(threshold), 16)),
    ]
    return _wrap("distance", 200, 18, parts)


_SPARK = Axis(0, 1, 4, 116)


def draw_sparkline(title: str, values: Sequence[float], marked: int | None = None) -> Markup:
    """Draws the course of a figure as one small line without axes.

    Args:
      title: the text for screen readers, with the values that matter.
      values: in order. A single one, or none that is finite, is not drawn.
      marked: the position in `values` of the value with a dot.
    """
    drawn = drop_undrawable(enumerate(values))
    if len(drawn) < 2:
        return Markup()
    low, high = min(y for _, y in drawn), max(y for _, y in drawn)
    margin = 0.0 if high > low else abs(high) or 1.0  # an equal line is in the middle
    x = dataclasses.replace(_SPARK, low=drawn[0][0], high=drawn[-1][0])
    y = Axis(low - margin, high + margin, 22, 4)
    parts = [_draw_curve("curve", drawn, x, y)]
    parts += [_draw_spot(x(px), y(py)) for px, py in drawn if px == marked]
    return _wrap("spark", 120, 26, parts, title)


def _draw_spot(x: float, y: float) -> Markup:
    return Markup('<circle class="point" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(x, y)


def _make_line_axes(
    frame: Frame, points: Sequence[Point], y_min: float, y_max: float
) -> tuple[Axis, Axis]:
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    if left == right:
        left, right = left - 1, right + 1
    low, high = min(y_min, *(y for _, y in points)), max(y for _, y in points)
    if low == high:
        low = high - 0.1 * (abs(high) or 1.0)
    return frame.make_axes(
        (left, right),
        [tick for tick in compute_ticks(left, right, 6) if tick % 1 == 0 and left <= tick <= right],
        [tick for tick in compute_ticks(low, high) if tick <= y_max + 1e-12],
    )


def _draw_plot(
    title: str,
    frame: Frame,
    x: Axis,
    y: Axis,
    x_label: str,
    parts: Iterable[Markup],
    format_y: Callable[[float], str] = format_short,
    is_interactive: bool = False,
) -> Markup:
    """Draws the grid and the texts of both axes, and the parts over them."""
    axes = []
    for tick in y.ticks:
        axes += [
            _draw_line("grid", (x.start, y(tick)), (x.end, y(tick))),
            _draw_text("end", x.start - 8, y(tick) + 4, format_y(tick)),
        ]
    axes += [_draw_text("middle", x(tick), y.start + 17, f"{tick:g}") for tick in x.ticks]
    if x_label:
        axes.append(_draw_text("middle", (x.start + x.end) / 2, frame.height - 3, x_label))
    role = "group" if is_interactive else "img"
    style = "chart is-wide" if frame is WIDE else "chart"
    return _wrap(style, frame.width, frame.height, [*axes, *parts], title, role)


def _wrap(
    style: str,
    width: int,
    height: int,
    parts: Iterable[Markup],
    title: str = "",
    role: str = "img",
) -> Markup:
    """Wraps the parts of a drawing. Screen readers skip a drawing without a title."""
    label = Markup('aria-hidden="true"')
    if title:
        label = Markup('role="{}" aria-label="{}"').format(role, title)
    return Markup('<svg class="{}" viewBox="0 0 {} {}" {}>{}</svg>').format(
        style, width, height, label, Markup("").join(parts)
    )


def _draw_line(style: str, start: Point, end: Point) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        style, *start, *end
    )


def _draw_text(anchor: str, x: float, y: float, content: str) -> Markup:
    return Markup('<text class="tick" text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
        anchor, x, y, content
    )


def _draw_bar(style: str, bar: Bar, x: Axis, y: Axis) -> Markup:
    top = min(y(bar.height), y.start - 1.5)  # a filled bar is always visible
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1.5">'
        "<title>{}</title></rect>"
    ).format(style, x(bar.low) + 0.75, top, x(bar.high) - x(bar.low) - 1.5, y.start - top, bar.text)


def _draw_curve(style: str, points: Iterable[Point], x: Axis, y: Axis, name: str = "") -> Markup:
    path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)
    return Markup('<polyline class="{}" points="{}"><title>{}</title></polyline>').format(
        style, path, name
    )


def _draw_dot(line: Line, point: Point, x: Axis, y: Axis, x_label: str) -> Markup:
    return Markup(
        '<circle class="point {}" cx="{:.1f}" cy="{:.1f}" r="2.5">'
        "<title>{}, {} {:g}: {:.5g}</title></circle>"
    ).format(line.style, x(point[0]), y(point[1]), line.name, x_label, *point)
