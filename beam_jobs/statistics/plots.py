"""The histograms of the data page. `pipeline_ops/pages/charts.py` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from beam_jobs.statistics.histogram import FEATURES, Histogram
from pipeline_ops.pages.axes import format_short
from pipeline_ops.pages.charts import Bar, draw_histogram

_MAX_LABELS = 6


def draw_feature(feature: str, ours: Histogram, reference: Histogram | None = None) -> Markup:
    """Draws bars with the share of each bin, and over them a line for the reference.

    All bins are equally wide. Only those from the first to the last filled bin are drawn.
    """
    shown = _find_shown_bins([ours, *([reference] if reference else [])])
    bars = [
        Bar(index, index + 1, share, f"{_describe_bin(feature, shown[index])}: {share:.2f} %")
        for index, share in enumerate(_compute_percentages(ours, shown))
    ]
    return draw_histogram(
        f"Histogram of {FEATURES[feature].title.lower()}",
        bars,
        _compute_percentages(reference, shown) if reference else [],
        _iterate_labels(feature, shown),
    )


def _find_shown_bins(histograms: Sequence[Histogram]) -> range:
    filled = [
        index for histogram in histograms for index, count in enumerate(histogram.counts) if count
    ]
    return range(min(filled), max(filled) + 1)


def _compute_percentages(histogram: Histogram, bins: range) -> list[float]:
    return [100 * histogram.counts[index] / max(1, histogram.count) for index in bins]


def _describe_bin(feature: str, index: int) -> str:
    edges, unit = FEATURES[feature].edges, FEATURES[feature].unit
    if index == 0:
        return f"below {edges[0]:g} {unit}"
    return (
        f"{edges[index - 1]:g} to {edges[index]:g} {unit}"
        if index < len(edges)
        else f"{edges[-1]:g} {unit} and more"
    )


def _iterate_labels(feature: str, shown: range) -> Iterator[tuple[int, str]]:
    """Yields some of the edges between the bins, by their place."""
    edges = FEATURES[feature].edges
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
