"""The value of each test example in each slice of `evaluate.slices`.

Legend: N examples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipeline_ops.config.evaluate import Slice
from pipeline_ops.errors import DataError
from pipeline_ops.served.client import EncodedBatch

MISSING_VALUE = "(none)"
"""The slice of an example that lacks the feature, or whose key has no folder."""
_BUILT_IN = ("folder", "image_bytes")
_MAX_VALUES = 100


def list_features(slices: Sequence[Slice]) -> list[str]:
    """Returns the features of the stored examples that the slices need."""
    return sorted({part.by for part in slices if part.by not in _BUILT_IN})


class SliceValues:
    """Collects the value of every example for each slice, batch by batch."""

    def __init__(self, slices: Sequence[Slice]):
        self._values = [(part, list[str]()) for part in slices]

    def add(self, batch: EncodedBatch) -> None:
        for part, values in self._values:
            values += [_format_value(value, part) for value in _read_raw_values(batch, part)]

    def join(self) -> dict[str, np.ndarray]:
        """Returns the values of all examples as text [N], by slice.

        Raises DataError if no example has the feature, or if it has too many values for a table.
        """
        for part, values in self._values:
            distinct = set(values)
            if part.by not in _BUILT_IN and distinct == {MISSING_VALUE}:
                raise DataError(
                    f"evaluate.slices: no test example has the feature {part.by!r}. "
                    "Correct `by`, or store the feature with the examples."
                )
            if len(distinct) > _MAX_VALUES:
                raise DataError(
                    f"evaluate.slices: {part.title} has {len(distinct)} values, "
                    f"at most {_MAX_VALUES} are allowed. Set edges or folder_depth."
                )
        return {part.title: np.array(values) for part, values in self._values}


def _read_raw_values(batch: EncodedBatch, part: Slice) -> Sequence[str | bytes | float | None]:
    if part.by == "folder":
        folders = (key.split("/")[:-1][: part.folder_depth] for key in batch.keys)
        return ["/".join(folder) or None for folder in folders]
    if part.by == "image_bytes":
        return [len(image) for image in batch.images]
    return batch.features[part.by]


def _format_value(value: str | bytes | float | None, part: Slice) -> str:
    if value is None:
        return MISSING_VALUE
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    edges = part.edges
    if not edges:
        return value if isinstance(value, str) else f"{value:g}"
    if isinstance(value, str):
        raise DataError(
            f"evaluate.slices: {part.title} has edges, but {value!r} is not a number. "
            "Remove the edges."
        )
    index = bisect_right(edges, value)
    if index == 0:
        return f"below {edges[0]:g}"
    end = "and more" if index == len(edges) else f"to {edges[index]:g}"
    return f"{edges[index - 1]:g} {end}"


def iterate_values(slices: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yields name, value and the indexes of its examples, for each value of each slice.

    They have the order of the config and of the values. `slices` has the value (text, [N]) of every
    example, by the slice's name.
    """
    for name, values in slices.items():
        # Ranges are sorted by their lower end, which begins their text, other values by name.
        for value in sorted(set(values.tolist()), key=lambda each: (_parse_lower_end(each), each)):
            yield name, value, np.flatnonzero(values == value)


def _parse_lower_end(value: str) -> float:
    word = value.split(" ")[0]
    try:
        return float("-inf") if word == "below" else float(word)
    except ValueError:
        return float("inf")
