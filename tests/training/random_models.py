"""Random small classifiers, each drawn from a seed: layers, sharing, states, types, endings.

`draw(seed)` decides all of a model and of its training without TensorFlow's work, and its text
describes it. `build` makes the model of a seed. A few have a fault that makes trained and served
model differ. Those must be refused with the name of the layer, which is `FAULTY`.

Activations are smooth, so that the order of an addition changes a weight by rounding alone.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from training.keras_rows import CLIPS, OPTIMIZERS, Row
from training.keras_zoo import (
    Centre,
    Conditional,
    Counter,
    Flag,
    Gain,
    Gathered,
    Halved,
    Namesakes,
    Penalty,
    Positions,
    Tied,
)

from pipeline_ops.config.train import Train
from pipeline_ops.input.framework_internals import list_layers

MODEL, FAULTY = "training.random_models:build", "faulty"
ORDER = "RANDOM_MODELS_ORDER"
"""The variable of the environment on which the order of some layers depends."""
_NAMES = ("edges", "texture", "colour", "shape")
_ACTIVATIONS = ("tanh", "gelu", "silu", "softplus", "elu", "sigmoid")
_SMALL_TYPE = "mixed_bfloat16"
_FAULT_SHARE = 0.12
"""The share of models with a fault."""

Shape = tuple[int, ...]
"""The shape of a value for one image: [3, 3, C], [9, C] or [C]."""


class Step(NamedTuple):
    """Layers, and the way of a value through them."""

    layers: Sequence[layers.Layer]
    call: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a model that can be made any number of times."""

    text: str
    make: Callable[[], Step]
    shape: Shape
    """The shape of its results."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A model and its training."""

    seed: int
    kind: str
    parts: Sequence[Part]
    change: str
    """What happens to the built model: a frozen weight, LoRA, or nothing."""
    fault: str
    """The key of `FAULTS` or `REFUSED_BY_LOOP`, or empty."""
    row: Row
    """The training, at two workers."""

    @property
    def has_small_type(self) -> bool:
        """Returns whether a layer computes in a type of 16 bits."""
        return any(_SMALL_TYPE in part.text for part in self.parts)

    @property
    def config(self) -> Train:
        model = {"model": MODEL, "model_parameters": {"seed": self.seed}}
        return self.row.config.model_copy(update=model)

    def __str__(self) -> str:
        parts = "\n  ".join(part.text for part in self.parts)
        ending = f"\n  then {self.change}" if self.change else ""
        return f"SEED={self.seed}: {self.kind}, {self.row}\n  {parts}{ending}"


class Group(layers.Layer):
    """A layer of layers."""

    def __init__(self, steps: Sequence[Step]):
        super().__init__()
        self.inner = [layer for step in steps for layer in step.layers]
        self.steps = [step.call for step in steps]

    def call(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Chain(keras.Model):
    """A subclassed model."""

    def __init__(self, steps: Sequence[Step]):
        super().__init__()
        self.inner = [layer for step in steps for layer in step.layers]
        self.steps = [step.call for step in steps]

    def call(self, x, training=False):
        for step in self.steps:
            x = step(x)
        return x


class Named(layers.Layer):
    """Has a layer for each name, made in the order of the environment, as a set may have one."""

    def __init__(self, units: int):
        super().__init__()
        backwards = os.environ.get(ORDER) == "backwards"
        self.branches = {}
        for name in sorted(_NAMES, reverse=backwards):
            self.branches[name] = layers.Dense(units, "tanh", name=name)

    def call(self, x):
        return sum(self.branches[name](x) / (n + 1) for n, name in enumerate(_NAMES))


class Annealed(layers.Layer):
    """Moves between two layers with a state of its own, in float64."""

    def build(self, shape):
        self.first, self.second = layers.Dense(shape[-1], "tanh"), layers.Dense(shape[-1])
        self.first.build(shape), self.second.build(shape)
        self.share = self.add_weight(
            shape=(), dtype="float64", trainable=False, initializer="zeros", name="share"
        )

    def call(self, x, training=False):
        if training:
            self.share.assign(0.8 * self.share + 0.2)
        share = tf.cast(self.share.value, x.dtype)
        return (1 - share) * self.first(x) + share * self.second(x)


class Followed(layers.Layer):
    """Has a state that follows another state, and a gain with a constraint."""

    def build(self, shape):
        self.fast = self.add_weight(shape=(shape[-1],), trainable=False, initializer="zeros")
        self.slow = self.add_weight(shape=(shape[-1],), trainable=False, initializer="zeros")
        self.gain = self.add_weight(shape=(shape[-1],), initializer="ones", constraint="non_neg")

    def call(self, x, training=False):
        if training:
            self.fast.assign(0.5 * self.fast + 0.5 * tf.reduce_mean(tf.tanh(x), 0))
            self.slow.assign(0.9 * self.slow + 0.1 * self.fast)
        return x * self.gain - self.slow


def _single(text: str, make: Callable[[], layers.Layer], shape: Shape) -> Part:
    def make_step() -> Step:
        layer = make()
        return Step([layer], layer)

    return Part(text, make_step, shape)


def _of(cls: type, shape: Shape, *arguments: Any, **options: Any) -> Part:
    """Returns a part of one layer, made with these arguments."""
    shown = [*map(str, arguments), *(f"{name}={value}" for name, value in options.items())]
    return _single(f"{cls.__name__}({', '.join(shown)})", lambda: cls(*arguments, **options), shape)


def _wrapped(wrapper: type, inner: Part, shape: Shape, **options: Any) -> Part:
    return _single(
        f"{wrapper.__name__}({inner.text})",
        lambda: wrapper(inner.make().layers[0], **options),
        shape,
    )


class Drawing:
    """Draws the parts of a model. Layers that learn get types, constraints and penalties."""

    def __init__(self, seed: int, row: Row):
        self.random, self._micro_batches = random.Random(seed), row.micro_batches
        # The loops refuse to clip weights of several types together.
        large_types = () if row.clip == "by global norm" else ("float64", "float64")
        self._types = (*large_types, _SMALL_TYPE, _SMALL_TYPE)

    def draw_options(self, kernel: str = "kernel") -> dict[str, Any]:
        """Draws what any layer with a kernel takes."""
        found: dict[str, Any] = {}
        if self.random.random() < 0.2 and kernel != "embeddings":  # `Positions` adds them
            found["dtype"] = self.random.choice(self._types)
        if self.random.random() < 0.15:
            choices = ("non_neg", "unit_norm", keras.constraints.MaxNorm(0.3), Halved())
            found[f"{kernel}_constraint"] = self.random.choice(choices)
        if self.random.random() < 0.15:
            found[f"{kernel}_regularizer"] = self.random.choice(("l1", "l2"))
        if self.random.random() < 0.1:
            found["activity_regularizer"] = "l2"
        if kernel != "embeddings" and self.random.random() < 0.1:
            found[f"{kernel}_initializer"] = self.random.choice(("he_normal", "orthogonal"))
        return found

    def draw_any(self, shape: Shape) -> Part:
        """Draws a part for values of a shape."""
        draw_layer = {3: self.draw_image_layer, 2: self.draw_token_layer, 1: self.draw_layer}
        if self.random.random() < 0.3:
            return self.draw_everywhere(shape)
        return draw_layer[len(shape)](shape)

    def draw_everywhere(self, shape: Shape) -> Part:
        """Draws a layer that takes values of any shape, and keeps it."""
        makers: list[Callable[[], Part]] = [
            lambda: _of(layers.LayerNormalization, shape),
            lambda: _of(layers.BatchNormalization, shape),
            lambda: _of(layers.BatchNormalization, shape, momentum=0.5, scale=False),
            lambda: _of(layers.GroupNormalization, shape, 2),
            lambda: _of(layers.UnitNormalization, shape),
            lambda: _of(layers.RMSNormalization, shape),
            lambda: _of(layers.Dropout, shape, 0.3),
            lambda: _of(layers.GaussianNoise, shape, 0.2),
            lambda: _of(layers.GaussianDropout, shape, 0.2),
            lambda: _of(layers.AlphaDropout, shape, 0.2),
            lambda: _of(layers.Activation, shape, self.random.choice(_ACTIVATIONS)),
            lambda: _of(layers.ActivityRegularization, shape, l2=0.01),
            lambda: _of(Gain, shape),
            lambda: _of(Counter, shape),
            lambda: _of(Penalty, shape),
            lambda: _of(Conditional, shape),
            lambda: _of(Namesakes, shape),
            lambda: _of(Annealed, shape),
        ]
        return self.random.choice(makers)()

    def draw_image_layer(self, shape: Shape) -> Part:
        width = self.random.choice((4, 6))
        after = (*shape[:-1], width)
        activation = self.random.choice(_ACTIVATIONS)
        same = {"padding": "same", "activation": activation}
        options = self.draw_options()
        depthwise = self.draw_options("depthwise") | same
        makers: list[Callable[[], Part]] = [
            lambda: _of(layers.Conv2D, after, width, 2, **options, **same),
            lambda: _of(layers.Conv2D, after, width, 3, groups=2, **same),
            lambda: _of(layers.DepthwiseConv2D, shape, 2, **depthwise),
            lambda: _of(layers.SeparableConv2D, after, width, 2, **depthwise),
            lambda: _of(layers.Conv2DTranspose, after, width, 2, **options, **same),
            lambda: _of(
                layers.EinsumDense,
                after,
                "abcd,de->abce",
                (*shape[:-1], width),
                bias_axes="e",
                activation=activation,
            ),
            lambda: _of(layers.SpatialDropout2D, shape, 0.3),
            lambda: _of(layers.AveragePooling2D, shape, 2, 1, padding="same"),
            lambda: self.draw_spectral(_of(layers.Conv2D, after, width, 2, **same), shape),
        ]
        return self.random.choice(makers)()

    def draw_token_layer(self, shape: Shape) -> Part:
        width = self.random.choice((4, 6))
        after = (shape[0], width)
        activation = self.random.choice(_ACTIVATIONS)
        options = self.draw_options()
        half = _of(layers.LSTM, after, width // 2, return_sequences=True)
        makers: list[Callable[[], Part]] = [
            lambda: _of(layers.Dense, after, width, activation, **options),
            lambda: _of(layers.Conv1D, after, width, 2, padding="same", activation=activation),
            lambda: _of(layers.SeparableConv1D, after, width, 2, padding="same"),
            lambda: _of(
                layers.EinsumDense, after, "abc,cd->abd", (9, width), bias_axes="d", **options
            ),
            lambda: _of(layers.GRU, after, width, return_sequences=True, dropout=0.2),
            lambda: _of(layers.SimpleRNN, after, width, return_sequences=True),
            lambda: _wrapped(layers.Bidirectional, half, after),
            lambda: self.draw_attention(shape),
            lambda: self.draw_attention(shape),
            lambda: _wrapped(Positions, _of(layers.Embedding, shape, 10, shape[-1]), shape),
            lambda: _wrapped(
                Positions,
                _of(layers.Embedding, shape, 10, shape[-1], **self.draw_options("embeddings")),
                shape,
            ),
            lambda: _of(Gathered, shape),
            lambda: _of(Tied, (9, 9)),
            lambda: _of(layers.SpatialDropout1D, shape, 0.3),
            lambda: _wrapped(
                layers.TimeDistributed, _of(layers.Dense, after, width, activation), after
            ),
            lambda: _of(Named, after, width),
        ]
        return self.random.choice(makers)()

    def draw_attention(self, shape: Shape) -> Part:
        cls, options = self.random.choice(
            (
                (layers.MultiHeadAttention, {"num_heads": 2, "key_dim": 3}),
                (layers.MultiHeadAttention, {"num_heads": 2, "key_dim": 3, "dropout": 0.2}),
                (
                    layers.GroupQueryAttention,
                    {"head_dim": 3, "num_query_heads": 2, "num_key_value_heads": 1},
                ),
            )
        )

        def make() -> Step:
            layer = cls(**options)
            return Step([layer], lambda x: layer(x, x))

        return Part(f"{cls.__name__}({options})", make, shape)

    def draw_layer(self, shape: Shape) -> Part:
        width = self.random.choice((6, 8))
        activation = self.random.choice(_ACTIVATIONS)
        options = self.draw_options()
        dense = _of(layers.Dense, (width,), width, activation, **options)
        makers: list[Callable[[], Part]] = [
            lambda: dense,
            lambda: dense,
            lambda: _of(
                layers.Dense, (width,), width, activation, bias_constraint="non_neg", **options
            ),
            lambda: self.draw_spectral(_of(layers.Dense, (width,), width, activation), shape),
            lambda: _of(Centre, shape),
            lambda: _of(Flag, shape),
            lambda: _of(Followed, shape),
            lambda: _of(Named, (width,), width),
            lambda: _of(layers.EinsumDense, (width,), "ab,bc->ac", width, **options),
        ]
        return self.random.choice(makers)()

    def draw_spectral(self, inner: Part, shape: Shape) -> Part:
        """Draws spectral normalization, which assigns a weight that learns."""
        if self._micro_batches > 1:
            return _of(layers.LayerNormalization, shape)
        return _wrapped(layers.SpectralNormalization, inner, inner.shape)

    def draw_segment(self, shape: Shape, depth: int) -> list[Part]:
        """Draws parts in a row, of which some are made of other parts."""
        parts: list[Part] = []
        for _ in range(depth):
            parts.append(self.draw_composite(parts[-1].shape if parts else shape))
        return parts

    def draw_composite(self, shape: Shape) -> Part:
        part, chance = self.draw_any(shape), self.random.random()
        if chance < 0.15 and part.shape == shape:
            return _add_input(part)
        if chance < 0.25 and part.shape == shape:
            return _repeat(part)
        if chance < 0.35:
            return _group([part])
        if chance < 0.45:
            return self.draw_inner_model(part, shape)
        if chance < 0.52:
            return _freeze(part)
        return part

    def draw_inner_model(self, part: Part, shape: Shape) -> Part:
        more = [part, self.draw_any(part.shape)]
        kind = self.random.choice([*_KINDS])

        def make() -> Step:
            model = _KINDS[kind](shape, [each.make() for each in more])
            return Step([model], model)

        return Part(f"{kind} model({'; '.join(each.text for each in more)})", make, more[-1].shape)


def _add_input(part: Part) -> Part:
    def make() -> Step:
        inner, add = part.make(), layers.Add()
        return Step([*inner.layers, add], lambda x: add([x, inner.call(x)]))

    return Part(f"residual({part.text})", make, part.shape)


def _repeat(part: Part) -> Part:
    def make() -> Step:
        inner = part.make()
        return Step(inner.layers, lambda x: inner.call(inner.call(x)))

    return Part(f"twice({part.text})", make, part.shape)


def _group(parts: Sequence[Part]) -> Part:
    def make() -> Step:
        group = Group([part.make() for part in parts])
        return Step([group], group)

    return Part(f"layer({'; '.join(part.text for part in parts)})", make, parts[-1].shape)


def _freeze(part: Part) -> Part:
    def make() -> Step:
        step = part.make()
        for layer in step.layers:
            layer.trainable = False
        return step

    return Part(f"frozen({part.text})", make, part.shape)


def _make_functional(shape: Shape, steps: Sequence[Step]) -> keras.Model:
    x = image = keras.Input(shape)
    for step in steps:
        x = step.call(x)
    return keras.Model(image, x)


def _make_sequential(shape: Shape, steps: Sequence[Step]) -> keras.Model:
    """Makes a chain of layers. What is more than a layer becomes one."""
    made = [step.call if isinstance(step.call, layers.Layer) else Group([step]) for step in steps]
    return keras.Sequential([keras.Input(shape), *made])


_KINDS: dict[str, Callable[[Shape, Sequence[Step]], keras.Model]] = {
    "functional": _make_functional,
    "sequential": _make_sequential,
    "subclassed": lambda shape, steps: Chain(steps),
}


class NumpyCentre(layers.Layer):
    def call(self, x):
        centred = tf.numpy_function(lambda v: v - v.mean(-1, keepdims=True), [x], x.dtype)
        return tf.ensure_shape(centred, x.shape)


class AlwaysDropped(layers.Layer):
    def __init__(self, name: str):
        super().__init__(name=name)
        self.dropout = layers.Dropout(0.3, name=name)

    def call(self, x):
        return self.dropout(x, training=True)


class DrawnConstants(layers.Layer):
    def build(self, shape):
        drawn = np.random.default_rng().normal(size=(shape[-1], shape[-1]))
        self.matrix = tf.constant(drawn, self.compute_dtype)

    def call(self, x):
        return x @ self.matrix


class Untracked(layers.Layer):
    def build(self, shape):
        self.gain = tf.Variable(tf.ones(shape[-1:]), name=self.name)

    def call(self, x):
        return x * self.gain


class _Helper:
    """Has a layer, and is none."""

    def __init__(self, units: int, name: str):
        self.layer = layers.Dense(units, "tanh", name=name)


class Hidden(layers.Layer):
    def build(self, shape):
        self.helper = _Helper(shape[-1], self.name)

    def call(self, x):
        return self.helper.layer(x)


class Noisy(layers.Layer):
    def call(self, x):
        return x + 0.1 * tf.random.normal(tf.shape(x), dtype=x.dtype)


FAULTS: dict[str, Callable[[int], layers.Layer]] = {
    "numpy_function": lambda units: NumpyCentre(name=FAULTY),
    "dropout that stays on": lambda units: AlwaysDropped(FAULTY),
    "constants drawn by NumPy": lambda units: DrawnConstants(name=FAULTY),
    "tf.Variable": lambda units: Untracked(name=FAULTY),
    "layer in a helper": lambda units: Hidden(name=FAULTY),
    "noise of TensorFlow": lambda units: Noisy(name=FAULTY),
}
"""Layers of a vector that the check of the model refuses."""
REFUSED_BY_LOOP: dict[str, Callable[[int], layers.Layer]] = {
    "clipped weights of several types": lambda units: layers.Dense(
        units, dtype="float64", name=FAULTY
    ),
    "float16 without a scale of the loss": lambda units: layers.Dense(
        units, dtype="mixed_float16", name=FAULTY
    ),
    "float8": lambda units: layers.Dense(units, dtype="float8_from_float32", name=FAULTY),
    "assigned weight in micro-batches": lambda units: layers.SpectralNormalization(
        layers.Dense(units, name=FAULTY)
    ),
}
"""Layers of a vector that a training loop refuses."""


def draw(seed: int) -> Drawn:
    """Draws the model of a seed and its training."""
    chosen = random.Random(f"training {seed}")
    row = Row(
        f"random model {seed}",
        chosen.choice([*OPTIMIZERS]),
        chosen.choice([*CLIPS]),
        chosen.random() < 0.25,
        "gang",
        chosen.choice((1, 1, 2)),
    )
    fault = ""
    if chosen.random() < _FAULT_SHARE:
        fault = chosen.choice([*FAULTS, *REFUSED_BY_LOOP])
    if fault == "assigned weight in micro-batches":
        row = dataclasses.replace(row, micro_batches=2)
    if fault == "clipped weights of several types":
        row = dataclasses.replace(row, clip="by global norm")
    drawing = Drawing(seed, row)
    parts = [_of(layers.Rescaling, (8, 8, 1), 1 / 255)]
    if chosen.random() < 0.15:
        parts.append(_draw_augmentation(chosen))
    parts.append(_of(layers.Conv2D, (3, 3, 6), 6, 3, strides=2, activation="gelu"))
    parts += drawing.draw_segment(parts[-1].shape, chosen.choice((0, 1, 1, 2)))
    if chosen.random() < 0.5:
        parts.append(_of(layers.Reshape, (9, parts[-1].shape[-1]), (9, parts[-1].shape[-1])))
        parts += drawing.draw_segment(parts[-1].shape, chosen.choice((1, 1, 2)))
    shape = parts[-1].shape
    pools = {3: layers.GlobalAveragePooling2D, 2: layers.GlobalAveragePooling1D}
    if chosen.random() < 0.5:
        parts.append(_of(pools[len(shape)], shape[-1:]))
    else:
        parts.append(_of(layers.Flatten, (int(np.prod(shape)),)))
    parts += [_of(layers.Dense, (8,), 8, "tanh", dtype="float32")]
    if fault:
        parts.append(_single(fault, lambda: (FAULTS | REFUSED_BY_LOOP)[fault](8), (8,)))
    parts += drawing.draw_segment((8,), chosen.choice((0, 1, 1, 2)))
    parts += _draw_ending(chosen)
    change = chosen.choice(("a frozen weight", "LoRA")) if chosen.random() < 0.15 else ""
    return Drawn(seed, chosen.choice([*_KINDS]), parts, change, fault, row)


def _draw_augmentation(chosen: random.Random) -> Part:
    """Draws a layer that changes images in training alone."""
    shape = (8, 8, 1)
    return chosen.choice(
        (
            _of(layers.RandomFlip, shape),
            _of(layers.RandomRotation, shape, 0.1),
            _of(layers.RandomZoom, shape, 0.2),
            _of(layers.RandomTranslation, shape, 0.2, 0.2),
        )
    )


def _draw_ending(chosen: random.Random) -> list[Part]:
    dense = {"name": "answer", "dtype": "float32"}
    return chosen.choice(
        (
            [_of(layers.Dense, (5,), 5, **dense)],
            [_of(layers.Dense, (5,), 5, "softmax", **dense)],
            [_of(layers.Dense, (5,), 5, **dense), _of(layers.Softmax, (5,))],
            [_of(layers.Dense, (5,), 5, **dense), _of(layers.Activation, (5,), "softmax")],
        )
    )


def build(image_shape: Shape, num_classes: int, seed: int) -> keras.Model:
    """Builds the model of a seed, as `train.model` of a config."""
    drawn = draw(seed)
    model = _KINDS[drawn.kind](image_shape, [part.make() for part in drawn.parts])
    if not model.built:
        model(keras.Input(image_shape))
    # The same one in any order of the layers.
    if drawn.change == "a frozen weight":
        able = [each for each in model.trainable_variables if "answer" not in each.path]
        random.Random(seed).choice(sorted(able, key=lambda each: each.path)).trainable = False
    if drawn.change == "LoRA":
        dense = [each for each in list_layers(model) if type(each) is layers.Dense]
        able = [each for each in dense if each.kernel_constraint is None]
        random.Random(seed).choice(sorted(able, key=lambda each: each.path)).enable_lora(2)
    return model
