"""Trains on one logical GPU and on two, and prints the largest difference of the weights.

    python tests/gpu/logical_devices.py GPU|CPU

Both share one GPU, so TensorFlow adds without NCCL. A train job takes physical devices only.
"""

from __future__ import annotations

import sys

import numpy as np
from acme_vision.nets import smooth

from pipeline_ops.config.train import Train
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.strategy import ChosenStrategy
from pipeline_ops.training.worker import make_loop

SHAPE, NUM_CLASSES, BATCH, STEPS = (16, 16, 1), 10, 32, 20
MEMORY_MB = 2048


def divide(kind: str) -> list[str]:
    """Divides the first device of a kind in two, and returns their names."""
    limit = MEMORY_MB if kind == "GPU" else None
    logical = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices(kind)[0], logical)
    return [device.name for device in tf.config.list_logical_devices(kind)]


def train(name: str, strategy: tf.distribute.Strategy, devices: list[str]) -> list[np.ndarray]:
    config = Train(
        model="acme_vision.nets:smooth",
        strategy=name,
        devices_per_worker=len(devices),
        global_batch_size=BATCH,
        optimizer={"name": "sgd", "momentum": 0.9},
    )
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (BATCH, *SHAPE), np.uint8)
    labels = generator.integers(0, NUM_CLASSES, BATCH)
    loop = make_loop(
        config,
        ChosenStrategy(name, "", strategy, devices),
        Classification(SHAPE),
        lambda: smooth(SHAPE, NUM_CLASSES),
    )
    batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())
    loop.train(batches, 0, [0.05] * STEPS)
    return loop.get_weights()


def main() -> None:
    devices = divide(sys.argv[1])
    one = train("one_device", tf.distribute.OneDeviceStrategy(devices[0]), devices[:1])
    two = train("mirrored", tf.distribute.MirroredStrategy(devices), devices)
    print(max(float(np.abs(a - b).max()) for a, b in zip(one, two, strict=True)))


if __name__ == "__main__":
    main()
