"""Measures steps of a training: `python -m pipeline_ops.training.step_times`.

`job/model_check.py` starts it, writes the request to its stdin and reads the times from its
stdout. The images are random, and there is no augmentation. A step is that of one worker with one
device.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pipeline_ops.input.keras_start  # noqa: F401  (before other imports of Keras)

# isort: split
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.job.model_check import ModelCheckRequest, StepTimes
from pipeline_ops.models import build_model, make_head
from pipeline_ops.models.boxes import Boxes
from pipeline_ops.models.classification import Classification
from pipeline_ops.models.detection import Detection
from pipeline_ops.models.task import Task
from pipeline_ops.training.strategy import ChosenStrategy
from pipeline_ops.training.worker import make_loop

_SECONDS, _MAX_STEPS = 2.0, 50
"""Steps are taken for this long, up to this number."""
_NUM_BOXES = 8


def measure(request: ModelCheckRequest) -> StepTimes:
    """Takes steps and evaluates a batch."""
    started = time.perf_counter()
    config, folder = Train.model_validate(request.train), Path(request.config_file).parent
    shape, num_classes = request.image_shape, request.num_classes
    task: Task
    if request.task == "detection":
        task = Detection(shape, make_head(config, shape, num_classes))
    else:
        task = Classification(shape, num_classes=num_classes)
    device = "/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0"
    chosen = ChosenStrategy("one_device", "", tf.distribute.OneDeviceStrategy(device), [device])
    loop = make_loop(
        config, chosen, task, lambda: build_model(config, shape, num_classes, folder, True), folder
    )
    batches = iter(_make_batches(request, config.batch_size).repeat())
    loop.train(batches, 0, [1e-6])
    start = time.perf_counter() - started
    begun, steps = time.perf_counter(), 0
    while steps < _MAX_STEPS and time.perf_counter() - begun < _SECONDS:
        loop.train(batches, 0, [1e-6])
        steps += 1
    step = (time.perf_counter() - begun) / steps
    evaluated = _make_batches(request, task.evaluation_batch_size)
    loop.evaluate(evaluated)
    begun = time.perf_counter()
    loop.evaluate(evaluated)
    evaluation = (time.perf_counter() - begun) / task.evaluation_batch_size
    return StepTimes(start=start, step=step, evaluation=evaluation)


def _make_batches(request: ModelCheckRequest, size: int) -> tf.data.Dataset:
    """Returns one batch of random images and labels."""
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (size, *request.image_shape), np.uint8)
    if request.task == "classification":
        labels = generator.integers(0, request.num_classes, size, np.int64)
        return tf.data.Dataset.from_tensors((images, labels))
    corners = np.sort(generator.random((size, _NUM_BOXES, 2, 2), np.float32), axis=2)
    classes = generator.integers(0, request.num_classes, (size, _NUM_BOXES), np.int32)
    boxes = Boxes(corners.reshape(size, _NUM_BOXES, 4), classes, np.zeros(classes.shape, bool))
    return tf.data.Dataset.from_tensors((images, boxes))


if __name__ == "__main__":
    question = ModelCheckRequest.model_validate_json(sys.stdin.buffer.read())
    print(measure(question).model_dump_json())
