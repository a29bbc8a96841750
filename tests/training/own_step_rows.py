"""Trains on one device, on two, and by `fit`, with own steps and with optimizers of Keras:
own_step_rows.py FILE.

Writes the largest differences as JSON, by the rows of `ROWS`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pipeline_ops.input.keras_start  # noqa: F401  (before other imports of Keras)

# isort: split
import keras
import numpy as np
import tensorflow as tf
from acme_vision import own_steps

from pipeline_ops.config.train import Train
from pipeline_ops.models import build_model
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.own_step import OwnStepLoop, make_synchronous_loop

SHAPE, CLASSES, BATCH, STEPS = (8, 8, 1), 5, 32, 10
MODULE = "acme_vision.own_steps"
NOWHERE = Path("/nowhere")
GUIDED = {"model": f"{MODULE}:plain", "step": f"{MODULE}:guided_step"}
CLIP = {"learning_rate": 0.02, "clip": {"norm": 0.05}, "average_weights": 0.9}


def of_model(name: str, **parameters) -> dict:
    return {"model": f"{MODULE}:{name}", "model_parameters": parameters}


ROWS = {
    "compiled": of_model("compiled"),
    "one-hot labels": of_model("smoothed"),
    "two optimizers": of_model("in_two_rates"),
    "train_step": of_model("Stepping"),
    "compute_loss": of_model("WithLoss"),
    "first of the guide": of_model("FirstOfGuide"),
    "embedding": of_model("embedded"),
    "own one-hot loss": of_model("focal"),
    "assigned weights": of_model("SharpnessAware"),
    "teacher": of_model("Distiller"),
    "accumulated by hand": of_model("Accumulating"),
    "GAN": of_model("gan", is_drawing=False),
    "GAN that draws": of_model("gan"),
    "step of a guide": GUIDED,
    "contrastive": {"model": f"{MODULE}:plain", "step": f"{MODULE}:contrastive_step"},
    "clipped and averaged": of_model("Stepping") | {"optimizer": CLIP},
}
OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True, "beta_1": 0.8, "weight_decay": 0.01},
    "Adamax": {},
    "Ftrl": {"l1_regularization_strength": 1e-3},
    "Lamb": {},
    "Lion": {"beta_1": 0.95},
    "Muon": {},
    "Nadam": {},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "SGD": {"momentum": 0.9, "nesterov": True},
}
ROWS |= {
    name: {
        "model": f"{MODULE}:plain",
        "optimizer": {
            "name": f"keras.optimizers:{name}",
            "arguments": arguments,
            "learning_rate": 0.01,
            "clip": {"global_norm": 1.0},
        },
    }
    for name, arguments in OPTIMIZERS.items()
}
FITTED = (
    "compiled",
    "one-hot labels",
    "two optimizers",
    "train_step",
    "compute_loss",
    "first of the guide",
    "embedding",
    "own one-hot loss",
    "assigned weights",
    "teacher",
    "GAN",
    *OPTIMIZERS,
)


def main(file: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    two = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    Path(file).write_text(json.dumps({name: measure(name, one, two) for name in ROWS}))


def measure(
    name: str, one: tf.distribute.Strategy, two: tf.distribute.Strategy
) -> dict[str, float]:
    results = []
    for strategy in (one, two):
        loop = make_loop(ROWS[name], strategy)
        sums = train(loop).sums
        results.append([*loop.get_weights(), *sums, *loop.evaluate(make_batches(50))])
    whole, first, second = (make_loop(ROWS[name], two) for _ in range(3))
    train(whole)
    train(first, last=STEPS // 2)
    second.assign(*([*map(np.array, values)] for values in first.get_views()))
    train(second, first=STEPS // 2)
    found = {
        "two": compare(*results),
        "continued": compare(second.get_weights(), whole.get_weights()),
    }
    return found | (compare_with_fit(name, make_loop(ROWS[name], one)) if name in FITTED else {})


def make_loop(options: dict, strategy: tf.distribute.Strategy) -> OwnStepLoop:
    common = {"strategy": "one_device", "global_batch_size": BATCH}
    config = Train.model_validate(common | options)
    with strategy.scope():
        model = build_model(config, SHAPE, CLASSES, NOWHERE, for_training=True)
    task = Classification(SHAPE, num_classes=CLASSES)
    return make_synchronous_loop(strategy, model, task, config, NOWHERE)


def make_batches(size: int, dtype: type = np.uint8) -> tf.data.Dataset:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (STEPS * BATCH, *SHAPE)).astype(dtype)
    labels = draw.integers(0, CLASSES, STEPS * BATCH)
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(size)


def train(loop: OwnStepLoop, first: int = 0, last: int = STEPS):
    rates = [loop.learning_rate or 0.0] * (last - first)
    return loop.train(iter(make_batches(BATCH).skip(first)), first, rates)


def compare(found, expected) -> float:
    pairs = zip(found, expected, strict=True)
    return max(
        float(np.abs(one - other).max(initial=0.0) / np.abs(other).max(initial=1.0))
        for one, other in pairs
    )


def compare_with_fit(name: str, loop: OwnStepLoop) -> dict[str, float]:
    options = ROWS[name]
    build = getattr(own_steps, options["model"].partition(":")[2])
    model = build(SHAPE, CLASSES, **options.get("model_parameters", {}))
    model(np.zeros((1, *SHAPE), np.float32))
    model.set_weights(loop.get_weights())
    if not model.compiled:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = "adam"
        if name in OPTIMIZERS:
            optimizer = getattr(keras.optimizers, name)(
                0.01, global_clipnorm=1.0, **OPTIMIZERS[name]
            )
        model.compile(optimizer, loss, metrics=["accuracy"])
    batches = make_batches(BATCH, np.float32)
    if name in ("one-hot labels", "own one-hot loss"):
        batches = batches.map(lambda images, labels: (images, tf.one_hot(labels, CLASSES)))
    history = model.fit(batches, epochs=1, verbose=0, shuffle=False).history
    sums = train(loop).sums
    own = dict(zip(("loss", *loop.task.metrics), (sums.loss, *sums.metrics), strict=True))
    figures = [(own[key] / sums.count, value) for key, [value] in history.items()]
    if model.loss:
        sums = loop.evaluate(make_batches(BATCH))
        names = ("loss", *loop.task.validation_metrics)
        own = dict(zip(names, (sums.loss, *sums.metrics), strict=False))
        expected = model.evaluate(batches, verbose=0, return_dict=True)
        figures += [(own[key] / sums.count, value) for key, value in expected.items()]
    return {
        "weights of fit": compare(loop.get_weights(), model.get_weights()),
        "figures of fit": compare(*zip(*figures, strict=True)),
    }


if __name__ == "__main__":
    main(sys.argv[1])
