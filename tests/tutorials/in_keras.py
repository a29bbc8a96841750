"""The tutorials in plain Keras: `fit`, or the tutorial's own loop, on one device.

Each begins with the weights that the training by two workers begins with, and gets its batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Compiled(NamedTuple):
    """What a tutorial compiles its model with, where its module leaves that to the YAML."""

    optimizer: Callable[[], Any]
    loss: Any


SPARSE = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
SOFT = keras.losses.CategoricalCrossentropy
AdamW = keras.optimizers.AdamW
COMPILED = {
    "from_scratch": Compiled(functools.partial(keras.optimizers.Adam, 3e-3), SPARSE()),
    "vision_transformer": Compiled(functools.partial(AdamW, 1e-3, weight_decay=1e-4), SPARSE()),
    "mlp_mixer": Compiled(functools.partial(AdamW, 5e-3, weight_decay=1e-4), SPARSE()),
    "compact_transformer": Compiled(
        functools.partial(AdamW, 1e-3, weight_decay=1e-4),
        SOFT(from_logits=True, label_smoothing=0.1),
    ),
    "swin_transformer": Compiled(
        functools.partial(AdamW, 1e-3, weight_decay=1e-4), SOFT(label_smoothing=0.1)
    ),
    "mixup_net": Compiled(keras.optimizers.Adam, SOFT()),
    "cutmix_net": Compiled(keras.optimizers.Adam, SOFT()),
    "xray": Compiled(keras.optimizers.Adam, keras.losses.BinaryCrossentropy()),
    "custom_layers": Compiled(keras.optimizers.Adam, SPARSE()),
}
ONE_HOT = {"mnist_convnet", "compact_transformer", "swin_transformer"}


def soften(images: Any, labels: Any) -> tuple[Any, Any]:
    """Returns labels of classes as Keras takes them. Mixed ones are vectors already."""
    images = tf.cast(images, tf.float32)
    if not isinstance(labels, tuple):
        return images, labels
    first, second = (tf.one_hot(each, 10) for each in labels[:2])
    share = labels.share[:, None]
    return images, share * first + (1 - share) * second


def compile_model(name: str, model: keras.Model) -> None:
    """Compiles a model as its tutorial does, unless its module has done so."""
    if name in COMPILED:
        found = COMPILED[name]
        model.compile(found.optimizer(), found.loss, metrics=[found.loss] * bool(model.losses))


def forget_steps(model: keras.Model) -> None:
    """Sets the variables of optimizers to those of new ones."""
    optimizers = [each for each in vars(model).values() if hasattr(each, "apply_gradients")]
    for variable in [each for optimizer in optimizers for each in optimizer.variables]:
        if not variable.path.endswith("learning_rate"):
            variable.assign(keras.ops.zeros_like(variable))


def fit(
    name: str,
    module: ModuleType,
    model: keras.Model,
    batches: tf.data.Dataset,
    epochs: int,
    class_weights: dict[int, float] | None,
) -> float:
    """Trains as the tutorial does. Returns the mean loss of the last epoch."""
    if name in ONE_HOT:
        batches = batches.map(lambda images, labels: (images, tf.one_hot(labels, 10)))
    callbacks = []
    if name == "distributed_keras":
        callbacks = [keras.callbacks.LearningRateScheduler(module.decay)]
    if name == "xray":
        callbacks = [keras.callbacks.LearningRateScheduler(module.exponential_decay_fn)]
    steps = len(batches) // epochs
    history = model.fit(
        batches.repeat(),
        epochs=epochs,
        steps_per_epoch=steps,
        callbacks=callbacks,
        class_weight=class_weights,
        verbose=0,
    ).history
    if "loss" in history:  # with penalties, which a metric lacks
        return history["categorical_crossentropy" if model.losses else "loss"][-1]
    return sum(values[-1] for key, values in history.items() if "loss" in key)


def run_distributed_loop(module: ModuleType, model: keras.Model, batches: Iterator) -> float:
    optimizer, strategy = keras.optimizers.Adam(), tf.distribute.OneDeviceStrategy("/cpu:0")

    def train_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = module.compute_loss(labels, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(*batch: Any) -> Any:
        losses = strategy.run(train_step, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    optimizer.build(model.trainable_variables)
    return float(np.mean([distributed_train_step(*batch) for batch in batches]))


def run_quickstart(module: ModuleType, model: keras.Model, batches: Iterator) -> float:
    optimizer, train_loss = keras.optimizers.Adam(), keras.metrics.Mean(name="train_loss")

    @tf.function
    def train_step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = module.loss_object(labels, predictions)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_loss(loss)

    for images, labels in batches:
        train_step(images, labels)
    return float(train_loss.result())


def run_walkthrough(module: ModuleType, model: keras.Model, batches: Iterator) -> float:
    optimizer, epoch_loss_avg = keras.optimizers.SGD(0.1), keras.metrics.Mean()
    for x, y in batches:
        loss_value, grads = module.grad(model, x, y)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        epoch_loss_avg.update_state(loss_value)
    return float(epoch_loss_avg.result())


LOOPS = {
    "distributed_loop": run_distributed_loop,
    "quickstart": run_quickstart,
    "walkthrough": run_walkthrough,
}


def train(
    name: str,
    module: ModuleType,
    model: keras.Model,
    batches: tf.data.Dataset,
    epochs: int = 1,
    class_weights: dict[int, float] | None = None,
) -> float:
    """Trains a model, and returns the mean loss of its last epoch."""
    batches = batches.map(soften)
    if name in LOOPS:
        return LOOPS[name](module, model, iter(batches))
    return fit(name, module, model, batches, epochs, class_weights)
