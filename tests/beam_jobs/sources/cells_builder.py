"""A TensorFlow Datasets builder of a user. Imported by a module path,
as one in a config is."""

from __future__ import annotations

import numpy as np
import tensorflow_datasets as tfds


class MyCells(tfds.core.GeneratorBasedBuilder):
    """Images of one brightness each; image `i` has `i % 3` boxes. If `i` is even, the second one is
    a crowd."""

    VERSION = tfds.core.Version("1.2.0")

    def _info(self):
        objects = {
            "bbox": tfds.features.BBoxFeature(),
            "label": tfds.features.ClassLabel(names=["red", "white"]),
            "is_crowd": np.bool_,
        }
        features = {
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
            "objects": tfds.features.Sequence(objects),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, _):
        return {
            "train": self._generate_examples(range(20)),
            "holdout": self._generate_examples(range(20, 26)),
        }

    def _generate_examples(self, indices):
        for index in indices:
            boxes = [
                {
                    "bbox": tfds.features.BBox(0.0, 0.25, 0.5, 0.75),
                    "label": number,
                    "is_crowd": number > index % 2,
                }
                for number in range(index % 3)
            ]
            yield index, {"image": np.full((8, 12, 3), index, np.uint8), "objects": boxes}


class Labelled(tfds.core.GeneratorBasedBuilder):
    """For classification, in two configs."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="small"), tfds.core.BuilderConfig(name="large")]

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(8, 8, 1)),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, _):
        return {"train": self._generate_examples(12 if self.builder_config.name == "large" else 4)}

    def _generate_examples(self, count):
        for index in range(count):
            yield (
                index,
                {
                    "image": np.full((8, 8, 1), index, np.uint8),
                    "label": index % 2 if index != 3 else -1,
                },
            )


class Words(tfds.core.GeneratorBasedBuilder):
    """Nothing to look at."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()})
        )

    def _split_generators(self, _):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"text": "word"}
