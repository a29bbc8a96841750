"""Models that are more than their weights, each as people write them, and some that are not."""

from __future__ import annotations

import os
import random
import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def _make(image_shape, num_classes, body):
    image = keras.Input(image_shape)
    x = layers.Flatten()(layers.Rescaling(1 / 255)(image))
    return keras.Model(image, layers.Dense(num_classes)(body(layers.Dense(16, "tanh")(x))))


# What the function draws, or takes from elsewhere


class Projection(layers.Layer):
    def __init__(self, matrix):
        super().__init__()
        self.matrix = tf.constant(matrix, tf.float32)

    def call(self, x):
        return tf.cos(x @ self.matrix)


def fourier(image_shape, num_classes):
    """Random Fourier features from a generator without a seed."""
    draw = np.random.default_rng()
    return _make(image_shape, num_classes, Projection(draw.normal(size=(16, 24))))


def permuted(image_shape, num_classes):
    order = list(range(16))
    random.SystemRandom().shuffle(order)
    return _make(image_shape, num_classes, lambda x: keras.ops.take(x, order, axis=1))


def timed(image_shape, num_classes):
    return _make(image_shape, num_classes, lambda x: x * (time.time_ns() % 1000))


def of_the_process(image_shape, num_classes):
    return _make(image_shape, num_classes, lambda x: x + os.getpid() % 97)


class Unnamed(keras.Model):
    """Branches without names, in the order of a set of objects."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)
        kinds = {factor: object() for factor in range(12)}
        self.factors = {key: n for n, key in kinds.items()}
        self.branches = []
        for key in set(kinds.values()):
            self.branches.append((layers.Dense(5, "tanh"), self.factors[key]))
        self.kept = [layer for layer, _ in self.branches]

    def call(self, x, training=False):
        x = self.flatten(x) / 255.0
        return self.answer(sum((n + 1) * layer(x) for layer, n in self.branches))


# Variables that are no weights


class Gain(layers.Layer):
    def build(self, shape):
        self.gain = tf.Variable(tf.zeros(shape[-1:]), name="gain")

    def call(self, x):
        return x * (1.0 + self.gain)


def raw_variable(image_shape, num_classes):
    return _make(image_shape, num_classes, Gain())


class _Helper:
    def __init__(self):
        self.dense = layers.Dense(12, "tanh")

    def __call__(self, x):
        return self.dense(x)


class Hidden(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)
        self.helper = _Helper()

    def call(self, x, training=False):
        return self.answer(self.helper(self.flatten(x) / 255.0))


_SHARED = layers.Dense(12, "tanh")


class AtModuleLevel(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)

    def call(self, x, training=False):
        return self.answer(_SHARED(self.flatten(x) / 255.0))


# Answers that are not repeated


class Noise(layers.Layer):
    def call(self, x):
        return x + 0.1 * tf.random.normal(tf.shape(x))


def noisy(image_shape, num_classes):
    return _make(image_shape, num_classes, Noise())


class MonteCarlo(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.drop = layers.Flatten(), layers.Dropout(0.5)
        self.answer = layers.Dense(num_classes)

    def call(self, x, training=False):
        return self.answer(self.drop(self.flatten(x) / 255.0, training=True))


class NumpyNoise(layers.Layer):
    def call(self, x):
        return x + np.random.default_rng().normal(size=x.shape[-1])


def traced_noise(image_shape, num_classes):
    """Becomes a constant when the graph is traced."""
    return _make(image_shape, num_classes, NumpyNoise())


class Counting(layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        self.seen.assign_add(1.0)
        return x * (1 + 1 / self.seen)


def counting(image_shape, num_classes):
    return _make(image_shape, num_classes, Counting())


# Operations that a SavedModel cannot have


class InNumpy(layers.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32), x.shape)


class InPython(layers.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.py_function(tf.tanh, [x], tf.float32), x.shape)


class InAMap(layers.Layer):
    def call(self, x):
        def one(row):
            return tf.ensure_shape(tf.numpy_function(np.tanh, [row], tf.float32), row.shape)

        return tf.map_fn(one, x)


def in_numpy(image_shape, num_classes):
    return _make(image_shape, num_classes, InNumpy())


def in_python(image_shape, num_classes):
    return _make(image_shape, num_classes, InPython())


def in_a_map(image_shape, num_classes):
    return _make(image_shape, num_classes, InAMap())


# Sound ones


def seeded(image_shape, num_classes):
    """Draws from NumPy's global generator, whose seed is that of the training."""
    return _make(image_shape, num_classes, Projection(np.random.normal(size=(16, 24))))


def augmented(image_shape, num_classes):
    """Augmentation layers in the model, as in the tutorials."""
    image = keras.Input(image_shape)
    x = layers.RandomFlip("horizontal")(image)
    x = layers.RandomRotation(0.1)(x)
    x = layers.RandomZoom(0.1)(x)
    x = layers.RandomContrast(0.2)(x)
    x = layers.Rescaling(1 / 255)(x)
    x = layers.Conv2D(8, 3, strides=2, activation="relu")(x)
    x = layers.Dropout(0.3)(layers.Flatten()(x))
    return keras.Model(image, layers.Dense(num_classes)(x))


def recurrent(image_shape, num_classes):
    image = keras.Input(image_shape)
    x = layers.Reshape((image_shape[0], -1))(layers.Rescaling(1 / 255)(image))
    x = layers.Bidirectional(layers.GRU(8, dropout=0.2, recurrent_dropout=0.1))(x)
    return keras.Model(image, layers.Dense(num_classes)(x))


def named_set(image_shape, num_classes):
    parts = {"a", "b", "c", "d", "e"}
    image = keras.Input(image_shape)
    x = layers.Flatten()(layers.Rescaling(1 / 255)(image))
    made = {name: layers.Dense(6, "tanh", name=name)(x) for name in parts}
    joined = layers.Concatenate()([made[name] for name in sorted(parts)])
    return keras.Model(image, layers.Dense(num_classes)(joined))


def monte_carlo_of_keras(image_shape, num_classes):
    """Keras itself switches this one off in an answer, as in `predict`."""
    return _make(image_shape, num_classes, lambda x: layers.Dropout(0.3)(x, training=True))


def deep(image_shape, num_classes):
    """Thirty layers without a normalization, in which a shift of all weights would overflow."""
    image = x = keras.Input(image_shape)
    for _ in range(30):
        x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    return keras.Model(image, layers.Dense(num_classes)(layers.Flatten()(x)))


class Compiled(layers.Layer):
    """Calls its layers inside of a tf.function, which keeps the weights of its first call."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Dense(8, "tanh"), layers.Dense(8, "tanh")

    def build(self, shape):
        self.first.build(shape)
        self.second.build((shape[0], 8))

    @tf.function
    def call(self, x):
        return {"x": self.second(self.first(x)), "size": tf.shape(x)}


class Functions(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.compiled = layers.Flatten(), Compiled()
        self.answer = layers.Dense(num_classes)

    def call(self, x, training=False):
        return self.answer(self.compiled(self.flatten(x) / 255.0)["x"])


# Answers that depend on the other images of the batch


class Centred(layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)


class BatchDeviation(layers.Layer):
    """The standard deviation of a minibatch as one more feature."""

    def build(self, shape):
        self.gain = self.add_weight(shape=(), initializer="zeros", name="gain")

    def call(self, x):
        spread = tf.math.reduce_std(x, axis=0, keepdims=True)
        return tf.concat([x, self.gain * tf.broadcast_to(spread, tf.shape(x))], -1)


class Standardized(layers.Layer):
    """Meant to standardize each image."""

    def call(self, x):
        return (x - tf.reduce_mean(x)) / tf.math.reduce_std(x)


class OwnNormalization(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)

    def call(self, x, training=False):
        x = self.flatten(x) / 255.0
        return self.answer(tf.nn.batch_normalization(x, *tf.nn.moments(x, [0]), None, None, 1e-3))


def centred(image_shape, num_classes):
    return _make(image_shape, num_classes, Centred())


def batch_deviation(image_shape, num_classes):
    return _make(image_shape, num_classes, BatchDeviation())


def standardized(image_shape, num_classes):
    image = keras.Input(image_shape)
    x = layers.Flatten()(Standardized()(image))
    return keras.Model(image, layers.Dense(num_classes)(x))


def softmax_of_the_batch(image_shape, num_classes):
    softmax = layers.Lambda(lambda x: tf.nn.softmax(x, axis=0), output_shape=(16,))
    return _make(image_shape, num_classes, softmax)


def divided_by_the_largest(image_shape, num_classes):
    return _make(image_shape, num_classes, lambda x: x / keras.ops.max(x))


# Losses that depend on the number of images


class Penalized(layers.Layer):
    def __init__(self, penalty, rate=0.0):
        super().__init__()
        self.penalty, self.drop = penalty, layers.Dropout(rate)

    def call(self, x, training=False):
        if training:
            self.add_loss(1e-2 * self.penalty(self.drop(x, training=True)))
        return x


def summed_loss(image_shape, num_classes):
    return _make(image_shape, num_classes, Penalized(lambda x: tf.reduce_sum(x**2)))


def summed_loss_of_dropout(image_shape, num_classes):
    return _make(image_shape, num_classes, Penalized(lambda x: -tf.reduce_sum(x**2), 0.5))


def loss_for_each_image(image_shape, num_classes):
    return _make(image_shape, num_classes, Penalized(lambda x: tf.reduce_sum(x**2, 1)))


def loss_for_each_pair(image_shape, num_classes):
    return _make(image_shape, num_classes, Penalized(lambda x: tf.reduce_sum(x @ tf.transpose(x))))


class SummedLoss(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)

    def call(self, x, training=False):
        x = self.answer(self.flatten(x) / 255.0)
        self.add_loss(1e-3 * tf.nn.l2_loss(x))
        return x


# Variables in branches, loops and functions


class Scale(tf.Module):
    def __init__(self):
        super().__init__()
        self.gain = tf.Variable(1.5)

    @tf.function
    def __call__(self, x):
        return x * self.gain


class Inside(layers.Layer):
    def __init__(self, compute):
        super().__init__()
        self.scale, self.compute = Scale(), compute

    def call(self, x):
        return self.compute(x, self.scale)


def in_a_branch(image_shape, num_classes):
    def compute(x, scale):
        return tf.cond(x[0, 0] > -2.0, lambda: x * scale.gain, lambda: x)

    return _make(image_shape, num_classes, Inside(compute))


def in_a_loop(image_shape, num_classes):
    def compute(x, scale):
        return tf.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y * scale.gain), (0, x))[1]

    return _make(image_shape, num_classes, Inside(compute))


def in_a_function(image_shape, num_classes):
    return _make(image_shape, num_classes, Inside(lambda x, scale: scale(x)))


def in_a_function_of_a_branch(image_shape, num_classes):
    def compute(x, scale):
        return tf.cond(x[0, 0] > -2.0, lambda: scale(x), lambda: x)

    return _make(image_shape, num_classes, Inside(compute))


def layer_in_a_map(image_shape, num_classes):
    helper = _Helper()
    helper.dense.build((None, 16))
    compute = layers.Lambda(lambda x: tf.map_fn(lambda y: helper(y[None])[0], x))
    return _make(image_shape, num_classes, compute)


def noisy_in_a_branch(image_shape, num_classes):
    def compute(x, _):
        return tf.cond(x[0, 0] > -2.0, lambda: x + tf.random.normal(tf.shape(x)), lambda: x)

    return _make(image_shape, num_classes, Inside(compute))


# Values of Python that change between two calls


class InTraining(layers.Layer):
    def __init__(self, compute):
        super().__init__()
        self.compute, self.calls, self.rate = compute, 0, 1.0

    def call(self, x, training=False):
        return self.compute(self, x) if training else x


def counted_in_python(image_shape, num_classes):
    def compute(layer, x):
        layer.calls += 1
        return x / layer.calls

    return _make(image_shape, num_classes, InTraining(compute))


def annealed_in_python(image_shape, num_classes):
    def compute(layer, x):
        layer.rate *= 0.99
        return tf.map_fn(lambda y: y * layer.rate, x)

    return _make(image_shape, num_classes, InTraining(compute))


def first_call(image_shape, num_classes):
    def compute(layer, x):
        layer.calls += 1
        return tf.tanh(x) if layer.calls == 1 else x

    return _make(image_shape, num_classes, InTraining(compute))


# What is seen in a training alone


def fails_in_training(image_shape, num_classes):
    return _make(image_shape, num_classes, InTraining(lambda _, x: x @ tf.ones((3, 3))))


def key_error_in_training(image_shape, num_classes):
    return _make(image_shape, num_classes, InTraining(lambda _, x: {}["rate"]))


def branches_on_a_tensor_in_training(image_shape, num_classes):
    return _make(
        image_shape, num_classes, InTraining(lambda _, x: x if tf.reduce_mean(x) > 0 else 2 * x)
    )


class Misspelt(layers.Layer):
    def call(self, x):
        return x * self.scael


def misspelt(image_shape, num_classes):
    return keras.Sequential([Misspelt(), layers.Flatten(), layers.Dense(num_classes)])


class Paired(keras.Model):
    """Two outputs in training, and their mean otherwise, as keras.io's DeiT."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten = layers.Flatten()
        self.heads = [layers.Dense(num_classes), layers.Dense(num_classes)]

    def call(self, images, training=False):
        first, second = (head(self.flatten(images)) for head in self.heads)
        return (first, second) if training else (first + second) / 2


class Auxiliary(keras.Model):
    """An auxiliary classifier that is first called in a training."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.answer = layers.Flatten(), layers.Dense(num_classes)
        self.second = layers.Dense(3)

    def call(self, x, training=False):
        x = self.flatten(x) / 255.0
        if training:
            self.add_loss(tf.reduce_mean(self.second(x) ** 2))
        return self.answer(x)


# Parts of Keras and TensorFlow that are not for this


def stateful(image_shape, num_classes):
    image = keras.Input(batch_shape=(4, *image_shape))
    x = layers.Reshape((image_shape[0], -1))(layers.Rescaling(1 / 255)(image))
    return keras.Model(image, layers.Dense(num_classes)(layers.GRU(8, stateful=True)(x)))


def drawn_without_generator(image_shape, num_classes):
    def compute(_, x):
        return x + keras.random.normal(keras.ops.shape(x))

    return _make(image_shape, num_classes, InTraining(compute))


class Measured(layers.Layer):
    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean()

    def call(self, x):
        self.mean.update_state(tf.reduce_mean(x))
        return x


def measured(image_shape, num_classes):
    return _make(image_shape, num_classes, Measured())


def dictionary(image_shape, num_classes):
    model = _make(image_shape, num_classes, layers.Dense(4))
    return keras.Model(model.input, {"logits": model.output})


class Counts(layers.Layer):
    def build(self, shape):
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def call(self, x, training=False):
        return x

    def compute_output_shape(self, shape):
        return shape


class Counted(keras.Model):
    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.flatten, self.counts = layers.Flatten(), Counts()
        self.answer = layers.Dense(num_classes)

    def call(self, x, training=False):
        return self.answer(self.counts(self.flatten(x) / 255.0, training=training))


def own_strategy(image_shape, num_classes):
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        return _make(image_shape, num_classes, layers.Dense(4))


# Sound ones


class Looked(layers.Layer):
    """A table of constants, read in a branch."""

    def __init__(self):
        super().__init__()
        rows = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), [0.5, -0.5])
        self.table = tf.lookup.StaticHashTable(rows, 0.0)

    def call(self, x):
        keys = tf.argmax(x, -1)
        found = tf.cond(keys[0] >= 0, lambda: self.table.lookup(keys), lambda: x[:, 0])
        return x * (1 + found[:, None])

    def compute_output_shape(self, shape):
        return shape


def looked_up(image_shape, num_classes):
    def body(x):
        keys = layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.5])(x)
        keys = layers.IntegerLookup(vocabulary=[0, 1, 2], num_oov_indices=1)(keys)
        return layers.Concatenate()([Looked()(x), layers.Flatten()(layers.Embedding(4, 3)(keys))])

    return _make(image_shape, num_classes, body)


def mean_losses(image_shape, num_classes):
    """Means over a batch, also with dropout and of other images of the batch."""

    def contrast(x):
        return -tf.reduce_mean(tf.linalg.diag_part(tf.nn.log_softmax(9 * x @ tf.transpose(x))))

    def body(x):
        x = Penalized(lambda x: tf.reduce_mean(x**2), 0.5)(x)
        x = Penalized(lambda x: tf.reduce_mean(x**2, 0), 0.8)(x)
        x = Penalized(lambda x: tf.reduce_sum(x**2) / tf.cast(tf.shape(x)[0], x.dtype))(x)
        return layers.Dense(8, activity_regularizer="l2")(Penalized(contrast)(x))

    return _make(image_shape, num_classes, body)


class Helped(layers.Layer):
    """Calls a layer of its own in a tf.function and in a branch, and draws in a training."""

    def __init__(self):
        super().__init__()
        self.dense, self.generator = layers.Dense(8), tf.random.Generator.from_seed(3)

    def build(self, shape):
        self.dense.build(shape)

    @tf.function
    def help(self, x):
        return self.dense(x)

    def call(self, x, training=False):
        y = tf.cond(x[0, 0] > -2.0, lambda: self.help(x), lambda: self.dense(2 * x))
        return y + self.generator.normal(tf.shape(y)) + tf.random.normal([]) if training else y


def helped(image_shape, num_classes):
    return _make(image_shape, num_classes, Helped())


def replaced_call(image_shape, num_classes):
    """A layer whose method was replaced, as hooks do."""
    dense = layers.Dense(8)
    call = dense.call
    dense.call = lambda x, *_, **__: 3.0 * call(x)
    return _make(image_shape, num_classes, dense)
