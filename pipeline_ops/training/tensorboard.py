"""The chief's TensorBoard files: scalars, and the parts that `train.tensorboard` selects.

No exchange with other workers takes place here. Histograms are made of weights that were read
already, and the graph and the predictions come from a second model that never joined the strategy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from pipeline_ops.config.train import Tensorboard
from pipeline_ops.contract.results import Epoch, GpuUsage, StepShares
from pipeline_ops.input.reading import build_evaluation_dataset
from pipeline_ops.models.boxes import Boxes, Detections
from pipeline_ops.models.detection import Detection
from pipeline_ops.models.task import Task
from pipeline_ops.pages.drawing import CELL_PIXELS, LabelledBox, count_boxes, draw_cell
from pipeline_ops.training.input_pipeline import InputPipeline
from pipeline_ops.training.loop import cast_to_float
from pipeline_ops.training.weight_files import Arrays


@dataclasses.dataclass
class TensorboardWriter:
    """Event files in a folder. `build` builds the second model, and is called once, if needed."""

    folder: Path
    config: Tensorboard
    input: InputPipeline
    task: Task
    build: Callable[[], keras.Model]

    def __post_init__(self) -> None:
        self._writer = tf.summary.create_file_writer(str(self.folder))
        self._is_profiling = False

    @contextlib.contextmanager
    def profile(self, first: int, end: int) -> Iterator[None]:
        """Records the call of the steps from `first` to before `end`, if one of them is selected.

        Steps are counted from 1. A record has all calls from the first to the last one.
        """
        selected = self.config.profile_steps
        if not selected or end <= selected[0] or first > selected[1]:
            yield
            return
        if not self._is_profiling:
            tf.profiler.experimental.start(str(self.folder))
            self._is_profiling = True
        with tf.profiler.experimental.Trace("train", step_num=first, _r=1):
            yield
        if end > selected[1]:
            self._stop_profile()

    def _stop_profile(self) -> None:
        tf.profiler.experimental.stop()
        self._is_profiling = False

    def write(
        self, epoch: Epoch, weights: Arrays, shares: StepShares | None, gpus: Sequence[GpuUsage]
    ) -> None:
        """Writes one epoch. `weights` are the evaluated ones, in the order of `model.weights`."""
        scalars = epoch.metrics | {"learning_rate": epoch.learning_rate}
        scalars |= {f"time/{name}": share for name, share in shares or ()}
        for gpu in gpus:
            figures = gpu.model_dump(exclude={"name", "memory_limit_bytes"}, exclude_none=True)
            scalars |= {f"gpu_{gpu.name}/{name}": value for name, value in figures.items()}
        with self._writer.as_default(step=epoch.step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
            if epoch.epoch == 0:
                self._write_graph()
            if self.config.histograms:
                for variable, values in zip(self._model.weights, weights, strict=True):
                    tf.summary.histogram(f"weights/{variable.path}", values)
            if self.config.images and self.input.validation.num_examples:
                self._write_images(weights)
        self._writer.flush()

    def close(self) -> None:
        if self._is_profiling:  # the training has ended before the last selected step
            self._stop_profile()
        self._writer.close()

    @functools.cached_property
    def _model(self) -> keras.Model:
        return self.build()

    @functools.cached_property
    def _examples(self) -> tuple[tf.Tensor, Any]:
        """Examples of the validation split: images uint8 [N, H, W, C], and their labels."""
        batches = build_evaluation_dataset(
            self.input.validation, self.task.parse, self.config.images
        )
        return batches.take(1).get_single_element()

    def _write_graph(self) -> None:
        model = self._model
        # A model of a user's class does not declare its inputs.
        images = tf.TensorSpec([None, *self.input.figures.image_shape], tf.float32)
        call = tf.function(lambda images: model(images, training=False), autograph=False)
        tf.summary.graph(call.get_concrete_function(images).graph)

    def _write_images(self, weights: Arrays) -> None:
        (images_NHWC, labels), names = self._examples, self.input.figures.class_names
        self._model.set_weights(weights)
        outputs = self._model(cast_to_float(images_NHWC), training=False)
        if isinstance(self.task, Detection):
            detections = self.task.head.detect(outputs)
            drawn = draw_boxes(images_NHWC.numpy(), labels, detections, names)
        else:
            drawn = draw_classes(images_NHWC.numpy(), labels, outputs, names)
        tf.summary.image("predictions", drawn, max_outputs=len(drawn))


_MIN_SCORE, _MAX_DETECTIONS = 0.2, 20
"""As the Object Detection API draws them."""


def draw_classes(
    images_NHWC: np.ndarray, labels_N: tf.Tensor, logits_NC: tf.Tensor, class_names: Sequence[str]
) -> np.ndarray:
    """Draws each image, uint8 with 1 or 3 channels, with its prediction below.

    Returns uint8 [N, H', W', 3], with a green text where the prediction is right, or a red one.
    """
    drawn, predictions_N = [], np.argmax(logits_NC, axis=-1)
    for image, label, prediction in zip(images_NHWC, labels_N.numpy(), predictions_N, strict=True):
        names = [class_names[number] for number in (label, prediction)]
        color = "#080" if prediction == label else "#b00"
        drawn.append(_draw(image, (), f"truth: {names[0]}", f"prediction: {names[1]}", color))
    return np.stack(drawn)


def draw_boxes(
    images_NHWC: np.ndarray, labels: Boxes, detections: Detections, class_names: Sequence[str]
) -> np.ndarray:
    """Draws the boxes of the labels in each image, and to the right the detections.

    Maps images uint8 with 1 or 3 channels to uint8 [N, H', 2 W', 3].
    """
    drawn = []
    values = (labels.corners, labels.classes, *detections[:3])
    for image, corners, classes, boxes, scores, found in zip(
        images_NHWC, *(value.numpy() for value in values), strict=True
    ):
        truth = [
            LabelledBox(corners[i], class_names[classes[i]]) for i in np.flatnonzero(classes >= 0)
        ]
        shown = np.flatnonzero(scores >= _MIN_SCORE)[:_MAX_DETECTIONS]
        prediction = [LabelledBox(boxes[i], class_names[found[i]], scores[i]) for i in shown]
        left = _draw(image, truth, f"truth: {count_boxes(len(truth))}")
        right = _draw(image, prediction, f"prediction: {count_boxes(len(prediction))}")
        drawn.append(np.concatenate([left, right], axis=1))
    return np.stack(drawn)


def _draw(
    image_HWC: np.ndarray, boxes: Sequence[LabelledBox], title: str, text: str = "", color: str = ""
) -> np.ndarray:
    image = Image.fromarray(image_HWC if image_HWC.shape[-1] == 3 else image_HWC[..., 0])
    side = max(CELL_PIXELS, *image.size)
    return np.asarray(draw_cell(image, boxes, title, text, color or "black", side))
