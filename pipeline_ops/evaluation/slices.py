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
MISSING_VALUE = "(none)"
"""The value of an example that lacks the feature, or whose key has no folder."""


def list_required_features(slices: Sequence[Slice]) -> list[str]:
    """Returns the features that have to be read with the examples."""
    return sorted({part.by for part in slices if part.by not in _BUILT_IN})


def compute_slice_values(batch: EncodedBatch, slices: Sequence[Slice]) -> dict[str, list[str]]:
    """Returns the value of every example of a batch, as text, for each slice."""
    return {
        part.title: [_format_value(value, part) for value in _read_raw_values(batch, part)]
        for part in slices
    }


def join_slice_values(
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
        found[part.title] = values
    return found


def _read_raw_values(batch: EncodedBatch, part: Slice) -> Sequence[str | bytes | float | None]:
    if part.by == "folder":
        return [_extract_folder(key, part.folder_depth) for key in batch.keys]
    if part.by == "image_bytes":
        return [len(image) for image in batch.images]
    return batch.features[part.by]


def _extract_folder(key: str, depth: int | None) -> str | None:
    parts = key.split("/")[:-1]
    return "/".join(parts[:depth]) or None


def _format_value(value: str | bytes | float | None, part: Slice) -> str:
    """Returns the value as text.

    Raises:
      DataError: the value is text, but the slice has edges.
    """
    if value is None:
        return MISSING_VALUE
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if not part.edges:
        return value if isinstance(value, str) else f"{value:g}"
    if isinstance(value, str):
        raise DataError(
            f"evaluate.slices: {part.title} has edges, but {value!r} is not a number. "
            "Remove the edges."
        )
    return _format_range(value, part.edges)


def _format_range(value: float, edges: Sequence[float]) -> str:
    index = bisect_right(edges, value)
    if index == 0:
        return f"below {edges[0]:g}"
    end = "and more" if index == len(edges) else f"to {edges[index]:g}"
    return f"{edges[index - 1]:g} {end}"
