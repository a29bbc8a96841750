"""The statistics and the schema of a whole data set, and its comparison with a reference.

Statistics are the measurements of the shards added up. The schema is inferred from the first data
set, and enforced on the later ones. The drift is two distances from the reference, which lie
between 0 (equal) and 1 (nothing in common), for every feature and for the classes:

- Jensen-Shannon: the square root of the divergence in bits (Lin 1991, Endres and Schindelin 2003).
  It detects a change of the whole shape.
- L-infinity: the largest change of the share of any one bin. It detects a single peak.

The training splits are compared. Two samples of the same source have a distance above 0. With n
examples each and b filled bins, chance alone gives a Jensen-Shannon distance of about
sqrt(b / 5.5 n), which is 0.05 for 1,500 examples in 20 bins.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from beam_jobs.planning.duplicates import find_repeated_digests
from beam_jobs.planning.plan import Record
from beam_jobs.statistics.summary import Measurements, ShardSummary, merge_measurements
from pipeline_ops.config.preprocess import Drift, SchemaChange
from pipeline_ops.contract import remarks
from pipeline_ops.contract.dataset import SPLITS, DatasetFigures, Distance
from pipeline_ops.contract.features import FEATURES, LABELS, align_labels, compare_histograms
from pipeline_ops.storage.parsing import JsonModel

_MAX_NAMED_GROUPS = 50
_MIN_EXAMPLES = 50
"""Of fewer examples of a class, chance alone may leave a split half or twice as many."""


class DataSchema(JsonModel, frozen=True):
    """The properties that later data sets must share.

    `height` and `width` are the least and the largest of stored images, in pixels. They are equal
    if the shape is fixed. `has_boxes` is true if there is at least one box.
    """

    task: Literal["classification", "detection"]
    class_names: list[str]
    channels: int
    height: tuple[int, int]
    width: tuple[int, int]
    has_boxes: bool


class Violation(JsonModel, frozen=True):
    """A difference from the reference. `preprocess.allowed_changes` may list its `rule`."""

    rule: str
    text: str
    fails: bool


class SplitStatistics(Measurements, frozen=True):
    num_examples: int
    labels: dict[str, int]
    """The number of examples by class, or of boxes for detection."""


class DuplicateGroup(JsonModel, frozen=True):
    """Raw files with the same content. The splits are in the order of the keys."""

    keys: list[str]
    splits: list[str]


class Duplicates(JsonModel, frozen=True):
    """Raw files that are equal to the byte.

    `num_superfluous` is the number of files that could be removed without loss. `groups` has the
    first groups, those that span several splits before the others.
    """

    num_groups: int
    num_groups_across_splits: int
    num_superfluous: int
    groups: list[DuplicateGroup]


class DatasetComparison(JsonModel, frozen=True):
    """The comparison with the champion's data or, without one, the previous data set."""

    reference: Literal["champion_data", "previous_data"]
    digest: str
    """The digest of the reference's files."""
    schema_violations: list[Violation]
    thresholds: Drift
    drift: list[Distance]


class DatasetStatistics(JsonModel, frozen=True):
    """The content of `statistics.json`. `edges` are the inner borders of a feature's bins."""

    edges: dict[str, tuple[float, ...]]
    splits: dict[str, SplitStatistics]
    duplicates: Duplicates
    comparison: DatasetComparison | None = None

    def merge_splits(self) -> Measurements:
        """The measurements of all splits, added up."""
        return merge_measurements(self.splits.values())


def collect_statistics(
    summaries: Sequence[ShardSummary], figures: DatasetFigures, duplicates: Duplicates
) -> DatasetStatistics:
    """Adds up the measurements of all shards. They are whole numbers, so in any order."""
    splits = {}
    for split in SPLITS:
        found = merge_measurements(each.measurements for each in summaries if each.split == split)
        splits[split] = SplitStatistics(
            num_examples=figures.num_examples[split], labels=figures.labels[split], **dict(found)
        )
    edges = {name: each.edges for name, each in FEATURES.items() if each.level != "answer"}
    return DatasetStatistics(edges=edges, splits=splits, duplicates=duplicates)


def add_remarks(
    figures: DatasetFigures,
    statistics: DatasetStatistics,
    by_split: Mapping[str, Sequence[Record]],
    labels_before: Mapping[str, Mapping[str, int]] | None = None,
) -> DatasetFigures:
    """Adds the largest numbers of boxes of an example and of a raw image, and the warnings.

    They are sentences about unbalanced splits, classes without an example in a split or with far
    fewer than before, crowds, similar names, and very many boxes.
    """
    histogram = statistics.merge_splits().features.get("boxes_per_image")
    records = (record for records in by_split.values() for record in records)
    fullest = {
        "most_boxes": int((histogram and histogram.maximum) or 0),
        "most_raw_boxes": max((len(each.boxes or ()) for each in records), default=0),
    }
    figures = figures.model_copy(update=fullest)
    boxes = {
        split: sum(found["box_area"].count for found in each.by_class.values())
        for split, each in statistics.splits.items()
    }
    found = describe_imbalance(figures.labels)
    found += remarks.describe_unlearned(figures.labels, figures.class_names)
    found += remarks.describe_untested(figures.labels, figures.class_names)
    found += remarks.describe_losses(figures.labels, labels_before or {})
    found += remarks.describe_counts(figures.labels, boxes)
    found += remarks.describe_most_boxes("An image", figures.most_boxes_to_answer)
    return figures.model_copy(update={"warnings": [f"{sentence}." for sentence in found]})


def describe_imbalance(labels: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Names the class and the split that stand out most, if its share differs by more than half.

    Classes count of which a split has at least 50 examples, or by its size would have them.
    """
    totals = sum(map(Counter, labels.values()), Counter[str]())
    found = []
    for split, counts in labels.items():
        for name, total in totals.items():
            expected = total * sum(counts.values()) / totals.total()
            difference = abs(counts[name] - expected)
            if max(counts[name], expected) >= _MIN_EXAMPLES and difference > expected / 2:
                found.append((difference**2 / expected, split, name, expected))
    if not found:
        return []
    _, split, name, expected = max(found)
    others = f", and {len(found) - 1} more numbers differ as much" * (len(found) > 1)
    return [
        f"The splits are unbalanced by class: {split} has {labels[split][name]:,} of {name}, and "
        f"by its size it would have {expected:,.1f}{others}. Set preprocess.split.stratify: true, "
        "or correct the splits or groups that the source gives"
    ]


def find_duplicates(
    by_split: Mapping[str, Sequence[Record]], excluded_keys: Collection[str] = ()
) -> Duplicates:
    """Groups records by the digest of their content, without those of `excluded_keys`."""
    repeated = find_repeated_digests([one for records in by_split.values() for one in records])
    found: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for split, records in by_split.items():
        for record in records:
            if record.file.digest in repeated and record.key not in excluded_keys:
                found[record.file.digest].append((record.key, split))
    pairs = [zip(*sorted(each), strict=True) for each in found.values() if len(each) > 1]
    groups = [DuplicateGroup(keys=list(keys), splits=list(splits)) for keys, splits in pairs]
    groups.sort(key=lambda group: (len(set(group.splits)) == 1, group.keys))
    return Duplicates(
        num_groups=len(groups),
        num_groups_across_splits=sum(len(set(group.splits)) > 1 for group in groups),
        groups=groups[:_MAX_NAMED_GROUPS],
        num_superfluous=sum(len(group.keys) - 1 for group in groups),
    )


def infer_schema(figures: DatasetFigures, measurements: Measurements) -> DataSchema:
    """The schema of a data set, by the measurements of all splits. Its sizes may be 0."""
    sizes = measurements.sizes or (0, 0, 0, 0)
    return DataSchema(
        task=figures.task,
        class_names=figures.class_names,
        channels=figures.image_shape[2],
        height=sizes[:2],
        width=sizes[2:],
        has_boxes=bool(measurements.by_class),
    )


def compare_schemas(
    ours: DataSchema, reference: DataSchema, allowed: Sequence[SchemaChange]
) -> list[Violation]:
    """Returns all differences except those of image sizes, which may drift."""
    found: dict[SchemaChange, str] = {}
    our_names, known_names = set(ours.class_names), set(reference.class_names)
    if new := [name for name in ours.class_names if name not in known_names]:
        found["new_classes"] = f"new classes: {', '.join(new)}"
    if missing := [name for name in reference.class_names if name not in our_names]:
        found["missing_classes"] = f"missing classes: {', '.join(missing)}"
    if ours.task != reference.task:
        found["task"] = f"the task is {ours.task}, was {reference.task}"
    if ours.channels not in (0, reference.channels):
        found["channels"] = f"images have {ours.channels} channels, had {reference.channels}"
    return [
        Violation(rule=rule, text=text, fails=rule not in allowed) for rule, text in found.items()
    ]


def compute_distances(
    ours: SplitStatistics, theirs: SplitStatistics, thresholds: Drift
) -> list[Distance]:
    """The distances of the classes and of all features that both have, the largest one first."""
    shared = ours.features.keys() & theirs.features.keys()
    pairs = {name: (ours.features[name].counts, theirs.features[name].counts) for name in shared}
    pairs[LABELS] = align_labels(ours.labels, theirs.labels)
    return [
        Distance(
            feature=feature,
            jensen_shannon=js,
            l_infinity=linf,
            is_above=js > thresholds.max_js_distance or linf > thresholds.max_linf_distance,
        )
        for feature, js, linf in compare_histograms(pairs)
    ]
