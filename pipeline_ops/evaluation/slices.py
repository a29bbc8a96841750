"""The value of a test example in each slice.

A value comes from the example's key, from the size of its file, or from a feature that is stored
with it. Pure functions of one batch. The config defines the slices (`evaluate.slices`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline_ops.config.evaluate import Slice
from pipeline_ops.errors import DataError
from pipeline_ops.input.saved_model_client import EncodedBatch

_BUILT_IN = ("folder", "image_bytes")
_MAX_VALUES = 100
NOTHING = "(none)"
"""The value of an example that lacks the feature, or whose key has no folder."""


def wanted_features(slices: Sequence[Slice]) -> list[str]:
    """Returns the features that have to be read with the examples."""
    return sorted({part.by for part in slices if part.by not in _BUILT_IN})


def values_of(batch: EncodedBatch, slices: Sequence[Slice]) -> dict[str, list[str]]:
    """Returns the value of every example of a batch, as text, for each slice."""
    return {
        part.title: [_name(value, part) for value in _raw_values(batch, part)] for part in slices
    }


def join_values(
    batches: Mapping[str, list[list[str]]], slices: Sequence[Slice]
) -> dict[str, np.ndarray]:
    """Joins the values of all batches: text [N] by slice.

    Raises:
      DataError: no example has the feature, or it has too many values for a table.
    """
    found = {}
    for part in slices:
        values = np.array([value for batch in batches[part.title] for value in batch])
        distinct = set(values.tolist())
        if part.by not in _BUILT_IN and distinct == {NOTHING}:
            raise DataError(
                f"evaluate.slices: no test example has the feature {part.by!r}; "
                "correct `by`, or store it with the examples"
            )
        if len(distinct) > _MAX_VALUES:
            raise DataError(
                f"evaluate.slices: {part.title} has {len(distinct)} values, "
                f"and {_MAX_VALUES} can be looked at one by one; "
                "give it edges, or folder_depth"
            )
        found[part.title] = values
    return found


def _raw_values(batch: EncodedBatch, part: Slice) -> Sequence[str | bytes | float | None]:
    if part.by == "folder":
        return [_folder(key, part.folder_depth) for key in batch.keys]
    if part.by == "image_bytes":
        return [len(image) for image in batch.images]
    return batch.features[part.by]


def _folder(key: str, depth: int | None) -> str | None:
    parts = key.split("/")[:-1]
    return "/".join(parts[:depth]) or None


def _name(value: str | bytes | float | None, part: Slice) -> str:
    """Returns the value as text.

    Raises:
      DataError: the value is text, but the slice has edges.
    """
    if value is None:
        return NOTHING
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if not part.edges:
        return value if isinstance(value, str) else f"{value:g}"
    if isinstance(value, str):
        raise DataError(
            f"evaluate.slices: {part.title} has edges, but {value!r} is no number; "
            "leave the edges out"
        )
    return _range(value, part.edges)


def _range(value: float, edges: Sequence[float]) -> str:
    index = bisect_right(edges, value)
    if index == 0:
        return f"below {edges[0]:g}"
    return (
        f"{edges[index - 1]:g} and more"
        if index == len(edges)
        else f"{edges[index - 1]:g} to {edges[index]:g}"
    )
