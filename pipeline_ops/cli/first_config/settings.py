"""First values for image size, model, training and time, from the figures of a data set.

A recipe is a model with a training that suits it. `measured` says what it reached on real data with
`trainyard init FOLDER` and `trainyard run`, without an edit. The time of a step is measured
(`job/model_check.py`). The other times are constants of a machine with two cores.
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
    from pipeline_ops.job.model_check import StepTimes


_EARLIER = "weights of an earlier model of yours"


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
    weights_hint: str = f"{_EARLIER}: a published `version 3`, or `champion`"


_ON_CPUS = "small, learns from a few hundred images on CPUs"
_UNMEASURED: dict[str, Any] = {"measured": "not measured yet"}
_ON_GPUS: dict[str, Any] = {"reason": "for many images, on GPUs", "steps": 20_000, **_UNMEASURED}
_DIGITS = "accuracy 0.98 to 0.99 on 1,400 images of handwritten digits, ten classes, in 90 seconds"
_CUT_OUT = "accuracy 0.78 on 473 cut-out playing cards of six classes, seven minutes on two cores"
_CARDS = (
    "mAP@0.5 0.93 on 270 photographs of playing cards and 0.90 on 205 microscope pictures, means "
    "of three seeds, 13 to 19 minutes on two cores"
)
_ZOO = f"{_EARLIER}, or of keras.applications (docs/own-model.md)"
_SMALL_NET = "a small network for small images"
SMALL_IMAGES = Recipe("digits_cnn", {}, _SMALL_NET, 32, 3000, 500, _DIGITS, "1e-3", augments=False)
PHOTOGRAPHS = Recipe(
    "compact_cnn", {"width": 24}, _ON_CPUS, 32, 1500, 500, _CUT_OUT, weights_hint=_ZOO
)
MANY_PHOTOGRAPHS = dataclasses.replace(PHOTOGRAPHS, model="resnet50_v2", parameters={}, **_ON_GPUS)
OBJECTS = Recipe("center_detector", {"width": 24}, _ON_CPUS, 16, 2000, 800, _CARDS)
OBJECTS_OF_MANY_CLASSES = dataclasses.replace(
    OBJECTS, parameters={"width": 48}, steps=4000, **_UNMEASURED
)
MANY_OBJECTS = dataclasses.replace(
    OBJECTS,
    model="retinanet",
    parameters={"backbone": "ResNet50", "normalization": "group"},
    **_ON_GPUS,
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
_STEP_PIXELS = 32
"""A factor of all image sizes, as the networks need it."""
_MANY_IMAGES, _MANY_CLASSES = 50_000, 10
_MIN_MAX_BOXES, _MAX_BOXES_STEP = 128, 32
_MIN_EPOCHS, _MAX_EPOCHS = 10, 300
_MAX_SHARDS, _MANY_IMAGES_PER_SHARD = 64, 4000
_FIXED_SECONDS = 40.0
"""The starts of Airflow and of four jobs, with their imports, and the export."""
_INPUT_FACTOR = 1.15
"""The time of a step with random changes of its images, compared with one without."""
_EPOCH_SECONDS = 0.5
"""The end of an epoch without its validation: a checkpoint and the report."""
_IMAGE_SECONDS = 0.005
"""The time of an image in preprocess and evaluate besides decoding and the model."""
_SCALES, _MIN_SCALED_SIDE = (0.75, 0.5), 96
"""The factors of height and width that save time, and the smallest longer side after them."""


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

    @property
    def num_steps(self) -> int:
        return round(self.epochs * self.steps_per_epoch)


def choose_settings(data: DataSummary, has_gpu: bool, weights: str = "") -> FirstSettings:
    """Chooses the values for a data set, without a limit of time.

    `weights` is the name of a file of weights to begin with.
    """
    choose_size = _choose_detector_size if data.task == "detection" else _choose_size
    height, width, size_reason = choose_size(data)
    recipe = _choose_recipe(data, min(height, width), has_gpu, weights)
    num_train = max(1, data.num_images["train"])
    # A power of two, so that an epoch has at least four steps if there are enough images.
    batch = int(min(recipe.batch_size, 2 ** int(math.log2(max(2, num_train // 4)))))
    steps_per_epoch = num_train / batch
    return FirstSettings(
        1 if data.sample.is_grey else 3,
        height,
        width,
        size_reason,
        recipe,
        batch,
        epochs=min(_MAX_EPOCHS, max(_MIN_EPOCHS, round(recipe.steps / steps_per_epoch))),
        steps_per_epoch=steps_per_epoch,
        shards=min(max(8, num_train // _MANY_IMAGES_PER_SHARD), _MAX_SHARDS, num_train),
    )


def _choose_size(data: DataSummary) -> tuple[int, int, str]:
    """Height and width for a classifier: a square, unless all images are small and equal."""
    (height, width), *others = set(data.sample.sizes)
    is_small = _MIN_EQUAL_SIDE <= min(height, width) <= max(height, width) < _SMALL_SIDE
    if is_small and not others:
        return height, width, "the size of all images"
    median = statistics.median(map(min, data.sample.sizes))
    side = min(_MAX_SIDE, max(_MIN_SIDE, _round_size(median)))
    return side, side, f"the shorter side of half of the images is at most {median:g} pixels"


def _choose_detector_size(data: DataSummary) -> tuple[int, int, str]:
    """Height and width for a detector, with the proportions of the median image."""
    height, width = map(statistics.median, zip(*data.sample.sizes, strict=True))
    sides = sorted(data.sample.box_sides)
    small = sides[len(sides) // 10] if sides else 0.0
    wanted = _SMALL_BOX_PIXELS / small if small else _MAX_LONG_SIDE
    longer = min(max(wanted, _MIN_LONG_SIDE), _MAX_LONG_SIDE, max(height, width))
    factor = longer / max(height, width)
    size = _round_size(height * factor), _round_size(width * factor)
    return *size, f"nine of ten boxes keep at least {small * max(size):.0f} pixels"


def _round_size(pixels: float) -> int:
    return max(_STEP_PIXELS, round(pixels / _STEP_PIXELS) * _STEP_PIXELS)


def _choose_recipe(data: DataSummary, side: int, has_gpu: bool, weights: str) -> Recipe:
    """A large model needs many images and a GPU.

    The name of a file of keras.applications tells the model of a classifier, such as
    `resnet50v2_weights_..._notop.h5`.
    """
    is_large = has_gpu and data.total >= _MANY_IMAGES
    if data.task == "detection":
        if is_large:
            most = max([_MIN_MAX_BOXES, *(len(each.boxes or ()) for each in data.found.records)])
            sizes = {"max_boxes": math.ceil(most / _MAX_BOXES_STEP) * _MAX_BOXES_STEP}
            return dataclasses.replace(MANY_OBJECTS, parameters=MANY_OBJECTS.parameters | sizes)
        return OBJECTS if len(data.labels) <= _MANY_CLASSES else OBJECTS_OF_MANY_CLASSES
    recipe = MANY_PHOTOGRAPHS if is_large else PHOTOGRAPHS
    recipe = SMALL_IMAGES if side < _SMALL_SIDE else recipe
    backbones = [name for name, model in CATALOGUE.items() if model.module == "backbones"]
    file = weights.lower().replace("_", "")
    if not (known := [name for name in backbones if name.replace("_", "") in file]):
        return recipe
    return dataclasses.replace(
        recipe,
        model=max(known, key=len),
        parameters={},
        reason="the model of the weights",
        learning_rate="3e-4",
        measured="not measured, because it depends on the weights",
    )


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
    def shortage(self) -> str:
        """Says that the training is too short to be of use, and is empty otherwise."""
        missing = self.needed_steps - self.settings.num_steps
        if missing <= 0:
            return ""
        seconds = self.seconds + missing * self.epoch_seconds / self.settings.steps_per_epoch
        return (
            f"only {self.settings.num_steps:,} optimizer steps fit, and a useful model needs about "
            f"{self.needed_steps:,}: give --minutes {math.ceil(seconds / 60) + 1}"
        )

    def describe(self) -> str:
        rest = self.seconds - self.settings.epochs * self.epoch_seconds
        return (
            f"about {format_minutes(self.seconds)} on this machine "
            f"({len(os.sched_getaffinity(0))} cores): {self.settings.epochs} epochs of "
            f"{self.epoch_seconds:.1f} s, and {rest:.0f} s for all else"
        )


def fit_to_budget(
    settings: FirstSettings, data: DataSummary, times: StepTimes, minutes: float
) -> Budget:
    """Reduces epochs, and the size of the images if too few steps would be left.

    `times` were measured with the size in `settings`.
    """
    fixed = _FIXED_SECONDS + 2 * times.start
    fixed += data.total * (_IMAGE_SECONDS + data.sample.decode_seconds)
    # Of a few images, even all epochs are fewer steps than the recipe asks for.
    needed_steps = min(settings.recipe.min_steps, settings.num_steps)
    longer = max(settings.height, settings.width)
    for factor in (1, *(each for each in _SCALES if longer * each >= _MIN_SCALED_SIDE)):
        scaled = settings
        if factor < 1:
            scaled = dataclasses.replace(
                settings,
                height=_round_size(settings.height * factor),
                width=_round_size(settings.width * factor),
                size_reason=f"{settings.size_reason}, scaled by {factor:g} to save time",
            )
        area = scaled.height * scaled.width / (settings.height * settings.width)
        epoch = _EPOCH_SECONDS + settings.steps_per_epoch * times.step * _INPUT_FACTOR * area
        epoch += data.num_images["validation"] * times.evaluation * area
        rest = fixed + data.num_images["test"] * times.evaluation * area
        epochs = max(1, min(settings.epochs, int((60 * minutes - rest) / epoch)))
        scaled = dataclasses.replace(scaled, epochs=epochs)
        budget = Budget(scaled, rest + epochs * epoch, epoch, needed_steps)
        if not budget.shortage:
            break
    return budget


def format_minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
