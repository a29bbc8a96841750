"""Training examples by `tf.data`, as tutorials make them, and some that cannot be trained with."""

from __future__ import annotations

import os
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def load() -> tuple[np.ndarray, np.ndarray]:
    """700 of scikit-learn's digits, uint8 [N, 16, 16, 1], and their labels."""
    digits = load_digits()
    images = digits.images[:700].repeat(2, 1).repeat(2, 2)[..., None] * 15
    return images.astype(np.uint8), digits.target[:700]


def _slice() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(load())


def digits(split, index, count):
    return _slice().shard(count, index)


def changed(split, index, count):
    """Shuffled, and with changes that only AutoGraph can translate."""

    def change(image, label):
        image = tf.cast(image, tf.float32)
        if tf.random.uniform([]) > 0.5:
            image = tf.image.flip_left_right(image)
        return image, label

    return _slice().shard(count, index).shuffle(200).map(change)


def of_a_wrong_label(split, index, count):
    images, labels = load()
    labels[300] = 10
    return tf.data.Dataset.from_tensor_slices((images, labels)).shard(count, index)


def that_raises(split, index, count):
    def generate():
        for number, pair in enumerate(zip(*load(), strict=True)):
            if number == 250:
                raise ValueError("no such picture")
            yield pair

    spec = tf.TensorSpec([16, 16, 1], tf.uint8), tf.TensorSpec([], tf.int64)
    made = tf.data.Dataset.from_generator(generate, output_signature=spec)
    return made.apply(tf.data.experimental.assert_cardinality(700)).shard(count, index)


# What the check refuses


def no_dataset(split, index, count):
    return load()


def endless(split, index, count):
    return _slice().repeat()


def of_unknown_number(split, index, count):
    return _slice().filter(lambda image, label: label < 5)


def empty(split, index, count):
    return _slice().take(0)


def batched(split, index, count):
    return _slice().batch(8)


def larger(split, index, count):
    return _slice().map(lambda image, label: (tf.image.resize(image, [24, 24]), label))


def one_hot(split, index, count):
    return _slice().map(lambda image, label: (image, tf.one_hot(label, 10)))


def doubles(split, index, count):
    return _slice().map(lambda image, label: (tf.cast(image, tf.float64), label))


def named(split, index, count):
    return _slice().map(lambda image, label: {"image": image, "label": label})


def weighted(split, index, count):
    return _slice().map(lambda image, label: (image, label, 1.0))


def fractions(split, index, count):
    return _slice().map(lambda image, label: (tf.cast(image, tf.float32) / 255, label))


def centred(split, index, count):
    return _slice().map(lambda image, label: (tf.cast(image, tf.float32) / 127.5 - 1, label))


def without_mean(split, index, count):
    return _slice().map(lambda image, label: (tf.cast(image, tf.float32) - 103.9, label))


def not_finite(split, index, count):
    return _slice().map(lambda image, label: (tf.cast(image, tf.float32) * np.nan, label))


def from_one(split, index, count):
    return _slice().map(lambda image, label: (image, label + 10))


def whole(split, index, count):
    return _slice()


def of_two_arguments(split, index):
    return _slice()


def broken(split, index, count):
    return open("/nowhere/digits.npz")


def failing(split, index, count):
    def read(image, label):
        return tf.io.decode_png(tf.io.read_file("/nowhere/1.png")), label

    return _slice().map(read)


def slow(split, index, count):
    def wait(image):
        time.sleep(30)
        return image

    return _slice().map(
        lambda x, y: (tf.ensure_shape(tf.py_function(wait, [x], x.dtype), x.shape), y)
    )


# Tutorials


def of_a_folder(split, index, count):
    """TensorFlow's "Load and preprocess images", with single images."""
    made = tf.keras.utils.image_dataset_from_directory(
        os.environ["ACME_DATA"], image_size=(16, 16), color_mode="grayscale",
        interpolation="nearest", batch_size=None, shuffle=False,
    )  # fmt: skip
    return made.shard(count, index)


def of_npz(split, index, count):
    """TensorFlow's "Load NumPy data"."""
    with np.load(os.environ["ACME_DATA"] + "/mnist.npz") as data:
        train_examples, train_labels = data["x_train"], data["y_train"]
    train = tf.data.Dataset.from_tensor_slices((train_examples[..., None], train_labels))
    return train.shard(count, index).shuffle(100, seed=7)


def of_cifar(split, index, count):
    """Labels in a column, as Keras's `cifar10.load_data` has them."""
    images, labels = load()
    made = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels[:, None]))
    return made.shard(count, index).prefetch(tf.data.AUTOTUNE)


def of_a_generator(split, index, count):
    images, labels = load()

    def generate():
        yield from zip(images[index::count], labels[index::count], strict=True)

    made = tf.data.Dataset.from_generator(generate, (tf.uint8, tf.int64))
    number = len(range(index, len(images), count))
    return made.apply(tf.data.experimental.assert_cardinality(number))


def of_tfrecords(split, index, count):
    """TensorFlow's "TFRecord and tf.train.Example"."""
    features = {
        "image_raw": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        return tf.io.decode_png(example["image_raw"], channels=1), example["label"]

    files = tf.data.Dataset.list_files(os.environ["ACME_DATA"] + "/*.tfrecords", shuffle=False)
    records = tf.data.TFRecordDataset(files).shard(count, index)
    number = len(range(index, 700, count))
    return records.apply(tf.data.experimental.assert_cardinality(number)).map(parse)


def of_files(split, index, count):
    """TensorFlow's "tf.data: Build input pipelines", sets of files: the class is the folder."""
    names = tf.constant([str(digit) for digit in range(10)])
    files = tf.data.Dataset.list_files(os.environ["ACME_DATA"] + "/*/*.png", shuffle=False)

    def process(path):
        label = tf.argmax(tf.strings.split(path, os.sep)[-2] == names)
        image = tf.image.decode_png(tf.io.read_file(path), channels=1)
        return tf.image.resize(image, [16, 16], "nearest"), label

    return files.shard(count, index).map(process, num_parallel_calls=tf.data.AUTOTUNE).cache()
