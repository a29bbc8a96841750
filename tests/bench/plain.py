"""The lower bound to compare with: one script in one process does the same work, with nothing of
what a pipeline is for.

python tests/bench/plain.py RAW_FOLDER OUT_FOLDER EPOCHS
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import keras
import tensorflow as tf


def main(raw: Path, out: Path, epochs: int) -> None:
    files = sorted(raw.glob("*/*.png"))
    classes = sorted({file.parent.name for file in files})
    is_test = [
        hashlib.blake2b(str(file.relative_to(raw)).encode(), digest_size=1).digest()[0] < 51
        for file in files
    ]
    for name, belongs_to_test in (("train", False), ("test", True)):
        with tf.io.TFRecordWriter(str(out / f"{name}.tfrecord")) as writer:
            for file, test in zip(files, is_test, strict=True):
                if test is belongs_to_test:
                    writer.write(example(file.read_bytes(), classes.index(file.parent.name)))
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(len(classes)),
        ]
    )
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    model.fit(batches(out / "train.tfrecord", 64).shuffle(100), epochs=epochs, verbose=0)
    print("accuracy", model.evaluate(batches(out / "test.tfrecord", 256), verbose=0)[1])
    model.export(out / "saved_model", verbose=False)


def example(encoded: bytes, label: int) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def batches(path: Path, size: int) -> tf.data.Dataset:
    def parse(serialized):
        features = tf.io.parse_single_example(serialized, FEATURES)
        return tf.cast(tf.io.decode_png(features["image"], channels=1), tf.float32), features[
            "label"
        ]

    return (
        tf.data.TFRecordDataset(str(path)).map(parse, num_parallel_calls=2).batch(size).prefetch(2)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
