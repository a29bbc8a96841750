"""Linear classifiers, fitted in closed form: small real models that cost milliseconds.

A good one and a poor one differ in the number of examples that they have seen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline_ops.contract.dataset import ENCODED, LABEL, DatasetFigures, StageFigures
from pipeline_ops.contract.manifest import Manifest
from pipeline_ops.contract.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    Epoch,
    TrainingFigures,
)
from pipeline_ops.served.preprocessing import Preprocessing

DIGITS = Preprocessing(
    (
        StageFigures(name="decode", parameters={"channels": 1}, served="in_graph"),
        StageFigures(name="resize", parameters={"height": 16, "width": 16}, served="in_graph"),
    )
)


def read_examples(paths: Sequence[str]):
    """Serialised examples, and their images (float [N, pixels]) and labels."""
    from pipeline_ops.input.tensorflow_start import tf

    records = list(tf.data.TFRecordDataset(list(paths)).as_numpy_iterator())
    parsed = tf.io.parse_example(
        records,
        {ENCODED: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64)},
    )
    images = np.stack(
        [tf.io.decode_image(image).numpy().ravel() for image in parsed[ENCODED].numpy()]
    )
    return records, images / 255.0, parsed[LABEL].numpy()


def fit(images: np.ndarray, labels: np.ndarray, num_classes: int = 10) -> np.ndarray:
    """Weights [pixels + 1, classes] of a ridge regression on the classes."""
    inputs, targets = np.c_[images, np.ones(len(images))], np.eye(num_classes)[labels]
    return np.linalg.solve(inputs.T @ inputs + 3.0 * np.eye(inputs.shape[1]), inputs.T @ targets)


def write_model(folder: Path, weights: np.ndarray, references: Sequence[bytes]) -> None:
    """A SavedModel as `served/contract.py` has it, reference examples, and the model's own answers
    to them."""
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.served.model import ServedClassifier, add_assets

    class Linear(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(weights, dtype=tf.float32)

        def __call__(self, images, training):
            flat = tf.reshape(images, [-1, weights.shape[0] - 1])
            return 8.0 * tf.pad(flat / 255.0, [[0, 0], [0, 1]], constant_values=1.0) @ self.weights

    names = [str(number) for number in range(weights.shape[1])]
    served = ServedClassifier(Linear(), (16, 16, 1), DIGITS)
    with tempfile.TemporaryDirectory() as work:
        add_assets(served, names, DIGITS, Path(work))
        write_served_model(folder, served, references)


def write_served_model(folder: Path, served, references: Sequence[bytes]) -> None:
    """`references` are serialised test examples, whose images stand for raw files, too."""
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.served.client import RawRecord, decode_pixels, pack_raw_record

    tf.saved_model.save(served, str(folder / SAVED_MODEL), signatures=served.signatures)
    parsed = tf.io.parse_example(list(references), {ENCODED: tf.io.FixedLenFeature([], tf.string)})
    images = parsed[ENCODED].numpy().tolist()
    decoded = tf.cast(served.decode(parsed[ENCODED])["images"], tf.uint8)
    pixels = [tf.io.encode_png(each).numpy() for each in decoded]
    with tf.io.TFRecordWriter(str(folder / REFERENCE_EXAMPLES)) as writer:
        for number, image in enumerate(images):
            key = f"{number}.png"
            writer.write(pack_raw_record(RawRecord(key, image, "PNG", [key], [pixels[number]])))
    answers = served.images(decode_pixels(pixels, served.image_shape))["probabilities"]
    np.save(folder / REFERENCE_OUTPUTS, answers)


def training_figures(dataset: Manifest) -> TrainingFigures:
    """The figures that the training of such a model would leave."""
    figures = DatasetFigures.model_validate(dataset.figures)
    history = [
        Epoch(
            epoch=e - 1,
            step=11 * e,
            learning_rate=1e-3 * 0.5 ** max(0, (e - 8) // 3),
            metrics={
                "loss": 2.2 * 0.72**e,
                "accuracy": 1 - 0.5 * 0.75**e,
                "validation_loss": 0.12 + 1.9 * 0.7**e + 0.003 * max(0, e - 9),
                "validation_accuracy": 0.975 - 0.4 * 0.7**e - 0.0005 * max(0, e - 9),
            },
        )
        for e in range(1, 16)
    ]
    return TrainingFigures(
        strategy="multi_worker_mirrored",
        workers=2,
        steps=165,
        restarts=0,
        weights_digest="0" * 32,
        worker_weights_digests=["0" * 32] * 2,
        num_parameters=2570,
        best_epoch=9,
        stopped_early=True,
        history=history,
        seconds=12.3,
        class_names=figures.class_names,
        image_shape=figures.image_shape,
    )
