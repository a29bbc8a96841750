"""The chief's TensorBoard files: scalars, and the parts that `train.tensorboard` selects.

No exchange with other workers takes place here. Histograms are made of weights that were read
already, and the graph and the predictions come from a second model that never joined the strategy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageOps

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.config.diagnostics import Tensorboard
from pipeline_ops.training.checkpointing.state import Arrays
from pipeline_ops.training.gradients import cast_to_float

_MIN_SIDE = 96
_CAPTION_PIXELS = 14
_CORRECT_COLOR, _WRONG_COLOR = (40, 160, 70), (200, 50, 40)


@dataclasses.dataclass
class TensorboardWriter:
    """Event files in a folder.

    Args:
      folder: The folder of the event files.
      config: The section that selects the content.
      class_names: The class names for captions.
      image_shape: H, W, C.
      examples: Returns `config.images` examples of the validation split, N images uint8 [N, H, W,
        C] and labels int64 [N]. Called once.
      build: Builds the second model. Called once, if needed.
    """

    folder: Path
    config: Tensorboard
    class_names: Sequence[str]
    image_shape: tuple[int, int, int]
    examples: Callable[[], tuple[tf.Tensor, tf.Tensor]]
    build: Callable[[], keras.Model]

    def __post_init__(self) -> None:
        self._writer = tf.summary.create_file_writer(str(self.folder))

    def write(self, epoch: Epoch, weights: Arrays) -> None:
        """Writes one epoch. `weights` are the evaluated ones, in the order of `model.weights`."""
        with self._writer.as_default(step=epoch.step):
            for name, value in (epoch.metrics | {"learning_rate": epoch.learning_rate}).items():
                tf.summary.scalar(name, value)
            if self.config.graph and epoch.epoch == 0:
                self._write_graph()
            if self.config.histograms:
                for variable, values in zip(self._model.weights, weights, strict=True):
                    tf.summary.histogram(f"weights/{variable.path}", values)
            if self.config.images:
                self._write_images(weights)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    @functools.cached_property
    def _model(self) -> keras.Model:
        return self.build()

    @functools.cached_property
    def _examples(self) -> tuple[tf.Tensor, tf.Tensor]:
        return self.examples()

    def _write_graph(self) -> None:
        model = self._model
        # A model of a user's class does not declare its inputs.
        images = tf.TensorSpec([None, *self.image_shape], tf.float32)
        call = tf.function(lambda images: model(images, training=False))
        tf.summary.graph(call.get_concrete_function(images).graph)

    def _write_images(self, weights: Arrays) -> None:
        images_NHWC, labels_N = self._examples
        model = self._model
        model.set_weights(weights)
        predictions_N = np.argmax(model(cast_to_float(images_NHWC), training=False), axis=-1)
        drawn = [
            _draw_prediction(image, self.class_names[label], self.class_names[prediction])
            for image, label, prediction in zip(
                images_NHWC.numpy(), labels_N.numpy(), predictions_N, strict=True
            )
        ]
        tf.summary.image("predictions", np.stack(drawn), max_outputs=len(drawn))


def _draw_prediction(image_HWC: np.ndarray, label: str, prediction: str) -> np.ndarray:
    """Draws an image with its prediction below, and the label if they differ, on green or red."""
    pixels = image_HWC if image_HWC.shape[-1] == 3 else image_HWC[..., 0]
    picture = Image.fromarray(pixels).convert("RGB")
    scale = max(1, -(-_MIN_SIDE // min(picture.size)))
    picture = ImageOps.scale(picture, scale, Image.Resampling.NEAREST)
    is_correct = prediction == label
    color = _CORRECT_COLOR if is_correct else _WRONG_COLOR
    canvas = ImageOps.expand(picture, (0, 0, 0, _CAPTION_PIXELS), color)
    caption = prediction if is_correct else f"{prediction}, is {label}"
    ImageDraw.Draw(canvas).text((2, picture.height + 1), caption, fill=(255, 255, 255))
    return np.asarray(canvas)
