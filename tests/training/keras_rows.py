"""Trains the models of `keras_zoo` with the loops of every strategy, and with Keras alone.

    python -m training.keras_rows PLACE FOLDER    reads rows as JSON lines from stdin

A process trains all rows of one place, so TensorFlow starts once. It writes the weights of each row
as FOLDER/<number>.npz, or the message of a ConfigError as FOLDER/<number>.txt.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from training.keras_zoo import IMAGE_SHAPE, NUM_CLASSES, TOGETHER, ZOO

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import send_all_types
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.loop import Loop, SeedGenerators, SynchronousLoop
from pipeline_ops.training.sharded_loop import DTensorLoop, ParameterServerLoop

BATCH, STEPS, RATE = 24, 6, 2e-3
CALLS = (1, 3, 2)
"""The steps of each call of a loop."""
PLACES: dict[str, dict[str, Any]] = {
    "one": {"strategy": "one_device"},
    "mirrored": {"strategy": "mirrored", "devices_per_worker": 2},
    "gang": {"strategy": "multi_worker_mirrored", "workers": 2},
    "servers": {"strategy": "parameter_server", "parameter_servers": 2},
    "dtensor": {"strategy": "dtensor", "devices_per_worker": 2},
}
REPLICAS = {"one": 1, "mirrored": 2, "gang": 2, "servers": 1, "dtensor": 1}
"""The replicas at each place."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd"},
    "sgd with momentum and decay": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    "sgd with nesterov": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "adam": {"name": "adam", "epsilon": 1e-3},
    "adamw": {"name": "adamw", "weight_decay": 0.1, "epsilon": 1e-3},
    "rmsprop": {"name": "rmsprop", "epsilon": 1e-3},
    "rmsprop with momentum": {"name": "rmsprop", "momentum": 0.9, "epsilon": 1e-3},
}
CLIPS: dict[str, dict[str, float] | None] = {
    "unclipped": None,
    "by norm": {"norm": 0.05},
    "by global norm": {"global_norm": 0.1},
    "by value": {"value": 0.01},
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A training of a model at a place, in so many micro-batches of each replica."""

    model: str
    optimizer: str
    clip: str
    is_averaged: bool
    place: str
    micro_batches: int

    @property
    def config(self) -> Train:
        optimizer = OPTIMIZERS[self.optimizer] | {"learning_rate": RATE}
        optimizer |= {"clip": CLIPS[self.clip]}
        optimizer |= {"average_weights": 0.9 if self.is_averaged else None}
        return Train.model_validate(
            {
                "model": "keras_zoo:" + self.model.replace(" ", "_").replace(",", ""),
                "epochs": 1,
                "global_batch_size": BATCH,
                "optimizer": optimizer,
                "micro_batches": self.micro_batches,
                "steps_per_call": max(CALLS),
                "early_stopping": None,
                "sharding": self._divided if self.place == "dtensor" else {},
                **PLACES[self.place],
            }
        )

    @property
    def _divided(self) -> dict[str, int]:
        """The axis along which a mesh divides a weight."""
        return {"*answer/kernel": 0}

    @property
    def num_parts(self) -> int:
        """The parts of a batch that do not know of each other."""
        return (1 if self.model in TOGETHER else REPLICAS[self.place]) * self.micro_batches

    def __str__(self) -> str:
        averaged = ", averaged" if self.is_averaged else ""
        return (
            f"{self.model}, {self.optimizer}, {self.clip}{averaged}, {self.place}, "
            f"{self.micro_batches} micro-batches"
        )


def make_batches(steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 [steps, BATCH, H, W, C], and labels int64 [steps, BATCH]."""
    draw = np.random.default_rng(5)
    images = draw.integers(0, 256, (STEPS, BATCH, *IMAGE_SHAPE)).astype(np.uint8)
    labels = draw.integers(0, NUM_CLASSES, (STEPS, BATCH)).astype(np.int64)
    return images[:steps], labels[:steps]


def build(row: Row) -> keras.Model:
    keras.utils.set_random_seed(3)
    return ZOO[row.model]()


def train_with_keras(row: Row, model: keras.Model, steps: int = STEPS) -> list[np.ndarray]:
    """Takes the steps with Keras's optimizer alone, each part of a batch after the other.

    This is the definition that the loops are compared with. Of a part that begins with the states
    of the step, all states are kept, and a step ends with the mean of them, or for whole numbers
    with the first. Returns the weights, then their averages if there are any.
    """
    parts = row.num_parts
    config, clip = OPTIMIZERS[row.optimizer], CLIPS[row.clip] or {}
    options = {name: value for name, value in config.items() if name != "name"}
    names = {"norm": "clipnorm", "global_norm": "global_clipnorm", "value": "clipvalue"}
    options |= {names[name]: value for name, value in clip.items()}
    kinds = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}
    optimizer = getattr(keras.optimizers, kinds[config["name"]])(RATE, **options)
    learning = model.trainable_variables
    optimizer.build(learning)
    kept = [variable for variable in model.variables if variable.name != "seed_generator_state"]
    generators, averages = SeedGenerators(model), None
    for step, (images, labels) in enumerate(zip(*make_batches(steps), strict=True)):
        before = [variable.numpy() for variable in kept]
        after: list[list[np.ndarray]] = []
        total: list[Any] = [None] * len(learning)
        for part in range(parts):
            for variable, value in zip(kept, before, strict=True):
                variable.assign(value)
            generators.set_states(step, part)
            chosen = slice(part * BATCH // parts, (part + 1) * BATCH // parts)
            with tf.GradientTape() as tape:
                logits = model(images[chosen].astype(np.float32), training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels[chosen], tf.cast(logits, tf.float32)
                )
                loss = tf.reduce_sum(losses) / BATCH
                loss += sum(tf.cast(tf.reduce_sum(x), tf.float32) for x in model.losses) / parts
            for number, each in enumerate(tape.gradient(loss, [v.value for v in learning])):
                if each is not None:
                    own, dense = total[number], tf.convert_to_tensor(each)
                    total[number] = dense if own is None else own + dense
            after.append([variable.numpy() for variable in kept])
        for variable, *values in zip(kept, *after, strict=True):
            has_mean = np.issubdtype(values[0].dtype, np.floating)
            variable.assign(np.mean(values, axis=0) if has_mean else values[0])
        optimizer.apply(total, learning)
        if row.is_averaged:
            share = 0.0 if step == 0 else min(0.9, (1 + step) / (10 + step))
            new = [variable.numpy() for variable in learning]
            averages = averages or new
            averages = [
                old * share + value * (1 - share) for old, value in zip(averages, new, strict=True)
            ]
            averages = [
                np.asarray(variable.constraint(average)) if variable.constraint else average
                for variable, average in zip(learning, averages, strict=True)
            ]
    weights = [variable.numpy() for variable in model.weights]
    if averages is not None:
        average_of = {id(each): value for each, value in zip(learning, averages, strict=True)}
        weights += [average_of.get(id(each), each.numpy()) for each in model.weights]
    return weights


def take_steps(loop: Loop, shard: slice, calls: Sequence[int], step: int = 0) -> None:
    """Takes steps with a loop, some in each call. The shard is that of this worker."""
    images, labels = (values[step:, shard] for values in make_batches())
    batches: Iterator[Any] = iter(tf.data.Dataset.from_tensor_slices((images, labels)))
    loop.trace(batches, step, [RATE])
    for count in calls:
        result = loop.train(batches, step, [RATE] * count)
        assert result.is_sound
        step += count


def train_with_loop(row: Row, loop: Loop, shard: slice) -> list[np.ndarray]:
    take_steps(loop, shard, CALLS)
    return loop.get_weights() + (loop.get_best_weights() if row.is_averaged else [])


def make_task() -> Classification:
    return Classification(IMAGE_SHAPE)


def open_place(place: str) -> tuple[Callable[[Row], Loop], slice]:
    """Returns what makes a loop there, and this process's share of a batch."""
    whole = slice(None)
    match place:
        case "mirrored":
            divide_cpu()
            strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        case "gang":
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            send_all_types(strategy)
            index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
            whole = slice(index * BATCH // 2, (index + 1) * BATCH // 2)
        case "servers":
            strategy = tf.distribute.ParameterServerStrategy(
                serve(), tf.distribute.experimental.partitioners.MinSizePartitioner(8, 2)
            )
            return lambda row: ParameterServerLoop(
                strategy, build(row), make_task(), row.config
            ), whole
        case "dtensor":
            divide_cpu()
            devices = ["/cpu:0", "/cpu:1"]
            return lambda row: DTensorLoop(build(row), make_task(), row.config, devices), whole
        case _:
            strategy = tf.distribute.OneDeviceStrategy("/cpu:0")

    def make(row: Row) -> Loop:
        with strategy.scope():
            model = build(row)
        return SynchronousLoop(strategy, model, make_task(), row.config)

    return make, whole


def divide_cpu() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def serve() -> tf.distribute.cluster_resolver.ClusterResolver:
    """Starts a worker and two parameter servers in this process, whose chief it is."""
    addresses = os.environ["KERAS_ROWS_ADDRESSES"].split()
    spec = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
    for job, index in (("worker", 0), ("ps", 0), ("ps", 1)):
        tf.distribute.Server(spec, job, index, protocol="grpc")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")


def main(arguments: Sequence[str]) -> None:
    place, folder = arguments[0], Path(arguments[1])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rows = [(number, Row(**fields)) for number, fields in map(json.loads, sys.stdin)]
    make, shard = (None, slice(None)) if place == "keras" else open_place(place)

    def train(row: Row) -> list[np.ndarray]:
        if make is None:
            return train_with_keras(row, build(row))
        return train_with_loop(row, make(row), shard)

    for number, row in rows:
        keras.backend.clear_session()
        try:
            # Not as bfloat16, which a file of NumPy does not have.
            np.savez(folder / f"{number}.npz", *(each.astype(np.float64) for each in train(row)))
        except ConfigError as error:
            (folder / f"{number}.txt").write_text(str(error))
        except Exception:
            (folder / f"{number}.txt").write_text(f"failed: {traceback.format_exc()}")


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # TensorFlow's servers never end
