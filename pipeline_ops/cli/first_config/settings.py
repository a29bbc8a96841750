"""First values for image size, model, training and time, from the figures of a data set.

A recipe is a model with a training that suits it. `measured` says what it reached on real data with
`trainyard init FOLDER` and `trainyard run`, without an edit. The time of a step is measured
(`jobs/model_check.py`). The other times are constants of a machine with two cores.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from typing import TYPE_CHECKING, Any

from pipeline_ops.config.model_catalogue import CATALOGUE

if TYPE_CHECKING:
    from pipeline_ops.cli.first_config.data_summary import DataSummary
    from pipeline_ops.jobs.model_check import StepTimes


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A model and its training.

    `steps` optimizer steps of `batch_size` examples are enough. With fewer than `min_steps`,
    smaller images are better. `augments` says whether training images are changed at random.
    """

    model: str
    parameters: dict[str, Any]
    reason: str
    batch_size: int
    steps: int
    min_steps: int
    measured: str
    learning_rate: str = "3e-3"
    augments: bool = True
    weights_hint: str = (
        "weights of an earlier model of yours: a published `version 3`, or `champion`"
    )


SMALL_IMAGES = Recipe(
    "digits_cnn",
    {},
    "a small network for small images",
    32,
    3000,
    500,
    "accuracy 0.98 to 0.99 on 1,400 images of handwritten digits, ten classes, in 90 seconds",
    learning_rate="1e-3",
    augments=False,
)
PHOTOGRAPHS = Recipe(
    "compact_cnn",
    {"width": 24},
    "small, learns from a few hundred images on CPUs",
    32,
    1500,
    500,
    "accuracy 0.78 on 473 cut-out playing cards of six classes, seven minutes on two cores",
    weights_hint="weights of an earlier model of yours, or of keras.applications "
    "(docs/own-model.md)",
)
MANY_PHOTOGRAPHS = dataclasses.replace(
    PHOTOGRAPHS,
    model="resnet50_v2",
    parameters={},
    reason="for many images, on GPUs",
    steps=20_000,
    measured="not measured yet",
)
OBJECTS = Recipe(
    "center_detector",
    {"width": 24},
    "small, learns from a few hundred images on CPUs",
    16,
    2000,
    800,
    "mAP@0.5 0.93 on 270 photographs of playing cards and 0.90 on 205 microscope pictures, means "
    "of three seeds, 13 to 19 minutes on two cores",
)
OBJECTS_OF_MANY_CLASSES = dataclasses.replace(
    OBJECTS, parameters={"width": 48}, steps=4000, measured="not measured yet"
)
MANY_OBJECTS = dataclasses.replace(
    OBJECTS,
    model="retinanet",
    parameters={"backbone": "ResNet50", "normalization": "group"},
    reason="for many images, on GPUs",
    steps=20_000,
    measured="not measured yet",
)


def _adapt_to_weights(recipe: Recipe, weights: str) -> Recipe:
    """Takes the model that the name of a file of keras.applications names, if it names one.

    An example is `resnet50v2_weights_..._notop.h5`.
    """
    own = weights.lower().replace("_", "")
    known = [
        name
        for name, model in CATALOGUE.items()
        if model.module == "backbones" and name.replace("_", "") in own
    ]
    if not known:
        return recipe
    return dataclasses.replace(
        recipe,
        model=max(known, key=len),
        parameters={},
        reason="the model of the weights",
        learning_rate="3e-4",
        measured="not measured, because it depends on the weights",
    )


_SMALL_SIDE, _MIN_SIDE, _MAX_SIDE = 64, 32, 224
"""Sides of a classifier's images, in pixels. Below the first one, the small network is used. The
others limit the sides for the other networks."""
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
_MIN_MAX_BOXES, _MAX_BOXES_STEP = 128, 32
_MIN_EPOCHS, _MAX_EPOCHS = 10, 300
_MAX_SHARDS, _MANY_IMAGES_PER_SHARD = 64, 4000


@dataclasses.dataclass(frozen=True)
class FirstSettings:
    """Values for a config. `height` and `width` are in pixels, after `resize`."""

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
        recipe = _adapt_to_weights(recipe, weights)
    num_train = max(1, data.num_images["train"])
    # A power of two, so that an epoch has at least four steps if there are enough images.
    batch = int(min(recipe.batch_size, 2 ** int(math.log2(max(2, num_train // 4)))))
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


def _choose_recipe(data: DataSummary, side: int, has_gpu: bool) -> Recipe:
    """A large model needs many images and a GPU."""
    is_large = has_gpu and data.total >= _MANY_IMAGES
    if data.task == "detection":
        if is_large:
            most_boxes = math.ceil(data.most_boxes / _MAX_BOXES_STEP) * _MAX_BOXES_STEP
            sizes = {"max_boxes": max(_MIN_MAX_BOXES, most_boxes)}
            return dataclasses.replace(MANY_OBJECTS, parameters=MANY_OBJECTS.parameters | sizes)
        return OBJECTS if len(data.labels) <= _MANY_CLASSES else OBJECTS_OF_MANY_CLASSES
    if side < _SMALL_SIDE:
        return SMALL_IMAGES
    return MANY_PHOTOGRAPHS if is_large else PHOTOGRAPHS


_FIXED_SECONDS = 40.0
"""The starts of Airflow and of four jobs, with their imports, and the export."""
_INPUT_FACTOR = 1.15
"""The time of a step with random changes of its images, compared with one without."""
_EPOCH_SECONDS = 0.5
"""The end of an epoch without its validation: a checkpoint and the report."""
_IMAGE_SECONDS = 0.005
"""The time of an image in preprocess and evaluate besides decoding and the model."""
_SCALES = (1.0, 0.75, 0.5)
"""The factors of height and width that are tried, unless the images are small already."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """Settings that fit a number of minutes, if any do.

    `seconds` is the time of the whole run. With fewer than `needed_steps` optimizer steps, a model
    is hardly of use.
    """

    settings: FirstSettings
    seconds: float
    epoch_seconds: float
    needed_steps: int

    @property
    def num_steps(self) -> int:
        return round(self.settings.epochs * self.settings.steps_per_epoch)

    @property
    def shortage(self) -> str:
        """Says that the training is too short to be of use, and is empty otherwise."""
        needed = self.needed_steps
        if self.num_steps >= needed:
            return ""
        steps_per_second = self.settings.steps_per_epoch / self.epoch_seconds
        more = self.seconds + (needed - self.num_steps) / steps_per_second
        return (
            f"only {self.num_steps:,} optimizer steps fit, and a useful model needs about "
            f"{needed:,}: give --minutes {math.ceil(more / 60) + 1}"
        )

    def describe(self) -> str:
        cores = len(os.sched_getaffinity(0))
        rest = self.seconds - self.settings.epochs * self.epoch_seconds
        return (
            f"about {format_minutes(self.seconds)} on this machine ({cores} cores): "
            f"{self.settings.epochs} epochs of {self.epoch_seconds:.1f} s, and {rest:.0f} s for "
            "all else"
        )


def fit_to_budget(
    settings: FirstSettings, data: DataSummary, times: StepTimes, minutes: float
) -> Budget:
    """Reduces epochs, and the size of the images if too few steps would be left.

    `times` were measured with the size in `settings`.
    """
    longer, fixed = max(settings.height, settings.width), _FIXED_SECONDS + 2 * times.start
    fixed += data.total * (_IMAGE_SECONDS + data.sample.decode_seconds)
    # Of a few images, even all epochs are fewer steps than the recipe asks for.
    needed_steps = min(settings.recipe.min_steps, round(settings.epochs * settings.steps_per_epoch))
    for factor in _SCALES:
        height, width, reason = settings.height, settings.width, settings.size_reason
        if factor < 1 and longer * factor >= _MIN_SCALED_SIDE:
            height, width = _round_size(height * factor), _round_size(width * factor)
            reason = f"{reason}, scaled by {factor:g} to save time"
        area = height * width / (settings.height * settings.width)
        step, evaluation = times.step * _INPUT_FACTOR * area, times.evaluation * area
        epoch = settings.steps_per_epoch * step + _EPOCH_SECONDS
        epoch += data.num_images["validation"] * evaluation
        rest = fixed + data.num_images["test"] * evaluation
        epochs = max(1, min(settings.epochs, int((60 * minutes - rest) / epoch)))
        fitting = dataclasses.replace(
            settings, height=height, width=width, size_reason=reason, epochs=epochs
        )
        budget = Budget(fitting, rest + epochs * epoch, epoch, needed_steps)
        if not budget.shortage:
            break
    return budget


def format_minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
