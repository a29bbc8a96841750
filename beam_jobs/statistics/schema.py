"""The schema of a data set: inferred from the first data set, and enforced on the later ones."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from beam_jobs.statistics.measure import Measurements
from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.config.preprocess import SchemaRules


class DataSchema(BaseModel, frozen=True):
    """The schema of a data set.

    `height` and `width` are the least and the largest of stored images, in pixels. They are equal
    if the shape is fixed. `has_boxes` is true if there is at least one box.
    """

    task: Literal["classification", "detection"]
    class_names: list[str]
    channels: int
    height: tuple[int, int]
    width: tuple[int, int]
    has_boxes: bool


class Violation(BaseModel, frozen=True):
    """A difference between a data set and its reference.

    `rule` is the key in `preprocess.schema` that decides whether it is allowed.
    """

    rule: str
    text: str
    fails: bool


def infer_schema(figures: DatasetFigures, measurements: Measurements) -> DataSchema:
    """Infers the schema of a data set. `measurements` covers all its splits.

    Without examples, all sizes and the number of channels are 0.
    """
    least_height, largest_height, least_width, largest_width = measurements.sizes or (0,) * 4
    return DataSchema(
        task=figures.task,
        class_names=figures.class_names,
        channels=figures.image_shape[2],
        height=(least_height, largest_height),
        width=(least_width, largest_width),
        has_boxes=bool(measurements.by_class),
    )


def compare_schemas(ours: DataSchema, reference: DataSchema, rules: SchemaRules) -> list[Violation]:
    """Returns all differences that have a rule.

    Image sizes have no rule. A change of size is reported as drift.
    """
    found = []
    our_names, known_names = set(ours.class_names), set(reference.class_names)
    if new := [name for name in ours.class_names if name not in known_names]:
        found.append(("new_classes", f"new classes: {', '.join(new)}"))
    if missing := [name for name in reference.class_names if name not in our_names]:
        found.append(("missing_classes", f"missing classes: {', '.join(missing)}"))
    if ours.task != reference.task:
        found.append(("task", f"the task is {ours.task}, was {reference.task}"))
    if ours.channels not in (0, reference.channels):
        found.append(
            ("channels", f"images have {ours.channels} channels, had {reference.channels}")
        )
    return [
        Violation(rule=rule, text=text, fails=getattr(rules, rule) == "fail")
        for rule, text in found
    ]
