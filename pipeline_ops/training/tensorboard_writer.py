"""The chief's TensorBoard files: scalars, and the parts that `train.tensorboard` selects.

No exchange with other workers takes place here. Histograms are made of weights that were read
already, and the graph and the predictions come from a second model that never joined the strategy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.results import Epoch
from pipeline_ops.config.diagnostics import Tensorboard
from pipeline_ops.training.checkpointing.state import Arrays
from pipeline_ops.training.gradients import cast_to_float

Draw = Callable[[np.ndarray, Any, Any], np.ndarray]
"""Maps N images uint8 [N, H, W, C], their labels and the model's outputs to pictures."""


@dataclasses.dataclass
class TensorboardWriter:
    """Event files in a folder.

    Args:
      folder: The folder of the event files.
      config: The section that selects the content.
      image_shape: H, W, C.
      examples: Returns `config.images` examples of the validation split, N images uint8 [N, H, W,
        C] and their labels. Called once.
      draw: Draws the pictures of the examples, uint8 [N, H', W', 3].
      build: Builds the second model. Called once, if needed.
    """

    folder: Path
    config: Tensorboard
    image_shape: tuple[int, int, int]
    examples: Callable[[], tuple[tf.Tensor, Any]]
    draw: Draw
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
    def _examples(self) -> tuple[tf.Tensor, Any]:
        return self.examples()

    def _write_graph(self) -> None:
        model = self._model
        # A model of a user's class does not declare its inputs.
        images = tf.TensorSpec([None, *self.image_shape], tf.float32)
        call = tf.function(lambda images: model(images, training=False))
        tf.summary.graph(call.get_concrete_function(images).graph)

    def _write_images(self, weights: Arrays) -> None:
        images_NHWC, labels = self._examples
        model = self._model
        model.set_weights(weights)
        outputs = model(cast_to_float(images_NHWC), training=False)
        drawn = self.draw(images_NHWC.numpy(), labels, outputs)
        tf.summary.image("predictions", drawn, max_outputs=len(drawn))
