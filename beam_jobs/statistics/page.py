"""The page of a data set, `data.html`, for a person.

It shows counts, histograms, drift, schema, quarantine and duplicates. `render` is a pure function
without a clock. The page is a single file, runs no script and loads nothing. The template engine
escapes all text in it.
"""

from __future__ import annotations

import base64
import dataclasses
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from beam_jobs.statistics.dataset import DataSchema, DatasetStatistics
from beam_jobs.statistics.pictures import SMALL_SIDE, ExamplePictures, read_small
from beam_jobs.statistics.summary import CONFLICTING, DUPLICATE, NO_BOXES, NO_LABEL, BadRecord
from pipeline_ops.contract.dataset import SPLITS, DatasetFigures
from pipeline_ops.contract.features import FEATURES, Histogram, get_title
from pipeline_ops.contract.remarks import describe_empty_images, describe_moves
from pipeline_ops.pages.charts import draw_binned_histogram, draw_distance, format_number
from pipeline_ops.pages.page import render_page

_MAX_CLASSES = 100
_THUMBNAIL_SIDE = 112
_GROUPS = {
    "raw": "Raw files, as they were decoded",
    "example": "Examples, as they are stored",
    "box": "Boxes",
}


@dataclasses.dataclass(frozen=True)
class PageData:
    """All data that the page shows, of the quarantine some records of each reason."""

    pipeline: str
    figures: DatasetFigures
    statistics: DatasetStatistics
    schema: DataSchema
    quarantine: Sequence[BadRecord]
    reference: DatasetStatistics | None = None
    labels_before: Mapping[str, Mapping[str, int]] | None = None
    """The examples, or boxes, of the previous data set, by split and class."""
    pictures: ExamplePictures | None = None
    refusal: str = ""
    """Why the data were refused, in one line. Empty for a data set."""

    @property
    def num_equal_rejected(self) -> int:
        """The rejected records that equal others, or nearly."""
        counts = self.figures.rejected_by_reason
        return counts.get(DUPLICATE, 0) + counts.get(CONFLICTING, 0)


def render(data: PageData) -> str:
    """Renders the page as text, to be written in UTF-8."""
    here, statistics, figures = Path(__file__).parent, data.statistics, data.figures
    findings = list(_list_findings(data))
    boxes_by_class = statistics.merge_splits().by_class.items()
    by_count = sorted(boxes_by_class, key=lambda item: (-item[1]["box_area"].count, item[0]))
    labels = [figures.labels[split] for split in SPLITS]
    counts = {name: [each.get(name, 0) for each in labels] for name in figures.class_names}
    before = None if data.labels_before is None else count_classes(data.labels_before)
    return render_page(
        here / "data.html",
        [here / "data.css"],
        **vars(data),
        splits=SPLITS,
        features=FEATURES,
        number=format_number,
        title=get_title,
        draw_distance=draw_distance,
        total=sum(figures.num_examples.values()),
        findings=findings,
        num_equal_rejected=data.num_equal_rejected,
        is_fine=all(is_good for is_good, _ in findings),
        classes=sorted(counts.items(), key=lambda row: (-sum(row[1]), row[0]))[:_MAX_CLASSES],
        largest_class=max(1, *map(sum, counts.values()), *(before or {}).values()),
        before=before,
        small_side=SMALL_SIDE,
        describe_moves=describe_moves,
        shown_rejects=_group_by_reason(data.quarantine),
        num_hidden_classes=max(0, len(counts) - _MAX_CLASSES),
        groups=_build_chart_groups(data),
        by_split={
            name: histograms
            for name in FEATURES
            if any(histograms := [statistics.splits[split].features.get(name) for split in SPLITS])
        },
        boxes_by_class=by_count[:_MAX_CLASSES],
        make_thumbnail=make_thumbnail,
    )


def _group_by_reason(quarantine: Sequence[BadRecord]) -> dict[str, list[BadRecord]]:
    found = defaultdict[str, list[BadRecord]](list)
    for bad in quarantine:
        found[bad.rejected.reason].append(bad)
    return found


def count_classes(labels: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    """The examples, or boxes, of all splits by class."""
    return sum(map(Counter, labels.values()), Counter[str]())


def _list_findings(data: PageData) -> Iterator[tuple[bool, str]]:
    """Yields the most important findings: whether each one is good, and a sentence."""
    total, num_rejected = sum(data.figures.num_examples.values()), data.figures.num_rejected
    if data.refusal:
        yield False, data.refusal
    yield from _list_comparison_findings(data)
    records = _pluralize(total + num_rejected, "record is", "records are")
    if num_rejected:
        yield False, f"{num_rejected:,} of {records} in quarantine."
    else:
        yield True, "No record was rejected."
    duplicates, whole = data.statistics.duplicates, data.statistics.merge_splits()
    if across := duplicates.num_groups_across_splits:
        images = _pluralize(across, "image is", "images are")
        yield False, f"{images} in more than one split, so a test may contain training images."
    elif duplicates.num_groups:
        files = _pluralize(duplicates.num_superfluous, "file is a copy", "files are copies")
        yield False, f"{files} of others in their split."
    elif equal := data.num_equal_rejected:
        files = _pluralize(equal, "file that equals another one", "files that equal others")
        yield True, f"No two examples are the same. In quarantine: {files}, or nearly."
    else:
        yield True, "No two files are the same."
    yield from ((False, warning) for warning in data.figures.warnings)
    if count := whole.missing.get(NO_LABEL):
        yield False, f"{_pluralize(count, 'example has', 'examples have')} no label."
    splits = data.statistics.splits.items()
    empty = {split: each.missing.get(NO_BOXES, 0) for split, each in splits}
    for text in describe_empty_images(empty, data.figures.num_examples):
        yield True, f"{text}: nothing but background."


def _pluralize(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _list_comparison_findings(data: PageData) -> Iterator[tuple[bool, str]]:
    comparison = data.statistics.comparison
    if comparison is None and data.refusal:
        return
    if comparison is None:
        yield True, "This is the first data set: there is nothing to compare it with yet."
        return
    reference = describe_reference(comparison.reference)
    for violation in comparison.schema_violations:
        allowed = "" if violation.fails else " (allowed by the config)"
        yield False, f"Not as in {reference}: {violation.text}{allowed}."
    if not comparison.schema_violations:
        yield True, f"The schema is that of {reference}."
    drifted = [get_title(distance.feature) for distance in comparison.drift if distance.is_above]
    if drifted:
        yield False, f"Drifted from {reference}: {', '.join(drifted)}."
    elif comparison.drift:  # empty if there is no training example
        yield True, f"No feature has drifted from {reference}."


def describe_reference(reference: str) -> str:
    return "the champion's data" if reference == "champion_data" else "the previous data set"


def _build_chart_groups(data: PageData) -> dict[str, list[tuple[str, Histogram, Markup | None]]]:
    """The charts of the training split, by heading. A constant value has none, but its number."""
    ours = data.statistics.splits["train"].features
    theirs = data.reference.splits["train"].features if data.reference else {}
    groups: dict[str, list[tuple[str, Histogram, Markup | None]]] = {}
    for name, feature in FEATURES.items():
        if name in ours:
            found = [each[name] for each in (ours, theirs) if name in each]
            values = {value for each in found for value in (each.minimum, each.maximum)}
            title, unit, edges = feature.title, feature.unit, feature.edges
            bars = [each.counts for each in found]
            svg = draw_binned_histogram(title, unit, edges, *bars) if len(values) > 1 else None
            groups.setdefault(_GROUPS[feature.level], []).append((name, ours[name], svg))
    return groups


class Thumbnail(NamedTuple):
    """A picture as a data URI. `is_small`: its pixels are drawn as squares."""

    uri: str
    is_small: bool


def make_thumbnail(content: bytes) -> Thumbnail | None:
    """A small PNG, of a truncated file its beginning, or None."""
    if (picture := read_small(content, _THUMBNAIL_SIDE)) is None:
        return None
    output = io.BytesIO()
    picture.save(output, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(output.getvalue()).decode()}"
    return Thumbnail(uri, max(picture.size) <= SMALL_SIDE)
