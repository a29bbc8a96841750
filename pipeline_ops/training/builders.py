"""Builders for the task, the model and the loop of a request, created in the right scope."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import tensorflow as tf

from pipeline_ops.artifacts.dataset import CLASS_WEIGHTS, DatasetFigures
from pipeline_ops.artifacts.input_names import WARM_START
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.dataset import evaluation_batches
from pipeline_ops.input.split import SplitShards
from pipeline_ops.jobs.request import Request
from pipeline_ops.models import build_model, make_head
from pipeline_ops.models.classification import Classification, PerExample
from pipeline_ops.models.detection import Detection
from pipeline_ops.models.own import load_per_example
from pipeline_ops.models.task import Task
from pipeline_ops.registry.registry import fetched
from pipeline_ops.training.loops.dtensor import ShardedLoop
from pipeline_ops.training.loops.parameter_server import ParameterServerLoop
from pipeline_ops.training.loops.synchronous import Loop, SynchronousLoop
from pipeline_ops.training.placement import compute_on_devices, variables_on_devices
from pipeline_ops.training.strategy import ChosenStrategy
from pipeline_ops.training.tensorboard_writer import TensorboardWriter
from pipeline_ops.training.warm_start import WarmStart, read_warm_start


def make_task(config: Train, request: Request, figures: DatasetFigures) -> Task:
    """The task of the data set.

    Raises:
      ConfigError: A function of the user does not exist, or the data set has no class weights.
    """
    if figures.task == "detection":
        return Detection(
            figures.image_shape, make_head(config, figures.image_shape, len(figures.class_names))
        )
    loss, metrics = own_functions(config, Path(request.config_file).parent)
    weights = _class_weights(request, figures) if config.class_weights else None
    return Classification(figures.image_shape, weights, config.label_smoothing, loss, metrics)


def own_functions(config: Train, folder: Path) -> tuple[PerExample | None, dict[str, PerExample]]:
    """The user's own loss, and the user's own metrics by name. Raises ConfigError.

    `folder` is the folder of the config file.
    """
    metrics = {
        path.partition(":")[2]: load_per_example(path, "train.metrics", folder)
        for path in config.metrics
    }
    return load_per_example(config.loss, "train.loss", folder) if config.loss else None, metrics


def _class_weights(request: Request, figures: DatasetFigures) -> list[float]:
    file = Path(request.inputs["preprocess"].uri).parent / CLASS_WEIGHTS
    if not file.exists():
        raise ConfigError(
            f"train.class_weights: the data set has none ({file.parent}); "
            "set preprocess.balance: by_class"
        )
    weights = json.loads(file.read_text(encoding="utf-8"))
    return [weights[name] for name in figures.class_names]


def make_board(
    folder: Path,
    config: Train,
    request: Request,
    figures: DatasetFigures,
    validation: SplitShards,
    task: Task,
) -> TensorboardWriter:
    """The writer of the chief's TensorBoard files."""

    def build() -> keras.Model:
        return build_model(
            config,
            figures.image_shape,
            len(figures.class_names),
            Path(request.config_file).parent,
            for_training=False,
        )

    def examples() -> tuple[tf.Tensor, tf.Tensor]:
        return (
            evaluation_batches(validation, task.parse, config.tensorboard.images)
            .take(1)
            .get_single_element()
        )

    return TensorboardWriter(
        folder, config.tensorboard, figures.class_names, figures.image_shape, examples, build
    )


def make_loop(
    config: Train, request: Request, chosen: ChosenStrategy, task: Task, figures: DatasetFigures
) -> Loop:
    """A model with weights that depend on the seed alone, and the loop that trains it.

    Raises:
      ConfigError: The model cannot be built, or not in the way that the strategy needs.
    """
    keras.utils.set_random_seed(config.seed)
    shape, num_classes, folder = (
        figures.image_shape,
        len(figures.class_names),
        Path(request.config_file).parent,
    )
    match chosen.name:
        case "parameter_server":
            return ParameterServerLoop(
                chosen.strategy,
                build_model(config, shape, num_classes, folder, for_training=True),
                task,
                config,
            )
        case "sharded_layers":
            return ShardedLoop(
                build_model(config, shape, num_classes, folder, for_training=True),
                task,
                config,
                chosen.devices,
            )
        case "placed_layers":
            with variables_on_devices(config.placement):
                model = build_model(config, shape, num_classes, folder, for_training=True)
            compute_on_devices(model, config.placement)
        case _:
            with chosen.strategy.scope():
                model = build_model(config, shape, num_classes, folder, for_training=True)
    return SynchronousLoop(chosen.strategy, model, task, config)


def warm_start_of(
    config: Train, request: Request, loop: Loop, figures: DatasetFigures
) -> WarmStart | None:
    """The initial weights that the request names, fitted to the loop's model.

    Returns None if the request names none. Raises ConfigError if they do not fit.
    """
    if WARM_START not in request.inputs:
        return None
    place = fetched(request.inputs[WARM_START], Path(request.root))

    def build() -> keras.Model:
        return build_model(
            config,
            figures.image_shape,
            len(figures.class_names),
            Path(request.config_file).parent,
            for_training=False,
        )

    return read_warm_start(place.uri, loop.model, loop.weights(), build)
