"""A builder of TensorFlow Datasets with MNIST's features and splits, of scikit-learn's digits.

It downloads them as one file of arrays from the address in DIGITS_URL.
"""

from __future__ import annotations

import io
import os

import cv2
import numpy as np
import tensorflow_datasets as tfds

NUM_TRAIN = 1497


def pack_digits() -> bytes:
    """The file to download: 1,797 real digits as 28x28 grey pixels, in a fixed random order."""
    from sklearn.datasets import load_digits

    digits, order = load_digits(), np.random.default_rng(0).permutation(1797)
    images = [
        cv2.resize(image * (255 / 16), (28, 28), interpolation=cv2.INTER_CUBIC)
        for image in digits.images[order]
    ]
    file = io.BytesIO()
    np.savez(
        file,
        images=np.clip(np.rint(images), 0, 255).astype(np.uint8)[..., None],
        labels=digits.target[order],
    )
    return file.getvalue()


class Digits(tfds.core.GeneratorBasedBuilder):
    """See the module."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(28, 28, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        arrays = np.load(dl_manager.download(os.environ["DIGITS_URL"]))
        pairs = list(zip(arrays["images"], arrays["labels"], strict=True))
        return {
            "train": self._generate_examples(pairs[:NUM_TRAIN]),
            "test": self._generate_examples(pairs[NUM_TRAIN:]),
        }

    def _generate_examples(self, pairs):
        for index, (image, label) in enumerate(pairs):
            yield index, {"image": image, "label": int(label)}
