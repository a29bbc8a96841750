"""The charts of the data page: histograms, and distances against a threshold.

They are made of the parts in `pipeline_ops/pages/svg.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from beam_jobs.statistics.histogram import FEATURES, Histogram
from pipeline_ops.pages.svg import Axis, line, round_ticks, short, text

_WIDTH, _HEIGHT = 330, 158
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 16, 8, 22
_MAX_LABELS = 6


def histogram_chart(feature: str, ours: Histogram, reference: Histogram | None = None) -> Markup:
    """Draws bars with the share of each bin, and over them a line for the reference.

    All bins are equally wide. Only those from the first to the last filled bin are drawn.
    """
    shown = _shown_bins([ours, *([reference] if reference else [])])
    bars, outline = _shares(ours, shown), _shares(reference, shown) if reference else []
    ticks = round_ticks(0, 100 * max([*bars, *outline]), 3)
    x, y = (
        Axis(0, len(shown), _LEFT, _WIDTH - _RIGHT, ()),
        Axis(0, ticks[-1], _HEIGHT - _BOTTOM, _TOP, ticks),
    )
    parts = [
        *(
            line("grid", (_LEFT, y(tick)), (_WIDTH - _RIGHT, y(tick)))
            + text("end", _LEFT - 7, y(tick) + 4, f"{tick:g} %")
            for tick in ticks
        )
    ]
    parts += [
        _bar(index, share, _range_of(feature, shown[index]), x, y)
        for index, share in enumerate(bars)
        if share
    ]
    if outline:
        parts.append(_steps(outline, x, y))
    parts += _labels(feature, shown, x)
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(
        _WIDTH, _HEIGHT, f"Histogram of {FEATURES[feature].title.lower()}", Markup("").join(parts)
    )


def distance_chart(value: float, threshold: float, is_above: bool) -> Markup:
    """Draws a bar from 0 to 1, with a mark at the threshold."""
    place = Axis(0, 1, 4, 196, ())
    parts = [
        line("rail", (4, 9), (196, 9)),
        line("reach bad-reach" if is_above else "reach", (4, 9), (place(min(1.0, value)), 9)),
        line("threshold", (place(threshold), 2), (place(threshold), 16)),
    ]
    return Markup('<svg class="distance" viewBox="0 0 200 18" aria-hidden="true">{}</svg>').format(
        Markup("").join(parts)
    )


def _shown_bins(histograms: Sequence[Histogram]) -> range:
    filled = [
        index for histogram in histograms for index, count in enumerate(histogram.counts) if count
    ]
    return range(min(filled), max(filled) + 1)


def _shares(histogram: Histogram, bins: range) -> list[float]:
    return [histogram.counts[index] / max(1, histogram.count) for index in bins]


def _range_of(feature: str, index: int) -> str:
    edges, unit = FEATURES[feature].edges, FEATURES[feature].unit
    if index == 0:
        return f"below {edges[0]:g} {unit}"
    return (
        f"{edges[index - 1]:g} to {edges[index]:g} {unit}"
        if index < len(edges)
        else f"{edges[-1]:g} {unit} and more"
    )


def _bar(index: int, share: float, name: str, x: Axis, y: Axis) -> Markup:
    top = min(y(100 * share), y(0) - 1.5)  # a filled bin is always visible
    return Markup(
        '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1.5">'
        "<title>{}: {:.2f} %</title></rect>"
    ).format(x(index) + 0.75, top, x(1) - x(0) - 1.5, y(0) - top, name, 100 * share)


def _steps(shares: Sequence[float], x: Axis, y: Axis) -> Markup:
    corners = [(x(0), y(0))]
    for index, share in enumerate(shares):
        corners += [(x(index), y(100 * share)), (x(index + 1), y(100 * share))]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in [*corners, (x(len(shares)), y(0))])
    return Markup('<polyline class="outline" points="{}"/>').format(points)


def _labels(feature: str, shown: range, x: Axis) -> list[Markup]:
    """Draws some of the edges between the bins."""
    edges = FEATURES[feature].edges
    inner = [
        (index, edges[bin_index - 1])
        for index, bin_index in enumerate([*shown, shown[-1] + 1])
        if 1 <= bin_index <= len(edges)
    ]
    step = -(-len(inner) // _MAX_LABELS)
    return [text("middle", x(index), _HEIGHT - 5, _rounded(edge)) for index, edge in inner[::step]]


def _rounded(edge: float) -> str:
    """Formats an edge for a label in short form: `724`, `16.4k`, `0.84`, `3.2e-5`."""
    if edge >= 1000:
        return f"{edge / 1000:.3g}k" if edge < 1e6 else f"{edge / 1e6:.3g}M"
    return short(float(f"{edge:.3g}" if edge >= 1 else f"{edge:.2g}"))
