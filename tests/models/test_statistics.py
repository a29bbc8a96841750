"""Layers that keep statistics of data compute with their weights, however these are set."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from pipeline_ops.config.train import Train
from pipeline_ops.input.framework_internals import list_layers
from pipeline_ops.models import build_model
from pipeline_ops.models.classification import Classification
from pipeline_ops.served.model import ServedClassifier
from pipeline_ops.training.loop import SynchronousLoop
from pipeline_ops.training.self_consistency import LayerMeans
from pipeline_ops.training.warm_start import read_warm_start

SHAPE = (8, 8, 3)
PIXELS = np.random.default_rng(1).integers(0, 256, (6, *SHAPE)).astype(np.float32)


def one(shape, classes):
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Normalization(name="norm"),
            layers.Flatten(),
            layers.Dense(classes, name="answer"),
        ]
    )


def of_positions(shape, classes):
    """Has statistics of each position, in a model in a model, and once more inverted."""
    inner = keras.Sequential(
        [keras.Input(shape), layers.Normalization((1, 2, 3)), layers.Normalization(invert=True)]
    )
    return keras.Sequential(
        [keras.Input(shape), inner, layers.Flatten(), layers.Dense(classes, name="answer")]
    )


class Subclassed(keras.Model):
    """Is built by its first call."""

    def __init__(self, shape, classes):
        super().__init__()
        self.norm, self.flat = layers.Normalization(axis=None), layers.Flatten()
        self.norm.build((None, *shape))  # Keras alone cannot build it in a call
        self.answer = layers.Dense(classes, name="answer")

    def call(self, images, training=False):
        return self.answer(self.flat(self.norm(images)))


class OwnScale(layers.Layer):
    """Keeps a constant as Keras's Normalization does."""

    def build(self, shape):
        self.learned = self.add_weight(shape=(shape[-1],), initializer="ones", trainable=False)
        self.finalize_state()

    def finalize_state(self):
        self.scale = 1 / tf.convert_to_tensor(self.learned)

    def load_own_variables(self, store):
        super().load_own_variables(store)
        self.finalize_state()

    def call(self, values):
        return values * self.scale


def own_layer(shape, classes):
    return keras.Sequential(
        [keras.Input(shape), OwnScale(), layers.Flatten(), layers.Dense(classes, name="answer")]
    )


KINDS = {"one": one, "of positions": of_positions, "subclassed": Subclassed, "own": own_layer}


@pytest.fixture(params=KINDS)
def build(request, user_package, monkeypatch):
    """Returns a function that builds the model by the product, and one by the author."""
    from acme_vision import nets

    monkeypatch.setattr(nets, "with_statistics", KINDS[request.param], raising=False)

    def build(for_training: bool = False) -> keras.Model:
        config = Train(model="acme_vision.nets:with_statistics")
        return build_model(config, SHAPE, 3, Path("/nowhere"), for_training)

    def build_own() -> keras.Model:
        model = KINDS[request.param](SHAPE, 3)
        model(PIXELS)
        return model

    return build, build_own


def draw_weights(model: keras.Model) -> list[np.ndarray]:
    draw = np.random.default_rng(2)
    return [draw.uniform(1, 3, each.shape).astype(each.dtype) for each in model.get_weights()]


def expect(build_own, weights, folder: Path) -> np.ndarray:
    """Returns the answers of Keras alone, which reads the weights from a file."""
    written, model = build_own(), build_own()
    written.set_weights(weights)
    written.save_weights(folder / "a.weights.h5")
    model.load_weights(folder / "a.weights.h5")
    return model(PIXELS, training=False).numpy()


def test_set_weights_and_a_warm_start_count_in_eager_calls_and_in_earlier_graphs(build, tmp_path):
    build, build_own = build
    model = build()
    weights = draw_weights(model)
    expected = expect(build_own, weights, tmp_path)
    traced = tf.function(lambda: model(PIXELS, training=False))
    assert not np.allclose(traced(), expected)
    model.set_weights(weights)
    np.testing.assert_allclose(traced(), expected, rtol=1e-5)
    np.testing.assert_allclose(model(PIXELS, training=False), expected, rtol=1e-5)
    started = build()
    file = str(tmp_path / "a.weights.h5")
    started.set_weights(read_warm_start(file, started, started.get_weights(), build).weights)
    np.testing.assert_allclose(started(PIXELS, training=False), expected, rtol=1e-5)


def test_weights_that_a_loop_takes_count_in_its_next_step_and_in_its_evaluation(build, tmp_path):
    build, build_own = build
    strategy, task = tf.distribute.OneDeviceStrategy("/cpu:0"), Classification(SHAPE)
    config = Train(model="m:m", global_batch_size=6, early_stopping=None)
    with strategy.scope():
        loop = SynchronousLoop(strategy, build(for_training=True), task, config)
    labels = np.arange(6, dtype=np.int64) % 3
    data = tf.data.Dataset.from_tensors((PIXELS.astype(np.uint8), labels)).repeat()
    batches = iter(data)
    loop.train(batches, 0, [0.0])  # traced with other statistics
    loop.evaluate(data.take(1))
    weights = draw_weights(loop.model)
    logits = expect(build_own, weights, tmp_path)
    loop.assign(weights)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    expected = float(tf.reduce_sum(losses))
    assert float(loop.train(batches, 1, [0.0]).sums.loss) == pytest.approx(expected, rel=1e-5)
    loop.assign(weights)
    assert float(loop.evaluate(data.take(1)).loss) == pytest.approx(expected, rel=1e-5)


def test_a_saved_model_has_the_statistics_as_weights_also_after_the_check(build, tmp_path):
    build, build_own = build
    model = build()
    weights = draw_weights(model)
    expected = tf.nn.softmax(expect(build_own, weights, tmp_path))
    LayerMeans(model, PIXELS)
    served = ServedClassifier(model, SHAPE)
    tf.saved_model.save(served, str(tmp_path / "saved"), signatures=served.signatures)
    model.set_weights(weights)
    np.testing.assert_allclose(served.images(PIXELS)["probabilities"], expected, rtol=1e-4)
    tf.saved_model.save(served, str(tmp_path / "other"), signatures=served.signatures)
    loaded = tf.saved_model.load(str(tmp_path / "other"))
    found = loaded.signatures["images"](images=tf.constant(PIXELS))["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def discretize(values):
    layer = layers.Discretization(num_bins=4)
    layer.adapt(np.linspace(-3, 9, 200, dtype=np.float32)[:, None])
    return layers.Rescaling(0.1)(layers.CategoryEncoding(4, "multi_hot")(layer(values)))


def look_up(values):
    layer = layers.IntegerLookup()
    layer.adapt([[3], [3], [2], [0]])
    return layers.Embedding(4, 2)(layer(layers.Discretization([0.0, 1.0, 2.0])(values)))


def weigh(values):
    layer = layers.IntegerLookup(
        vocabulary=[0, 1, 2], idf_weights=[0.2, 0.7, 0.5], output_mode="tf_idf"
    )
    return layer(layers.Discretization([0.0, 1.0])(values))


@pytest.mark.parametrize("encode", [discretize, look_up, weigh])
def test_what_an_adapted_layer_keeps_besides_weights_is_part_of_the_saved_model(
    user_package, monkeypatch, tmp_path, encode
):
    from acme_vision import nets

    def build(shape, classes):
        images = keras.Input(shape)
        values = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.Rescaling(0.01)(images)))
        answer = layers.Dense(classes)(layers.Flatten()(encode(values)))
        return keras.Model(images, layers.Add()([answer, layers.Dense(classes)(values)]))

    monkeypatch.setattr(nets, "encoding", build, raising=False)
    config = Train(model="acme_vision.nets:encoding")
    model, own = build_model(config, SHAPE, 3, Path("/nowhere"), False), build(SHAPE, 3)
    own.set_weights(draw_weights(own))
    model.set_weights(own.get_weights())
    served = ServedClassifier(model, SHAPE)
    tf.saved_model.save(served, str(tmp_path), signatures=served.signatures)
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.signatures["images"](images=tf.constant(PIXELS))["probabilities"]
    np.testing.assert_allclose(found, tf.nn.softmax(own(PIXELS)), rtol=1e-4)


@pytest.mark.models
def test_a_warm_start_of_efficientnet_takes_the_colours_of_its_weights(tmp_path):
    def build() -> keras.Model:
        config = Train(model="efficientnet_b0")
        return build_model(config, (32, 32, 3), 3, Path("/nowhere"), for_training=False)

    images = np.random.default_rng(3).uniform(0, 255, (2, 32, 32, 3)).astype(np.float32)
    source, model, loaded = build(), build(), build()
    norm = next(each for each in list_layers(source) if isinstance(each, layers.Normalization))
    norm.adapt_mean.assign([0.485, 0.456, 0.406])
    norm.adapt_variance.assign([0.052, 0.05, 0.051])
    source.save_weights(tmp_path / "a.weights.h5")
    loaded.load_weights(tmp_path / "a.weights.h5")
    plain = loaded(images, training=False).numpy()
    started = read_warm_start(str(tmp_path / "a.weights.h5"), model, model.get_weights(), build)
    model.set_weights(started.weights)
    np.testing.assert_allclose(model(images, training=False), plain, rtol=1e-5)
    assert not np.allclose(build()(images, training=False), plain, rtol=0.01, atol=0)


@pytest.mark.parametrize(
    ("options", "steps", "share"),
    [
        ({"momentum": 0.999}, 3000, "5%"),
        ({"momentum": 0.99}, 44, "64%"),
        ({"momentum": 0.99}, 3000, None),
        ({"momentum": 0.999, "trainable": False}, 3000, None),
    ],
)
def test_statistics_that_a_training_leaves_as_they_began_are_told(options, steps, share):
    """A MobileNetV2 from random weights answered nothing after 3,000 steps."""
    from pipeline_ops.training.worker import find_unsettled

    normalization = keras.layers.BatchNormalization(**options)
    model = keras.Sequential([keras.Input([4]), keras.Sequential([normalization])])
    told = find_unsettled(model, steps)
    assert len(told) == bool(share)
    assert all(each.startswith(f"After {steps} steps, {share} of the moving") for each in told)
