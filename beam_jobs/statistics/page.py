"""The page of a data set, `data.html`, for a person.

It shows counts, histograms, drift, schema, quarantine and duplicates. `render` is a pure function
without a clock. The page is a single file, runs no script and loads nothing. The template engine
escapes all text in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from beam_jobs.statistics.dataset import DatasetStatistics
from beam_jobs.statistics.drift import LABELS
from beam_jobs.statistics.histogram import FEATURES, Histogram
from beam_jobs.statistics.measure import NO_BOXES, NO_LABEL
from beam_jobs.statistics.plots import draw_feature
from beam_jobs.statistics.schema import DataSchema
from beam_jobs.statistics.summary import BadRecord
from beam_jobs.statistics.thumbnail import make_thumbnail
from pipeline_ops.artifacts.dataset import (
    SPLITS,
    DatasetFigures,
)
from pipeline_ops.pages.charts import draw_distance
from pipeline_ops.pages.page import render_page

_MAX_CLASSES = 100
_BOX_COLUMNS = ("box_width", "box_height", "box_area", "box_aspect")
_GROUPS = {
    "raw": "Raw files, as they were decoded",
    "example": "Examples, as they are stored",
    "box": "Boxes",
}


@dataclasses.dataclass(frozen=True)
class PageData:
    """All data that the page shows.

    `quarantine` has the first bad records. `reference` has the statistics of the data set that this
    one is compared with.
    """

    pipeline: str
    figures: DatasetFigures
    statistics: DatasetStatistics
    schema: DataSchema
    quarantine: Sequence[BadRecord]
    reference: DatasetStatistics | None = None


def render(data: PageData) -> str:
    """Renders the page as text, to be written in UTF-8."""
    here, statistics = Path(__file__).parent, data.statistics
    whole, findings = statistics.merge_splits(), list(_list_findings(data))
    by_count = sorted(
        whole.by_class.items(), key=lambda item: (-item[1]["box_area"].count, item[0])
    )
    return render_page(
        here / "data.html",
        [here / "data.css"],
        data=data,
        figures=data.figures,
        schema=data.schema,
        duplicates=statistics.duplicates,
        splits=SPLITS,
        features=FEATURES,
        number=_format_number,
        title=_get_title,
        draw_distance=draw_distance,
        total=sum(data.figures.num_examples.values()),
        findings=findings,
        is_fine=all(is_good for is_good, _ in findings),
        classes=_build_class_rows(data.figures)[:_MAX_CLASSES],
        num_hidden_classes=max(0, len(data.figures.class_names) - _MAX_CLASSES),
        groups=_build_chart_groups(data),
        by_split={
            name: histograms
            for name in FEATURES
            if any(histograms := [statistics.splits[split].features.get(name) for split in SPLITS])
        },
        box_columns=_BOX_COLUMNS,
        boxes_by_class=by_count[:_MAX_CLASSES],
        comparison=statistics.comparison,
        has_reference=data.reference is not None,
        rejects=[_build_reject_row(record) for record in data.quarantine],
    )


def _list_findings(data: PageData) -> Iterator[tuple[bool, str]]:
    """Yields the most important findings: whether each one is good, and a sentence."""
    total, num_rejected = sum(data.figures.num_examples.values()), data.figures.num_rejected
    yield from _list_comparison_findings(data)
    records = _pluralize(total + num_rejected, "record is", "records are")
    if num_rejected:
        yield False, f"{num_rejected:,} of {records} in quarantine."
    else:
        yield True, "No record was rejected."
    duplicates = data.statistics.duplicates
    if across := duplicates.num_groups_across_splits:
        images = _pluralize(across, "image is", "images are")
        yield False, f"{images} in more than one split, so a test may contain training images."
    elif duplicates.num_groups:
        files = _pluralize(duplicates.num_superfluous, "file is a copy", "files are copies")
        yield False, f"{files} of others in their split."
    else:
        yield True, "No two files are the same."
    whole = data.statistics.merge_splits()
    measured = whole.features["brightness"].count if "brightness" in whole.features else 0
    if measured < total:
        examples = _pluralize(total, "example", "examples")
        yield (
            True,
            f"Brightness was measured for {measured:,} of {examples}: "
            "no stage needed the pixels of the others.",
        )
    for name, is_good, text in (
        (NO_LABEL, False, "no label."),
        (NO_BOXES, True, "no box: nothing but background."),
    ):
        if count := whole.missing.get(name):
            yield is_good, f"{_pluralize(count, 'example has', 'examples have')} {text}"


def _pluralize(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _list_comparison_findings(data: PageData) -> Iterator[tuple[bool, str]]:
    comparison = data.statistics.comparison
    if comparison is None:
        yield True, "This is the first data set: there is nothing to compare it with yet."
        return
    reference = describe_reference(comparison.reference)
    for violation in comparison.schema_violations:
        allowed = "" if violation.fails else " (allowed by the config)"
        yield False, f"Not as in {reference}: {violation.text}{allowed}."
    if not comparison.schema_violations:
        yield True, f"The schema is that of {reference}."
    drifted = [_get_title(distance.feature) for distance in comparison.drift if distance.is_above]
    if drifted:
        yield False, f"Drifted from {reference}: {', '.join(drifted)}."
    elif comparison.drift:  # empty if there is no training example
        yield True, f"No feature has drifted from {reference}."


def describe_reference(reference: str) -> str:
    return "the champion's data" if reference == "champion_data" else "the previous data set"


def _get_title(feature: str) -> str:
    return "Classes" if feature == LABELS else FEATURES[feature].title


class _ClassRow(NamedTuple):
    """The row of a class, with the number of its examples in each split."""

    name: str
    counts: list[int]
    total: int
    shares: list[float]
    """The counts relative to the largest class."""


def _build_class_rows(figures: DatasetFigures) -> list[_ClassRow]:
    """The rows of the classes, the largest first."""
    counts = {
        name: [figures.labels[split].get(name, 0) for split in SPLITS]
        for name in figures.class_names
    }
    largest = max(1, *map(sum, counts.values()))
    rows = [
        _ClassRow(name, found, sum(found), [count / largest for count in found])
        for name, found in counts.items()
    ]
    return sorted(rows, key=lambda row: (-row.total, row.name))


def _build_chart_groups(data: PageData) -> dict[str, list[tuple[str, Histogram, Markup | None]]]:
    """The charts of the features in the training split, by heading.

    A feature with a constant value has no chart. It is shown as a number.
    """
    ours = data.statistics.splits["train"].features
    theirs = data.reference.splits["train"].features if data.reference else {}
    groups: dict[str, list[tuple[str, Histogram, Markup | None]]] = {}
    for level, title in _GROUPS.items():
        for name, feature in FEATURES.items():
            if feature.level == level and name in ours:
                histograms = [ours[name], *([theirs[name]] if name in theirs else [])]
                values = {value for each in histograms for value in (each.minimum, each.maximum)}
                svg = draw_feature(name, ours[name], theirs.get(name)) if len(values) > 1 else None
                groups.setdefault(title, []).append((name, ours[name], svg))
    return groups


def _build_reject_row(record: BadRecord) -> dict[str, Any]:
    image = make_thumbnail(record.content)
    return record.rejected.model_dump() | {"num_bytes": record.num_bytes, "image": image}


def _format_number(value: float | None) -> str:
    """Formats a number with few digits: `1,204`, `0.0317`, `28`."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
