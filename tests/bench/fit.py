"""A training as users write it by hand: Keras's `fit` in one process, on the shards of our jobs.
Started by `training.py`.

    python tests/bench/fit.py MANIFEST cnn|dense GLOBAL_BATCH EPOCHS

Prints the seconds and the CPU seconds between the end of the first and of the last epoch, and how
many steps that was.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import keras
import tensorflow as tf
from nets import build_cnn, build_dense

from pipeline_ops.contract.dataset import ENCODED, LABEL, DatasetFigures, list_shard_paths
from pipeline_ops.contract.manifest import read_manifest

FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    LABEL: tf.io.FixedLenFeature([], tf.int64),
}


class Clock(keras.callbacks.Callback):
    """Records seconds and CPU seconds at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.times: list[tuple[float, float]] = []

    def on_epoch_end(self, epoch, logs=None):
        self.times.append((time.monotonic(), cpu_seconds()))


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def batches(paths: list[str], image_shape: tuple[int, int, int], batch: int) -> tf.data.Dataset:
    """Makes a data set as in the guides: parse, decode, cache, shuffle, batch, prefetch."""

    def parse(serialized):
        features = tf.io.parse_single_example(serialized, FEATURES)
        image = tf.ensure_shape(
            tf.io.decode_image(
                features[ENCODED], channels=image_shape[-1], expand_animations=False
            ),
            image_shape,
        )
        return image, features[LABEL]

    dataset = tf.data.TFRecordDataset(paths).map(parse, num_parallel_calls=tf.data.AUTOTUNE).cache()
    dataset = dataset.shuffle(20_000).batch(batch, drop_remainder=True)
    return dataset.map(
        lambda images, labels: (tf.cast(images, tf.float32), labels),
        num_parallel_calls=tf.data.AUTOTUNE,
    ).prefetch(tf.data.AUTOTUNE)


def main(manifest_uri: str, net: str, global_batch_size: int, epochs: int) -> None:
    manifest = read_manifest(manifest_uri)
    figures = DatasetFigures.model_validate(manifest.figures)
    build = {"cnn": build_cnn, "dense": build_dense}[net]
    model = build(figures.image_shape, len(figures.class_names))
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    train, validation = (
        batches(
            list_shard_paths(manifest_uri, manifest, split), figures.image_shape, global_batch_size
        )
        for split in ("train", "validation")
    )
    clock = Clock()
    model.fit(train, validation_data=validation, epochs=epochs, verbose=0, callbacks=[clock])
    (start, start_cpu), (end, end_cpu) = clock.times[0], clock.times[-1]
    steps = (figures.num_examples["train"] // global_batch_size) * (epochs - 1)
    print(json.dumps({"steps": steps, "seconds": end - start, "cpu_seconds": end_cpu - start_cpu}))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
