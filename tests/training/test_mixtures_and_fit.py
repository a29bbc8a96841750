"""A training with mixtures is that of `Model.fit` with the same images and soft labels."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.input.augment import build_augmentation
from pipeline_ops.input.batches import build_training_dataset
from pipeline_ops.input.reading import SplitShards
from pipeline_ops.input.sources import MemorySource
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.loop import SynchronousLoop

BATCH, STEPS, RATE = 50, 30, 0.05


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, activation="tanh"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


@pytest.mark.parametrize("augment", [{"mixup": 0.2}, {"cutmix": 0.25}], ids=lambda each: [*each][0])
@pytest.mark.training
def test_the_weights_are_those_of_fit_with_soft_labels(dataset, augment):
    config = Train.model_validate(
        {
            "model": "digits_cnn",
            "strategy": "one_device",
            "global_batch_size": BATCH,
            "label_smoothing": 0.1,
            "optimizer": {"name": "sgd", "learning_rate": RATE, "momentum": 0.9},
            "input": {"augment": augment | {"flip_left_right": True}},
        }
    )
    task = Classification((16, 16, 1), label_smoothing=config.label_smoothing)
    shards = SplitShards(
        tuple(list_shard_paths(dataset, read_manifest(dataset), "train")), 700, 1 << 20
    )
    changes = build_augmentation(config.input.augment, "classification", 700)
    batches = build_training_dataset(
        shards, MemorySource(shards, task.parse), BATCH, range(BATCH), 1, 0, changes
    ).take(STEPS)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        loop = SynchronousLoop(strategy, build(), task, config)
    found = loop.train(iter(batches), 0, [RATE] * STEPS)

    def soften(images, labels):
        first, second = (tf.one_hot(each, 10) for each in labels[:2])
        share = labels.share[:, None]
        return tf.cast(images, tf.float32), share * first + (1 - share) * second

    model = build()
    model.compile(
        keras.optimizers.SGD(RATE, momentum=0.9),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    )
    history = model.fit(batches.map(soften), shuffle=False, verbose=0)
    for own, other in zip(loop.get_weights(), model.get_weights(), strict=True):
        assert np.abs(own - other).max() < 1e-6
    mean = found.sums.loss / found.sums.count
    assert mean == pytest.approx(history.history["loss"][0], rel=1e-5)
