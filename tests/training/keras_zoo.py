"""Small classifiers with all that Keras treats in a way of its own, one by one.

Activations are smooth, so that the order of an addition changes a weight by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

IMAGE_SHAPE, NUM_CLASSES = (8, 8, 1), 5


def _make(body: Callable, last: Callable | None = None) -> keras.Model:
    image = keras.Input(IMAGE_SHAPE)
    x = layers.Conv2D(6, 3, strides=2, activation="gelu")(layers.Rescaling(1 / 255)(image))
    return keras.Model(image, (last or layers.Dense(NUM_CLASSES, name="answer"))(body(x)))


def _hidden(**options) -> Callable:
    return lambda x: layers.Dense(8, "tanh", **options)(layers.Flatten()(x))


def _tokens(x):
    return layers.Reshape((9, 6))(x)


class Positions(layers.Layer):
    """Adds an embedding, of which some rows are looked up twice and others never."""

    def __init__(self, embedding: layers.Layer):
        super().__init__()
        self.embedding = embedding

    def call(self, x):
        return x + self.embedding(tf.constant([0, 2, 2, 4, 4, 4, 6, 7, 0]))


class Gathered(layers.Layer):
    """Looks rows of its own weight up with TensorFlow's operation."""

    def build(self, shape):
        self.table = self.add_weight(shape=(20, shape[-1]), name="table")

    def call(self, x):
        return x + tf.gather(self.table.value, [3, 3, 5, 1, 1, 1, 19, 0, 3])


class Unused(layers.Layer):
    """Has a weight on which no output depends, and one on which the loss does not depend."""

    def build(self, shape):
        self.unused = self.add_weight(shape=(3, shape[-1]), name="unused")
        self.stopped = self.add_weight(shape=shape[-1:], initializer="ones", name="stopped")

    def call(self, x):
        return x * tf.stop_gradient(self.stopped.value)


class AssignedRows(layers.Layer):
    """Looks rows of a table up before and after it assigns the table."""

    def build(self, shape):
        self.table = self.add_weight(shape=(10, shape[-1]), name="table")

    def call(self, x, training=False):
        x = x + tf.gather(self.table.value, [0, 2, 2, 4, 4, 4, 6, 7, 0])
        if training:
            self.table.assign(0.99 * self.table)
        return x * (1 + tf.gather(self.table.value, [1, 1, 3, 5, 0, 4, 6, 9, 0]))


class Codes(layers.Layer):
    """Assigns a weight that learns from its batch, as a codebook of moving means."""

    def __init__(self, trainable_codes: bool, aggregation: str = "none"):
        super().__init__()
        self.options = {"trainable": trainable_codes, "aggregation": aggregation}

    def build(self, shape):
        self.codes = self.add_weight(shape=shape[-1:], name="codes", **self.options)

    def call(self, x, training=False):
        if training:
            self.codes.assign(0.9 * self.codes + 0.1 * tf.reduce_mean(x, 0))
        return x + tf.tanh(self.codes.value)


class Tied(layers.Layer):
    """Uses one table both as rows and as a matrix."""

    def build(self, shape):
        self.table = self.add_weight(shape=(9, shape[-1]), name="table")

    def call(self, x):
        rows = tf.gather(self.table.value, [0, 1, 1, 2, 2, 2, 3, 4, 5])
        return tf.nn.softmax((x + rows) @ tf.transpose(self.table.value))


class Centre(layers.Layer):
    """Subtracts a centre that follows the batches, in training too."""

    def build(self, shape):
        self.centre = self.add_weight(shape=(shape[-1],), trainable=False, initializer="zeros")

    def call(self, x, training=False):
        if training:
            self.centre.assign(0.9 * self.centre + 0.1 * tf.reduce_mean(x, 0))
        return x - self.centre


class MeanCentre(Centre):
    """Asks for the mean over replicas by itself."""

    def build(self, shape):
        self.centre = self.add_weight(
            shape=(shape[-1],), trainable=False, initializer="zeros", aggregation="mean"
        )


class Counter(layers.Layer):
    """Anneals a gain by the number of its calls in training."""

    def __init__(self, kind: str = "int32"):
        super().__init__()
        self.kind = kind

    def build(self, shape):
        self.seen = self.add_weight(
            shape=(), dtype=self.kind, trainable=False, initializer="zeros", name="seen"
        )

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(1)
        return x * (1 + 1 / (1 + tf.cast(self.seen, x.dtype)))


class Flag(layers.Layer):
    """Adjusts its offset at its first call in training, and remembers that it did."""

    def build(self, shape):
        self.done = self.add_weight(
            shape=(), dtype="bool", trainable=False, initializer="zeros", name="done"
        )
        self.offset = self.add_weight(shape=(shape[-1],), trainable=False, initializer="zeros")

    def call(self, x, training=False):
        if training:
            first = tf.reduce_mean(x, 0)
            self.offset.assign(tf.where(self.done, self.offset, first))
            self.done.assign(True)
        return x - self.offset


class Conditional(layers.Layer):
    """Assigns inside a branch, as TensorFlow's guide to tf.function does."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), trainable=False, initializer="zeros", name="seen")

    def call(self, x, training=False):
        if training:
            tf.cond(
                self.seen.value < 3.0,
                lambda: tf.group(self.seen.value.assign_add(1.0)),
                lambda: tf.group(),
            )
        return x * (1 + 0.1 * self.seen)


class Gain(layers.Layer):
    """A weight without axes, and one that gets no gradient."""

    def build(self, shape):
        self.gain = self.add_weight(shape=(), initializer="ones", name="gain")
        self.spare = self.add_weight(shape=(7,), name="spare")

    def call(self, x):
        return x * self.gain


class Namesakes(layers.Layer):
    """Two weights of one name and one shape."""

    def build(self, shape):
        self.first = self.add_weight(shape=(shape[-1],), initializer="ones", name="w")
        self.second = self.add_weight(shape=(shape[-1],), initializer="zeros", name="w")

    def call(self, x):
        return tf.tanh(x * self.first + self.second)


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(1e-2 * tf.reduce_mean(tf.square(x)))
        return x


class PenaltyOfFeatures(layers.Layer):
    def call(self, x):
        self.add_loss(1e-3 * tf.reduce_mean(tf.square(x), 0))
        return x


class Halved(keras.constraints.Constraint):
    """A constraint of one's own that looks at the whole weight."""

    def __call__(self, w):
        return w / keras.ops.maximum(1.0, 4 * keras.ops.mean(keras.ops.abs(w)))


class Nested(keras.Model):
    """A subclassed model in a subclassed model, with a layer that is called twice."""

    def __init__(self, inner: keras.Model | None = None):
        super().__init__()
        self.scale, self.flatten = layers.Rescaling(1 / 255), layers.Flatten()
        self.widen = layers.Dense(12, "tanh")
        self.twice = layers.Dense(12, "tanh")
        self.inner = inner
        self.answer = layers.Dense(NUM_CLASSES, name="answer")

    def call(self, x, training=False):
        y = self.twice(self.twice(self.widen(self.flatten(self.scale(x)))))
        more = self.inner(x, training=training) if self.inner else 0.0
        return self.answer(y) + more


def _freeze(layer: layers.Layer) -> layers.Layer:
    layer.trainable = False
    return layer


def _lora():
    model = _make(_hidden(name="hidden"))
    model.get_layer("hidden").enable_lora(2)
    return model


def _frozen_weight():
    model = _make(_hidden(name="hidden"))
    model.get_layer("hidden").kernel.trainable = False
    return model


def _shared_layer():
    image = keras.Input(IMAGE_SHAPE)
    x = layers.Flatten()(layers.Rescaling(1 / 255)(image))
    half = layers.Dense(8, "tanh", name="half")
    pair = layers.Concatenate()([half(x[:, :32]), half(x[:, 32:])])
    return keras.Model(image, layers.Dense(NUM_CLASSES, name="answer")(pair))


def _nested():
    model = Nested(Nested())
    model(np.zeros((1, *IMAGE_SHAPE), np.float32))
    return model


def _attend(**options) -> Callable:
    def body(x):
        tokens = Positions(layers.Embedding(10, 6))(_tokens(x))
        tokens += layers.MultiHeadAttention(2, 4, **options)(tokens, tokens)
        return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(tokens))

    return body


def _constrained(name: str, **options) -> Callable:
    return lambda: _make(_hidden(kernel_constraint=getattr(keras.constraints, name)(**options)))


def _normalized(layer: Callable) -> Callable:
    return lambda: _make(lambda x: _hidden()(layer()(x)))


def _quantized():
    model = _make(lambda x: layers.Dense(8, "tanh", name="small")(layers.Flatten()(x)))
    model.get_layer("small").quantize("int8")
    return model


ZOO: dict[str, Callable[[], keras.Model]] = {
    "plain": lambda: _make(_hidden()),
    "embedding": lambda: _make(
        lambda x: layers.Flatten()(Positions(layers.Embedding(10, 6))(_tokens(x)))
    ),
    "embedding with a constraint": lambda: _make(
        lambda x: layers.Flatten()(
            Positions(
                layers.Embedding(10, 6, embeddings_constraint=keras.constraints.MaxNorm(0.1))
            )(_tokens(x))
        )
    ),
    "gathered rows": lambda: _make(lambda x: layers.Flatten()(Gathered()(_tokens(x)))),
    "tied table": lambda: _make(lambda x: layers.Flatten()(Tied()(_tokens(x)))),
    "NonNeg": _constrained("NonNeg"),
    "MaxNorm": _constrained("MaxNorm", max_value=0.3),
    "MaxNorm along the second axis": _constrained("MaxNorm", max_value=0.3, axis=1),
    "UnitNorm": _constrained("UnitNorm"),
    "MinMaxNorm": _constrained("MinMaxNorm", min_value=0.2, max_value=0.4, rate=0.5),
    "constraint of a bias": lambda: _make(_hidden(bias_constraint=keras.constraints.NonNeg())),
    "own constraint": lambda: _make(_hidden(kernel_constraint=Halved())),
    "BatchNormalization": _normalized(layers.BatchNormalization),
    "BatchNormalization, synchronized": _normalized(
        lambda: layers.BatchNormalization(synchronized=True)
    ),
    "LayerNormalization": _normalized(layers.LayerNormalization),
    "GroupNormalization": _normalized(lambda: layers.GroupNormalization(2)),
    "SpectralNormalization": lambda: _make(
        lambda x: layers.SpectralNormalization(layers.Dense(8, "tanh"))(layers.Flatten()(x))
    ),
    "Normalization": lambda: _make(
        lambda x: layers.Normalization(mean=0.3, variance=0.7)(_hidden()(x))
    ),
    "own moving state": lambda: _make(lambda x: Centre()(_hidden()(x))),
    "own moving state, with a mean": lambda: _make(lambda x: MeanCentre()(_hidden()(x))),
    "own counter": lambda: _make(lambda x: Counter()(_hidden()(x))),
    "own flag": lambda: _make(lambda x: Flag()(_hidden()(x))),
    "assigned in a branch": lambda: _make(lambda x: Conditional()(_hidden()(x))),
    "penalty of kernel and activity": lambda: _make(
        _hidden(kernel_regularizer="l2", activity_regularizer="l2")
    ),
    "own loss of a layer": lambda: _make(lambda x: Penalty()(_hidden()(x))),
    "own loss for each feature": lambda: _make(lambda x: PenaltyOfFeatures()(_hidden()(x))),
    "penalties of several types": lambda: _make(
        lambda x: layers.Dense(
            8, "tanh", dtype="mixed_bfloat16", kernel_regularizer="l2", activity_regularizer="l2"
        )(_hidden(dtype="float64", kernel_regularizer="l2")(x)),
        layers.Dense(NUM_CLASSES, name="answer", dtype="float32"),
    ),
    "frozen layer": lambda: _make(
        lambda x: layers.Dense(8, "tanh")(_freeze(layers.Dense(9))(layers.Flatten()(x)))
    ),
    "frozen BatchNormalization": _normalized(lambda: _freeze(layers.BatchNormalization())),
    "frozen weight": _frozen_weight,
    "LoRA": _lora,
    "codes that learn": lambda: _make(lambda x: Codes(True)(_hidden()(x))),
    "codes as a state": lambda: _make(lambda x: Codes(False)(_hidden()(x))),
    "summed state": lambda: _make(lambda x: Codes(False, "sum")(_hidden()(x))),
    "unused weight": lambda: _make(lambda x: Unused()(_hidden()(x))),
    "Dropout": lambda: _make(lambda x: layers.Dropout(0.4)(_hidden()(x))),
    "noise": lambda: _make(
        lambda x: layers.AlphaDropout(0.2)(layers.GaussianNoise(0.3)(_hidden()(x)))
    ),
    "GRU": lambda: _make(lambda x: layers.GRU(8)(_tokens(x))),
    "bidirectional LSTM": lambda: _make(
        lambda x: layers.Bidirectional(layers.LSTM(5, dropout=0.2))(_tokens(x))
    ),
    "attention": lambda: _make(_attend()),
    "attention with dropout": lambda: _make(_attend(dropout=0.3)),
    "shared layer": _shared_layer,
    "nested and subclassed": _nested,
    "weights of one name": lambda: _make(lambda x: Namesakes()(_hidden()(x))),
    "weight without axes, weight without gradient": lambda: _make(lambda x: Gain()(_hidden()(x))),
    "float64 layer": lambda: _make(
        lambda x: layers.Dense(8, "tanh", dtype="float64")(layers.Flatten()(x)),
        layers.Dense(NUM_CLASSES, name="answer"),
    ),
    "bfloat16 layer": lambda: _make(
        lambda x: layers.Dense(8, "tanh", dtype="mixed_bfloat16")(layers.Flatten()(x)),
        layers.Dense(NUM_CLASSES, name="answer", dtype="float32"),
    ),
    "EinsumDense": lambda: _make(
        lambda x: layers.Flatten()(
            layers.EinsumDense("abc,cd->abd", (9, 6), bias_axes="d", activation="tanh")(_tokens(x))
        )
    ),
    "Conv2DTranspose": lambda: _make(
        lambda x: layers.Flatten()(layers.Conv2DTranspose(3, 2, activation="tanh")(x))
    ),
    "GRU with recurrent dropout": lambda: _make(
        lambda x: layers.GRU(8, recurrent_dropout=0.3)(_tokens(x))
    ),
    "depthwise and separable": lambda: _make(
        lambda x: layers.Flatten()(
            layers.SeparableConv2D(4, 2, activation="tanh")(layers.DepthwiseConv2D(2)(x))
        )
    ),
    "own counter of small numbers": lambda: _make(lambda x: Counter("uint8")(_hidden()(x))),
    "bfloat16 weights": lambda: _make(
        lambda x: layers.Dense(8, "tanh", dtype="bfloat16")(layers.Flatten()(x)),
        layers.Dense(NUM_CLASSES, name="answer", dtype="float32"),
    ),
    "int8 layer": _quantized,
    "assigned rows": lambda: _make(lambda x: layers.Flatten()(AssignedRows()(_tokens(x)))),
}

TOGETHER = {"BatchNormalization, synchronized", "own moving state, with a mean"}
"""Models whose replicas exchange values in each call, so that they see the batch as a whole."""
