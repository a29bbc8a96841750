"""Renames, merges and drops classes of labels and of boxes.

    - map_classes: {rename: {kitten: cat, puppy: dog}, drop: [unclear]}

Classes with the same new name are merged. An example for classification whose class is dropped is
skipped. An example for detection loses the boxes of the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pydantic

from beam_jobs.stages.boxes import rename_classes
from beam_jobs.stages.stage import Example, Names, find_unknown_class, parameters


@parameters
class MapClasses:
    rename: dict[str, str] = dataclasses.field(default_factory=dict)
    """New names by old names. Two classes with one new name become one class."""
    drop: Names | None = None
    """The classes to drop, by their old names."""

    @pydantic.model_validator(mode="after")
    def _validate(self) -> MapClasses:
        if not self.rename and not self.drop:
            raise ValueError("needs rename, drop, or both")
        if both := sorted({*self.rename} & {*(self.drop or ())}):
            raise ValueError(f"{', '.join(both)} cannot be both renamed and dropped")
        return self


def map_classes(example: Example, parameters: MapClasses) -> Example:
    """Raises Skip: class."""
    return rename_classes(example, map_class, parameters)


def map_class(name: str, parameters: MapClasses) -> str | None:
    return None if name in (parameters.drop or ()) else parameters.rename.get(name, name)


def check(parameters: MapClasses, task: str, class_names: Sequence[str]) -> str | None:
    return find_unknown_class([*parameters.rename, *(parameters.drop or ())], class_names)
