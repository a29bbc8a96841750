"""A network with depthwise convolutions and batch normalization, published in every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from linear_models import read_examples, write_served_model
from sandbox import Sandbox
from small_datasets import write_dataset

from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import SPLITS, list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import ModelFigures

FORMATS = ["saved_model", "tflite", "tflite_int8", "onnx"]
NUM_REFERENCES = 64
SIDE = 32
"""The smallest images of a MobileNet."""

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def large_dataset(dataset, tmp_path_factory) -> str:
    """The same digits with 32x32 pixels."""
    import tensorflow as tf

    manifest, splits = read_manifest(dataset), {}
    for split in SPLITS:
        _, images, labels = read_examples(list_shard_paths(dataset, manifest, split))
        large = tf.image.resize(255 * images.reshape(-1, 16, 16, 1), (SIDE, SIDE))
        files = [tf.io.encode_png(tf.cast(each, tf.uint8)).numpy() for each in tf.round(large)]
        splits[split] = list(zip(files, labels.tolist(), strict=True))
    folder = tmp_path_factory.mktemp("large") / "dataset"
    folder.mkdir()
    names = manifest.figures["class_names"]
    return write_dataset(folder, (SIDE, SIDE, 1), names, splits)


def train_network(images, labels):
    """A MobileNetV3 after some passes over a few images, so that its statistics follow faster."""
    import keras

    from pipeline_ops import models
    from pipeline_ops.input.framework_internals import list_layers

    keras.utils.set_random_seed(3)
    config = Train(model="mobilenet_v3_small")
    network = models.build_model(config, (SIDE, SIDE, 1), 10, Path(), for_training=False)
    for layer in list_layers(network):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.8
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(2e-3), loss)
    network.fit(images, labels, epochs=3, verbose=0)
    return network


def test_a_mobilenet_is_the_same_model_in_every_format(large_dataset, tmp_path):

    from pipeline_ops.served.model import ServedClassifier

    manifest = read_manifest(large_dataset)
    _, images, labels = read_examples(list_shard_paths(large_dataset, manifest, "train"))
    images = (255 * images).astype(np.float32).reshape(-1, SIDE, SIDE, 1)
    served = ServedClassifier(train_network(images, labels), (SIDE, SIDE, 1))
    tests, _, _ = read_examples(list_shard_paths(large_dataset, manifest, "test"))
    (tmp_path / "model").mkdir()
    write_served_model(tmp_path / "model", served, tests[:NUM_REFERENCES])
    sandbox = Sandbox(tmp_path / "root", large_dataset, {"mobilenet": tmp_path / "model"})
    sandbox.publish("mobilenet", export__formats=FORMATS, export__int8={"top1_agreement": 0.9})
    figures = sandbox.registry.find_champion().read_manifest().figures
    found = {each.name: each for each in ModelFigures.model_validate(figures).formats}
    assert list(found) == FORMATS
    for name, each in found.items():
        is_coarse = name == "tflite_int8"
        assert each.num_checked == NUM_REFERENCES
        assert each.top1_agreement >= (0.9 if is_coarse else 1.0)
        assert each.max_difference <= (0.3 if is_coarse else 1e-4)
    assert found["tflite_int8"].num_bytes < 0.5 * found["tflite"].num_bytes
