"""The first pictures of a training as the model saw them, `seen.png`, for a person.

They are read again when the training is over, which takes no time of a step and changes none: the
changes of an example depend on seed, epoch and example alone (`input/augment.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from pipeline_ops.input.augment import MixedLabels
from pipeline_ops.models.boxes import Boxes
from pipeline_ops.pages.drawing import LabelledBox, count_boxes, draw_cell, draw_grid

NUM_SEEN = 8
_COLUMNS, _SIDE = 4, 160


def draw_seen(images_NHWC: np.ndarray, labels: Any, class_names: Sequence[str]) -> bytes:
    """Draws a PNG of images with their label or boxes.

    Args:
      images_NHWC: uint8 or float32 with values of 0 to 255, and 1 or 3 channels. A picture with
        other values, which an augmentation may make, is scaled from its least to its largest one,
        and the line below it says so.
      labels: int64 [N], `MixedLabels` or `Boxes`.
    """
    cells = []
    described = _describe(labels, class_names)
    for image_HWC, (boxes, title) in zip(np.asarray(images_NHWC), described, strict=True):
        image, remark = _to_image(image_HWC)
        cells.append(draw_cell(image, boxes, title, remark, side=_SIDE))
    return draw_grid(cells, min(_COLUMNS, len(cells)))


def _to_image(image_HWC: np.ndarray) -> tuple[Image.Image | None, str]:
    """Returns an image, and how it was scaled if it was. None for one with NaN or infinity."""
    low, high = float(image_HWC.min()), float(image_HWC.max())
    if not np.isfinite([low, high]).all():
        return None, "values are not finite"
    remark, pixels = "", image_HWC.astype(np.float32)
    if low < 0 or high > 255:
        remark = f"scaled from {low:.4g}..{high:.4g}"
        pixels = (pixels - low) * (255 / (high - low)) if high > low else np.zeros_like(pixels)
    values = np.rint(pixels).astype(np.uint8)
    return Image.fromarray(values if values.shape[-1] == 3 else values[..., 0]), remark


def _describe(
    labels: Any, class_names: Sequence[str]
) -> Iterator[tuple[Sequence[LabelledBox], str]]:
    """Yields boxes and title of each image."""
    match labels:
        case Boxes():
            for corners, classes in zip(
                labels.corners.numpy(), labels.classes.numpy(), strict=True
            ):
                numbers = np.flatnonzero(classes >= 0)
                yield (
                    [LabelledBox(corners[i], class_names[classes[i]]) for i in numbers],
                    count_boxes(len(numbers)),
                )
        case MixedLabels():
            columns = (labels.first.numpy(), labels.second.numpy(), labels.share.numpy())
            for first, second, share in zip(*columns, strict=True):
                names = (
                    f"{share:.0%} {class_names[first]}",
                    f"{1 - share:.0%} {class_names[second]}",
                )
                yield [], class_names[first] if first == second else " + ".join(names)
        case _:
            for label in labels.numpy():
                yield [], class_names[label]
