"""The page of a data set, `data.html`, for a person.

It shows counts, histograms, drift, schema, quarantine and duplicates. `render` is a pure function
without a clock. The page is a single file, runs no script and loads nothing. The template engine
escapes all text in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_jobs.statistics.dataset import DatasetStatistics, merge_splits
from beam_jobs.statistics.drift import LABELS
from beam_jobs.statistics.histogram import FEATURES, Histogram
from beam_jobs.statistics.measure import NO_BOXES, NO_LABEL, Measured
from beam_jobs.statistics.plots import distance_chart, histogram_chart
from beam_jobs.statistics.schema import DataSchema
from beam_jobs.statistics.thumbnail import thumbnail
from pipeline_ops.artifacts.dataset import (
    QUARANTINE_CONTENT,
    QUARANTINE_DETAIL,
    QUARANTINE_KEY,
    QUARANTINE_NUM_BYTES,
    QUARANTINE_REASON,
    QUARANTINE_STAGE,
    SPLITS,
    DatasetFigures,
)
from pipeline_ops.pages.page import render_page

_MAX_CLASSES = 100
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
    quarantine: Sequence[Mapping[str, bytes | int]]
    reference: DatasetStatistics | None = None


def render(data: PageData) -> str:
    """Renders the page as text, to be written in UTF-8."""
    here, findings = Path(__file__).parent, list(_findings(data))
    whole = merge_splits(data.statistics.splits)
    return render_page(
        here / "data.html",
        [here / "data.css"],
        data=data,
        figures=data.figures,
        schema=data.schema,
        duplicates=data.statistics.duplicates,
        splits=SPLITS,
        total=sum(data.figures.num_examples.values()),
        findings=findings,
        is_fine=all(is_good for is_good, _ in findings),
        classes=_class_rows(data.figures)[:_MAX_CLASSES],
        num_hidden_classes=max(0, len(data.figures.class_names) - _MAX_CLASSES),
        groups=list(_groups(data)),
        by_split=list(_rows_by_split(data.statistics)),
        drift=list(_drift_rows(data.statistics)),
        boxes_by_class=_boxes_by_class(whole),
        comparison=data.statistics.comparison,
        has_reference=data.reference is not None,
        rejects=[_reject(record) for record in data.quarantine],
    )


def _findings(data: PageData) -> Iterator[tuple[bool, str]]:
    """Yields the most important findings: whether each one is good, and a sentence."""
    statistics, figures = data.statistics, data.figures
    yield from _findings_of_comparison(data)
    if figures.num_rejected:
        total = sum(figures.num_examples.values()) + figures.num_rejected
        yield (
            False,
            (
                f"{figures.num_rejected:,} of {_many(total, 'record is', 'records are')} "
                "in quarantine."
            ),
        )
    else:
        yield True, "No record was kept out."
    duplicates = statistics.duplicates
    if across := duplicates.num_groups_across_splits:
        yield (
            False,
            (
                f"{_many(across, 'image is', 'images are')} in more than one split, "
                "so a test may ask what was trained."
            ),
        )
    elif duplicates.num_groups:
        yield (
            False,
            (
                f"{_many(duplicates.num_superfluous, 'file is a copy', 'files are copies')} "
                "of others in their split."
            ),
        )
    else:
        yield True, "No two files are the same."
    whole = merge_splits(statistics.splits)
    missing, total = whole.missing, sum(figures.num_examples.values())
    if (
        seen := whole.features["brightness"].count if "brightness" in whole.features else 0
    ) < total:
        yield (
            True,
            (
                f"Brightness is known of {seen:,} of {_many(total, 'example', 'examples')}: "
                "no stage needed the pixels of the others."
            ),
        )
    if missing.get(NO_LABEL):
        yield False, f"{_many(missing[NO_LABEL], 'example has', 'examples have')} no label."
    if missing.get(NO_BOXES):
        yield (
            True,
            (
                f"{_many(missing[NO_BOXES], 'example has', 'examples have')} no box: "
                "nothing but background."
            ),
        )


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _findings_of_comparison(data: PageData) -> Iterator[tuple[bool, str]]:
    comparison = data.statistics.comparison
    if comparison is None:
        yield True, "This is the first data set: there is nothing to compare it with yet."
        return
    whose = reference_name(comparison.reference)
    for violation in comparison.schema_violations:
        yield (
            False,
            (
                f"Not as in {whose}: {violation.text}"
                f"{'' if violation.fails else ' (allowed by the config)'}."
            ),
        )
    if not comparison.schema_violations:
        yield True, f"The schema is that of {whose}."
    drifted = [_title(distance.feature) for distance in comparison.drift if distance.is_above]
    yield (
        not drifted,
        f"Drifted from {whose}: {', '.join(drifted)}."
        if drifted
        else f"No feature has drifted from {whose}.",
    )


def reference_name(reference: str) -> str:
    return "the champion's data" if reference == "champion_data" else "the data set before this"


def _title(feature: str) -> str:
    return "Classes" if feature == LABELS else FEATURES[feature].title


def _class_rows(figures: DatasetFigures) -> list[dict[str, Any]]:
    """The rows of the classes, the largest first. `shares` are relative to the largest class."""
    rows = [
        {"name": name, "counts": [figures.labels[split].get(name, 0) for split in SPLITS]}
        for name in figures.class_names
    ]
    rows.sort(key=lambda row: (-sum(row["counts"]), row["name"]))
    largest = max(1, sum(rows[0]["counts"]))
    return [
        row | {"total": sum(row["counts"]), "shares": [count / largest for count in row["counts"]]}
        for row in rows
    ]


def _groups(data: PageData) -> Iterator[dict[str, Any]]:
    """Yields each heading with the charts of its features in the training split.

    A feature with a constant value is shown as a number.
    """
    ours = data.statistics.splits["train"].features
    theirs = data.reference.splits["train"].features if data.reference else {}
    for of, title in _GROUPS.items():
        names = [name for name in FEATURES if FEATURES[name].of == of and name in ours]
        if names:
            yield {
                "title": title,
                "charts": [_chart(name, ours[name], theirs.get(name)) for name in names],
            }


def _chart(name: str, ours: Histogram, theirs: Histogram | None) -> dict[str, Any]:
    is_constant = ours.minimum == ours.maximum and (
        theirs is None or (theirs.minimum, theirs.maximum) == (ours.minimum, ours.maximum)
    )
    return {
        "title": FEATURES[name].title,
        "unit": FEATURES[name].unit,
        "mean": _number(ours.mean(name)),
        "deviation": _number(ours.deviation(name)),
        "constant": _number(ours.minimum) if is_constant else None,
        "svg": None if is_constant else histogram_chart(name, ours, theirs),
    }


def _rows_by_split(statistics: DatasetStatistics) -> Iterator[dict[str, Any]]:
    for name, feature in FEATURES.items():
        found = [statistics.splits[split].features.get(name) for split in SPLITS]
        if any(found):
            yield {
                "title": feature.title,
                "unit": feature.unit,
                "cells": [_cell(name, histogram) for histogram in found],
            }


def _cell(name: str, histogram: Histogram | None) -> dict[str, str] | None:
    if histogram is None:
        return None
    return {
        "mean": _number(histogram.mean(name)),
        "low": _number(histogram.minimum),
        "high": _number(histogram.maximum),
    }


def _boxes_by_class(whole: Measured) -> list[dict[str, Any]]:
    """The means of box features by class. The classes with most boxes come first."""
    rows = [
        {
            "name": label,
            "count": histograms["box_area"].count,
            "cells": [_number(histograms[name].mean(name)) for name in _BOX_COLUMNS],
        }
        for label, histograms in whole.by_class.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["name"]))[:_MAX_CLASSES]


_BOX_COLUMNS = ("box_width", "box_height", "box_area", "box_aspect")


def _drift_rows(statistics: DatasetStatistics) -> Iterator[dict[str, Any]]:
    comparison = statistics.comparison
    for distance in comparison.drift if comparison else []:
        js, threshold = distance.jensen_shannon, comparison.thresholds.js_above
        yield {
            "title": _title(distance.feature),
            "js": js,
            "linf": distance.l_infinity,
            "is_above": distance.is_above,
            "svg": distance_chart(js, threshold, js > threshold),
        }


def _reject(record: Mapping[str, bytes | int]) -> dict[str, Any]:
    text = {
        name: record[feature].decode()
        for name, feature in (
            ("key", QUARANTINE_KEY),
            ("stage", QUARANTINE_STAGE),
            ("reason", QUARANTINE_REASON),
            ("detail", QUARANTINE_DETAIL),
        )
    }
    return text | {
        "num_bytes": record[QUARANTINE_NUM_BYTES],
        "image": thumbnail(record[QUARANTINE_CONTENT]),
    }


def _number(value: float | None) -> str:
    """Formats a number with few digits: `1,204`, `0.0317`, `28`."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
