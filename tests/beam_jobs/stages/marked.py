"""Images with one white rectangle, and the box of it:
whatever moves pixels must move the box to where the white is."""

from __future__ import annotations

import numpy as np

from beam_jobs.stages.stage import Box, Example


def marked(
    height: int, width: int, box: tuple[int, int, int, int], channels: int = 3, **more
) -> Example:
    """An example for detection: black, with a white rectangle at (ymin, xmin, ymax, xmax)."""
    ymin, xmin, ymax, xmax = box
    image = np.zeros((height, width, channels), np.uint8)
    image[ymin:ymax, xmin:xmax] = 255
    return Example(
        "wall.png", "", b"the file", image, boxes=(Box(ymin, xmin, ymax, xmax, "sign"),), **more
    )


def white_part(image: np.ndarray) -> tuple[int, int, int, int]:
    """(ymin, xmin, ymax, xmax) of what is more white than black."""
    rows, columns = np.nonzero(image[:, :, 0] > 127)
    return int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1


def corners(box: Box) -> tuple[float, float, float, float]:
    return box.ymin, box.xmin, box.ymax, box.xmax
