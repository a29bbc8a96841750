"""Builders for the task, the model and the loop of a request, and the state to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.dataset import CLASS_WEIGHTS, DatasetFigures
from pipeline_ops.artifacts.input_names import WARM_START
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.dataset import build_evaluation_dataset
from pipeline_ops.jobs.host_dataset import HostDataset
from pipeline_ops.jobs.progress import ProgressWriter
from pipeline_ops.jobs.request import Request
from pipeline_ops.models import build_model, make_head
from pipeline_ops.models.classification import Classification, PerExample
from pipeline_ops.models.detection import Detection
from pipeline_ops.models.task import Task
from pipeline_ops.models.user_functions import load_per_example
from pipeline_ops.registry.registry import fetch_version
from pipeline_ops.training.checkpointing.state import TrainingState
from pipeline_ops.training.loops.dtensor import DTensorLoop
from pipeline_ops.training.loops.loop import Loop
from pipeline_ops.training.loops.parameter_server import ParameterServerLoop
from pipeline_ops.training.loops.synchronous import SynchronousLoop
from pipeline_ops.training.placement import place_layers, place_variables
from pipeline_ops.training.splits import Splits
from pipeline_ops.training.strategy import ChosenStrategy
from pipeline_ops.training.tensorboard_images import draw_boxes, draw_classes
from pipeline_ops.training.tensorboard_writer import TensorboardWriter
from pipeline_ops.training.warm_start import read_warm_start


def make_task(config: Train, request: Request, dataset: HostDataset) -> Task:
    """Makes the task of the data set.

    Raises:
      ConfigError: A function of the user does not exist, or the data set has no class weights.
    """
    figures = dataset.figures
    if figures.task == "detection":
        return Detection(
            figures.image_shape, make_head(config, figures.image_shape, len(figures.class_names))
        )
    loss, metrics = load_user_functions(config, Path(request.config_file).parent)
    weights = _read_class_weights(dataset) if config.class_weights else None
    return Classification(figures.image_shape, weights, config.label_smoothing, loss, metrics)


def load_user_functions(
    config: Train, folder: Path
) -> tuple[PerExample | None, dict[str, PerExample]]:
    """Loads the user's loss, and the user's metrics by name. Raises ConfigError.

    `folder` is the folder of the config file.
    """
    metrics = {
        path.partition(":")[2]: load_per_example(path, "train.metrics", folder)
        for path in config.metrics
    }
    return load_per_example(config.loss, "train.loss", folder) if config.loss else None, metrics


def _read_class_weights(dataset: HostDataset) -> list[float]:
    content = dataset.read_file(CLASS_WEIGHTS)
    if content is None:
        raise ConfigError(
            f"train.class_weights: the data set {dataset.uri} has no {CLASS_WEIGHTS}. "
            "Set preprocess.balance: by_class."
        )
    weights = json.loads(content)
    return [weights[name] for name in dataset.figures.class_names]


def make_model(
    config: Train, request: Request, figures: DatasetFigures, for_training: bool
) -> keras.Model:
    """Builds the model of the config for the images and classes of the data set."""
    return build_model(
        config,
        figures.image_shape,
        len(figures.class_names),
        Path(request.config_file).parent,
        for_training=for_training,
    )


def make_tensorboard_writer(
    folder: Path, config: Train, request: Request, splits: Splits, task: Task
) -> TensorboardWriter:
    """Makes the writer of the chief's TensorBoard files."""
    figures = splits.figures

    def examples() -> tuple[tf.Tensor, Any]:
        images = config.tensorboard.images
        batches = build_evaluation_dataset(splits.validation, task.parse, images)
        return batches.take(1).get_single_element()

    def draw(images_NHWC: np.ndarray, labels: Any, outputs: Any) -> np.ndarray:
        names = figures.class_names
        if isinstance(task, Detection):
            return draw_boxes(images_NHWC, labels, task.head.detect(outputs), names)
        return draw_classes(images_NHWC, labels, outputs, names)

    return TensorboardWriter(
        folder,
        config.tensorboard,
        figures.image_shape,
        examples,
        draw,
        lambda: make_model(config, request, figures, for_training=False),
    )


def make_loop(
    config: Train, request: Request, chosen: ChosenStrategy, task: Task, figures: DatasetFigures
) -> Loop:
    """Makes a model with weights that depend on the seed alone, and the loop that trains it.

    Raises:
      ConfigError: The model cannot be built, or not in the way that the strategy needs.
    """
    keras.utils.set_random_seed(config.seed)
    if chosen.name in ("parameter_server", "dtensor"):
        model = make_model(config, request, figures, for_training=True)
        if chosen.name == "dtensor":
            return DTensorLoop(model, task, config, chosen.devices)
        return ParameterServerLoop(chosen.strategy, model, task, config)
    if chosen.name == "device_placement":
        with place_variables(config.placement):
            model = make_model(config, request, figures, for_training=True)
        place_layers(model, config.placement)
    else:
        with chosen.strategy.scope():
            model = make_model(config, request, figures, for_training=True)
    return SynchronousLoop(chosen.strategy, model, task, config)


def initialize_training(
    config: Train, request: Request, loop: Loop, figures: DatasetFigures, progress: ProgressWriter
) -> TrainingState:
    """Returns the state of a new training, and sets the initial weights if the request names any.

    Raises:
      ConfigError: The initial weights do not match the model.
    """
    if WARM_START in request.inputs:
        reference = fetch_version(request.inputs[WARM_START])
        warm_start = read_warm_start(
            reference.uri,
            loop.model,
            loop.get_weights(),
            lambda: make_model(config, request, figures, for_training=False),
        )
        loop.assign(warm_start.weights)
        message = f"starts from the weights of {request.inputs[WARM_START].uri}"
        if warm_start.left_out:
            message += f". Randomly initialized: {', '.join(warm_start.left_out)}"
        progress.report("warm start", message=message)
    elif config.warm_start:
        progress.report(
            "warm start", message="there is no champion yet. Starts from random weights."
        )
    return TrainingState(learning_rate=config.optimizer.learning_rate)
