"""A model of the user's that returns probabilities returns logits to the training and to the
export, with the weights and names that it has without Trainyard.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.models import build_model
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.loop import SynchronousLoop
from pipeline_ops.training.self_consistency import check_model_of_author
from pipeline_ops.training.warm_start import read_warm_start

SHAPE = (8, 8, 1)
SOFTMAX = (
    "last_layer",
    "not_built",
    "layer",
    "inner_model",
    "operation",
    "reshaped",
    "own_layer",
    "Subclassed",
    "OnlyInService",
    "build",
)


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (5, *SHAPE)).astype(np.float32)


@pytest.fixture
def build(user_package):
    """Returns the model of the config, and the same one as its function returns it."""

    def build(name: str, num_classes: int = 3, **options) -> tuple[keras.Model, keras.Model]:
        config = Train.model_validate({"model": f"acme_vision.endings:{name}"} | options)
        keras.backend.clear_session()
        model = build_model(config, SHAPE, num_classes, Path("/nowhere"), bool(options))
        keras.backend.clear_session()
        keras.config.set_dtype_policy("float32")
        own = getattr(importlib.import_module("acme_vision.endings"), name)(SHAPE, num_classes)
        own(np.zeros((1, *SHAPE), np.float32))
        assert [each.path for each in model.weights] == [each.path for each in own.weights]
        own.set_weights(model.get_weights())
        return model, own

    return build


@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.models
def test_a_model_that_ends_in_softmax_returns_logits(build, images, name, training):
    model, own = build(name)
    outputs = tf.function(lambda: model(images, training=training))().numpy()
    assert not np.allclose(outputs.sum(axis=1), 1)
    probabilities = own(images, training=False).numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(tf.nn.softmax(outputs), probabilities, rtol=1e-4, atol=1e-7)
    without_graph = model(images, training=training).numpy()
    np.testing.assert_allclose(tf.nn.softmax(without_graph), probabilities, rtol=1e-4, atol=1e-7)


def test_a_probability_that_underflows_has_a_gradient(build, images):
    model, own = build("last_layer")
    model.set_weights([1e3 * each for each in model.get_weights()])
    own.set_weights(model.get_weights())
    probabilities = own(images).numpy()
    label = probabilities[0].argmin()
    assert probabilities[0, label] == 0

    @tf.function
    def differentiate() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(images[:1], training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits([label], logits)
        return tape.gradient(loss, [each.value for each in model.trainable_variables])

    bias = differentiate()[1].numpy()
    np.testing.assert_allclose(bias, probabilities[0] - np.eye(3)[label], atol=1e-6)


def test_a_single_sigmoid_is_the_probability_of_the_second_of_two_classes(build, images):
    model, own = build("single", num_classes=2)
    model.set_weights([each / 1e3 for each in model.get_weights()])
    own.set_weights(model.get_weights())
    second = own(images).numpy()[:, 0]
    for call in (model, tf.function(model)):
        found = tf.nn.softmax(call(images)).numpy()
        np.testing.assert_allclose(found, np.stack([1 - second, second], axis=1), rtol=1e-4)
    with pytest.raises(ConfigError, match=r"has outputs of shape \[1\] .* has 3 classes"):
        build("single", num_classes=3)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("last_layer", "a.keras"),
        ("layer", "a.weights.h5"),
        ("inner_model", "a.keras"),
        ("Subclassed", "a.weights.h5"),
    ],
)
def test_weights_that_keras_saved_of_the_model_are_a_warm_start(build, tmp_path, name, file):
    model, own = build(name)
    own.set_weights([each + 1 for each in own.get_weights()])
    own.save_weights(tmp_path / file) if file.endswith("h5") else own.save(tmp_path / file)
    warm_start = read_warm_start(
        str(tmp_path / file), model, model.get_weights(), lambda: build(name)[0]
    )
    assert warm_start.left_out == ()
    for found, saved in zip(warm_start.weights, own.get_weights(), strict=True):
        np.testing.assert_array_equal(found, saved)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["last_layer", "layer", "inner_model", "Subclassed"])
def test_logits_are_found_in_every_precision(build, images, name, precision):
    model, own = build(name, precision=precision)
    probabilities = own(images / 255).numpy()
    for call in (model, tf.function(model)):
        outputs = tf.cast(call(images / 255), tf.float32).numpy()
        assert not np.allclose(outputs.sum(axis=1), 1, atol=0.05)
        np.testing.assert_allclose(tf.nn.softmax(outputs), probabilities, atol=0.02)


def _append(*after):
    """Returns a function that builds a classifier with softmax, and layers after it."""

    def build(shape, classes):
        answer = layers.Dense(classes, "softmax", name="answer")
        scaled = [keras.Input(shape), layers.Rescaling(1 / 255), layers.Flatten()]
        return keras.Sequential([*scaled, answer, *[make() for make in after]])

    return build


class Ending(keras.Model):
    """Ends in `function(logits, training, gate)`."""

    def __init__(self, function, classes):
        super().__init__()
        self.flat, self.answer = layers.Flatten(), layers.Dense(classes)
        self.gate, self.function = layers.Dense(classes, "softmax"), function

    def call(self, images, training=False):
        values = self.flat(images) / 255
        return self.function(self.answer(values), training, self.gate(values))


def _smooth(logits, training, gate):
    """Smoothes labels in its own way."""
    probabilities = tf.nn.softmax(logits)
    return 0.9 * probabilities + 0.1 / 3 if training else probabilities


CHANGED = {
    "GaussianNoise": _append(lambda: layers.GaussianNoise(0.05)),
    "Dropout": _append(lambda: layers.Dropout(0.1)),
    "GaussianDropout": _append(lambda: layers.GaussianDropout(0.1)),
    "noise and a reshape": _append(
        lambda: layers.AlphaDropout(0.1), lambda: layers.Reshape((3,)), lambda: layers.Identity()
    ),
    "smoothed": lambda shape, classes: Ending(_smooth, classes),
    "softmax in training alone": lambda shape, classes: Ending(
        lambda logits, training, gate: tf.nn.softmax(logits) if training else logits, classes
    ),
}
SOUND = {
    "logits in training": lambda logits, training, gate: (
        logits if training else tf.nn.softmax(logits)
    ),
    "noise before": lambda logits, training, gate: tf.nn.softmax(
        logits + 0.01 * tf.cast(training, tf.float32)
    ),
    "temperature": lambda logits, training, gate: (
        logits if training else tf.nn.softmax(logits / 1.5)
    ),
    "gated": lambda logits, training, gate: (
        gate * logits if training else tf.nn.softmax(gate * logits)
    ),
    "logarithms in training": lambda logits, training, gate: (
        tf.math.log(tf.nn.softmax(logits)) if training else tf.nn.softmax(logits)
    ),
    "logits": lambda logits, training, gate: logits,
}


@pytest.fixture
def build_ending(user_package, monkeypatch):
    from acme_vision import nets

    config = Train(model="acme_vision.nets:ending", early_stopping=None)

    def build(function, for_training: bool = True) -> tuple[keras.Model, Train]:
        monkeypatch.setattr(nets, "ending", function, raising=False)
        return build_model(config, SHAPE, 3, Path("/nowhere"), for_training), config

    return build


@pytest.mark.parametrize("kind", CHANGED)
def test_probabilities_that_only_the_training_changes_are_refused_by_both_ends(
    build_ending, images, kind
):
    message = (
        r"^train.model: acme_vision.nets:ending ends in \w+ \(\S+\) when it answers, and in \w+ "
        r"\(\S+\) in training\. The loss takes logits"
    )
    model, config = build_ending(CHANGED[kind])
    strategy = tf.distribute.get_strategy()
    loop = SynchronousLoop(strategy, model, Classification(SHAPE), config)
    labels = np.arange(5, dtype=np.int64) % 3
    batches = iter(tf.data.Dataset.from_tensors((images.astype(np.uint8), labels)).repeat())
    with pytest.raises(ConfigError, match=message):
        loop.trace(batches, 0, [0.01])
    served, _ = build_ending(CHANGED[kind], for_training=False)
    with pytest.raises(ConfigError, match=message):
        check_model_of_author(served, tf.constant(images), f"train.model: {config.model}")


@pytest.mark.parametrize("kind", SOUND)
def test_a_model_may_return_in_training_what_its_softmax_takes(build_ending, images, kind):
    model, config = build_ending(lambda shape, classes: Ending(SOUND[kind], classes))
    own = Ending(SOUND[kind], 3)
    own(images)
    own.set_weights(model.get_weights())
    for training in (True, False):
        found = tf.function(lambda training=training: model(images, training=training))()
        expected = own(images, training=training).numpy()
        if not np.allclose(expected.sum(axis=1), 1):
            expected = tf.nn.softmax(expected)
        np.testing.assert_allclose(tf.nn.softmax(found), expected, rtol=1e-4)
    check_model_of_author(model, tf.constant(images), f"train.model: {config.model}")
