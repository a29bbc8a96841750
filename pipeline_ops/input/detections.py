"""Detections of a served model and true boxes of shards, for the comparison of the two.

Legend: N images, D detections of an image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipeline_ops.artifacts.dataset import (
    BOX_EDGES,
    BOX_IS_CROWD,
    BOX_LABEL,
    ENCODED,
    KEY,
)

OUTPUTS = ("boxes", "scores", "classes", "num_detections")
"""The outputs of a detector's `serving_default`, described in `artifacts.results.SAVED_MODEL`."""


@dataclasses.dataclass(frozen=True)
class TrueBoxes:
    """One image and its true boxes.

    Attributes:
      boxes: float [n, 4], ymin xmin ymax xmax as fractions.
      classes: int [n].
      is_crowd: bool [n].
    """

    key: str
    image: bytes
    boxes: np.ndarray
    classes: np.ndarray
    is_crowd: np.ndarray


def read_true_boxes(
    paths: Sequence[str], removed: Sequence[Sequence[int]] = ()
) -> Iterator[TrueBoxes]:
    """Yields every example of the shards, in their order."""
    from pipeline_ops.input.reading import read_records, translate_read_errors
    from pipeline_ops.input.tensorflow_start import tf

    features = {name: tf.io.FixedLenFeature([], tf.string) for name in (ENCODED, KEY)}
    features |= {name: tf.io.VarLenFeature(tf.float32) for name in BOX_EDGES}
    features |= {name: tf.io.VarLenFeature(tf.int64) for name in (BOX_LABEL, BOX_IS_CROWD)}

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parsed = tf.io.parse_single_example(serialized, features)
        corners = tf.stack([parsed[edge].values for edge in BOX_EDGES], -1)
        return (
            parsed[KEY],
            parsed[ENCODED],
            corners,
            parsed[BOX_LABEL].values,
            parsed[BOX_IS_CROWD].values,
        )

    with translate_read_errors(paths):
        for key, image, boxes, classes, is_crowd in (
            read_records(paths, removed).map(parse).prefetch(8).as_numpy_iterator()
        ):
            yield TrueBoxes(
                key.decode("utf-8", "backslashreplace"), image, boxes, classes, is_crowd > 0
            )


def pack_detections(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns float32 [N, D, 6]: ymin, xmin, ymax, xmax, score, class. Padding is all 0."""
    scores, classes = (
        np.asarray(outputs[name], np.float32)[..., None] for name in ("scores", "classes")
    )
    return np.concatenate([np.asarray(outputs["boxes"], np.float32), scores, classes], axis=-1)
