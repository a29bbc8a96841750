"""The recipes of first configs: models with the training that was measured to suit them.

A recipe is chosen by the figures of a data set. Each says what it reached on real data, always with
`trainyard init FOLDER` and `trainyard run`, without an edit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline_ops.config.model_catalogue import CATALOGUE


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A model and its training.

    `steps` optimizer steps of `batch_size` examples are enough. With fewer than `min_steps` at
    hand, smaller images are better. `training` has the lines of the config between the batch size
    and the gate. `weights_hint` says which weights to begin with would help.
    """

    model: str
    parameters: Mapping[str, Any]
    reason: str
    batch_size: int
    steps: int
    min_steps: int
    training: str
    measured: str
    weights_hint: str = (
        "weights of an earlier model of yours: a published `version 3`, or `champion`"
    )


_AVERAGED = """\
  optimizer: # its averaged weights at the end of a cosine schedule become the model
    name: adamw # Adam with weight decay
    learning_rate: {rate} # [*] lower it if the loss jumps
    weight_decay: 1e-3 # against overfitting
    clip: {{global_norm: 10.0}} # limits the step of a single batch
    average_weights: 0.99 # the share of the average that a step keeps
    schedule: {{type: cosine, warmup_steps: 100, end_factor: 0.02}} # from 0 to the rate, then down
  best_checkpoint: {{monitor: {monitor}}} # the best epoch by the gate's metric
"""
_INPUT = """\
  input: # random changes of the training images; without them, few images are learned by heart
    augment: # [*] no flip if left and right differ
      {{flip_left_right: true, scale: {{min: 0.8, max: 1.3}}, shift: 0.1, brightness: 0.1, \
contrast: 0.2, saturation: 0.2{more}}}
"""
_DETECTOR_TRAINING = _INPUT.format(more=", mosaic: 0.3") + _AVERAGED.format(
    rate="3e-3", monitor="validation_map_50"
)
_CLASSIFIER_TRAINING = _INPUT.format(more="") + _AVERAGED.format(
    rate="3e-3", monitor="validation_accuracy"
)
_FINE_TUNING = _INPUT.format(more="") + _AVERAGED.format(rate="3e-4", monitor="validation_accuracy")
_SMALL_IMAGE_TRAINING = _AVERAGED.format(rate="1e-3", monitor="validation_accuracy")

SMALL_IMAGES = Recipe(
    "digits_cnn",
    {},
    "a small network for small images",
    32,
    3000,
    500,
    _SMALL_IMAGE_TRAINING,
    "accuracy 0.98 to 0.99 on 1,400 images of handwritten digits, ten classes, in 90 seconds",
)
PHOTOGRAPHS = Recipe(
    "compact_cnn",
    {"width": 24},
    "small, learns from a few hundred images on CPUs",
    32,
    1500,
    500,
    _CLASSIFIER_TRAINING,
    "accuracy 0.78 on 473 cut-out playing cards of six classes, seven minutes on two cores",
    "weights of an earlier model of yours, or of keras.applications (docs/own-model.md)",
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
    _DETECTOR_TRAINING,
    "mAP@0.5 0.94 on 270 photographs of playing cards and 0.90 on 205 microscope pictures, "
    "twelve minutes on two cores",
)
OBJECTS_OF_MANY_CLASSES = dataclasses.replace(
    OBJECTS, parameters={"width": 48}, steps=4000, measured="not measured yet"
)
MANY_OBJECTS = dataclasses.replace(
    OBJECTS,
    model="retinanet",
    parameters={"backbone": "ResNet50", "normalization": "group", "max_boxes": 128},
    reason="for many images, on GPUs",
    steps=20_000,
    measured="not measured yet",
)


def adapt_to_weights(recipe: Recipe, weights: str) -> Recipe:
    """Returns the recipe for a file of weights whose name contains that of a catalogue's model.

    Files of keras.applications do, such as `resnet50v2_weights_..._notop.h5`. Any other file is for
    the model of the recipe.
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
        training=_FINE_TUNING,
        measured="not measured, because it depends on the weights",
    )
