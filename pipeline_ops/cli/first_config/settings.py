"""First values for image size, model and training, from the figures of a data set.

Pure rules without any file. `recipes.py` has the models and their trainings.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

from pipeline_ops.cli.first_config.recipes import (
    MANY_OBJECTS,
    MANY_PHOTOGRAPHS,
    OBJECTS,
    OBJECTS_OF_MANY_CLASSES,
    PHOTOGRAPHS,
    SMALL_IMAGES,
    Recipe,
    adapt_to_weights,
)

if TYPE_CHECKING:
    from pipeline_ops.cli.first_config.data_summary import DataSummary

_SMALL_SIDE, _MIN_SIDE, _MAX_SIDE = 64, 32, 224
"""Sides in pixels of the images of a classifier: up to which the small network is used, and the
limits for the other ones."""
_MIN_EQUAL_SIDE = 10
"""The smallest side of images that all have one size and keep it."""
_MIN_LONG_SIDE, _MAX_LONG_SIDE = 256, 640
"""Limits for the longer side of the images of a detector, in pixels."""
_SMALL_BOX_PIXELS = 20
"""The size that nine of ten boxes of a detector keep, if the limits allow it."""
_MIN_SCALED_SIDE = 96
"""The smallest longer side to which images are scaled to save time."""
_STEP_PIXELS = 32
"""A factor of all image sizes, as the networks need it."""
_MANY_IMAGES = 50_000
_MANY_CLASSES = 10
_MIN_EPOCHS, _MAX_EPOCHS = 10, 300
_MAX_SHARDS, _MANY_IMAGES_PER_SHARD = 64, 4000


@dataclasses.dataclass(frozen=True)
class FirstSettings:
    """Values with their reasons. `height` and `width` are in pixels, after `resize`."""

    channels: int
    height: int
    width: int
    size_reason: str
    recipe: Recipe
    global_batch_size: int
    epochs: int
    steps_per_epoch: float
    shards: int


def choose_settings(data: DataSummary, has_gpu: bool, weights: str = "") -> FirstSettings:
    """Chooses the values for a data set, without a limit of time.

    `weights` is the name of a file of weights to begin with.
    """
    is_detection = data.task == "detection"
    height, width, size_reason = _choose_detector_size(data) if is_detection else _choose_size(data)
    recipe = _choose_recipe(data, min(height, width), has_gpu)
    if not is_detection:
        recipe = adapt_to_weights(recipe, weights)
    num_train = max(1, data.num_images["train"])
    batch = _choose_batch(num_train, recipe.batch_size)
    steps_per_epoch = num_train / batch
    return FirstSettings(
        channels=1 if data.sample.is_grey else 3,
        height=height,
        width=width,
        size_reason=size_reason,
        recipe=recipe,
        global_batch_size=batch,
        epochs=min(_MAX_EPOCHS, max(_MIN_EPOCHS, round(recipe.steps / steps_per_epoch))),
        steps_per_epoch=steps_per_epoch,
        shards=min(max(8, num_train // _MANY_IMAGES_PER_SHARD), _MAX_SHARDS, num_train),
    )


def scale_size(settings: FirstSettings, factor: float) -> FirstSettings:
    """Scales height and width, unless the images are small already."""
    if max(settings.height, settings.width) * factor < _MIN_SCALED_SIDE:
        return settings
    height, width = (_round_size(side * factor) for side in (settings.height, settings.width))
    reason = f"{settings.size_reason}, scaled by {factor:g} to save time"
    reason = settings.size_reason if factor == 1 else reason
    return dataclasses.replace(settings, height=height, width=width, size_reason=reason)


def _choose_size(data: DataSummary) -> tuple[int, int, str]:
    """Height and width for a classifier: a square, unless all images are small and equal."""
    sizes = set(data.sample.sizes)
    height, width = min(sizes)
    if (
        len(sizes) == 1
        and _MIN_EQUAL_SIDE <= min(height, width) <= max(height, width) < _SMALL_SIDE
    ):
        return height, width, "the size of all images"
    median = statistics.median(min(size) for size in data.sample.sizes)
    side = min(_MAX_SIDE, max(_MIN_SIDE, _round_size(median)))
    return side, side, f"the shorter side of half of the images is at most {median:g} pixels"


def _choose_detector_size(data: DataSummary) -> tuple[int, int, str]:
    """Height and width for a detector, with the proportions of the median image."""
    height, width = (statistics.median(side) for side in zip(*data.sample.sizes, strict=True))
    sides = sorted(data.sample.box_sides)
    small = sides[len(sides) // 10] if sides else 0.0
    wanted = _SMALL_BOX_PIXELS / small if small else _MAX_LONG_SIDE
    longer = min(max(wanted, _MIN_LONG_SIDE), _MAX_LONG_SIDE, max(height, width))
    factor = longer / max(height, width)
    size = _round_size(height * factor), _round_size(width * factor)
    pixels = small * max(size)
    return *size, f"nine of ten boxes keep at least {pixels:.0f} pixels"


def _round_size(pixels: float) -> int:
    return max(_STEP_PIXELS, round(pixels / _STEP_PIXELS) * _STEP_PIXELS)


def _choose_batch(num_train: int, largest: int) -> int:
    """A power of two, so that an epoch has at least four steps if there are enough images."""
    return int(min(largest, 2 ** int(math.log2(max(2, num_train // 4)))))


def _choose_recipe(data: DataSummary, side: int, has_gpu: bool) -> Recipe:
    """A large model needs many images and a GPU."""
    is_large = has_gpu and data.total >= _MANY_IMAGES
    if data.task == "detection":
        if is_large:
            return MANY_OBJECTS
        return OBJECTS if len(data.labels) <= _MANY_CLASSES else OBJECTS_OF_MANY_CLASSES
    if side < _SMALL_SIDE:
        return SMALL_IMAGES
    return MANY_PHOTOGRAPHS if is_large else PHOTOGRAPHS
