"""What is trained: the task, the model and the loop of a request, made in the right scope."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import tensorflow as tf

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.errors import ConfigError
from pipeline_ops.contracts.request import Request
from pipeline_ops.contracts.shards import CLASS_WEIGHTS, DatasetFigures
from pipeline_ops.models import build_model, make_head
from pipeline_ops.models.classification import Classification
from pipeline_ops.models.detection import Detection
from pipeline_ops.models.own import load_function
from pipeline_ops.models.task import Task
from pipeline_ops.training.all_reduce import make_all_reduce
from pipeline_ops.training.loop import Loop, SynchronousLoop


def make_task(config: Train, request: Request, figures: DatasetFigures) -> Task:
    """The task of the data set. Raises ConfigError for a function of the user's that there is not, and for weights that the data set lacks."""
    if figures.task == "detection":
        return Detection(figures.image_shape, make_head(config, figures.image_shape, len(figures.class_names)))
    folder = Path(request.config_file).parent
    metrics = {path.partition(":")[2]: load_function(path, "train.metrics", folder) for path in config.metrics}
    loss = load_function(config.loss, "train.loss", folder) if config.loss else None
    weights = _class_weights(request, figures) if config.class_weights else None
    return Classification(figures.image_shape, weights, config.label_smoothing, loss, metrics)


def _class_weights(request: Request, figures: DatasetFigures) -> list[float]:
    file = Path(request.inputs["preprocess"].uri).parent / CLASS_WEIGHTS
    if not file.exists():
        raise ConfigError(f"train.class_weights: the data set has none ({file.parent}); set preprocess.balance: by_class")
    weights = json.loads(file.read_text(encoding="utf-8"))
    return [weights[name] for name in figures.class_names]


def make_loop(config: Train, request: Request, strategy: tf.distribute.Strategy, task: Task, figures: DatasetFigures) -> Loop:
    """A model with weights that depend on the seed alone, and the loop that trains it."""
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        model = build_model(config, figures.image_shape, len(figures.class_names), Path(request.config_file).parent, for_training=True)
    return SynchronousLoop(strategy, model, task, config, make_all_reduce(strategy, config.step_timeout_seconds))
