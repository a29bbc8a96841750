"""TF-Slim definitions as Keras models, so that old networks train under new strategies.

    def build(image_shape, num_classes):
        return build_slim_model(my_network, image_shape)

`my_network(images, is_training)` is written with tf_slim or `tf.compat.v1.layers` and returns
logits. Every variable that it requests is created once, as a weight of the model. The update
operations and regularisation losses that it adds to collections take effect. Needs the extra `slim`
(tf-slim and tf-keras).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import nn_ops, variable_scope

from pipeline_ops.errors import ConfigError

v1 = tf.compat.v1

Network = Callable[[tf.Tensor, bool], tf.Tensor]
"""A function from images float32 [b, H, W, C] and a flag for training to logits [b, classes]."""


def build_slim_model(network: Network, image_shape: tuple[int, int, int]) -> keras.Model:
    """Returns a built Keras model that computes a TF-Slim definition."""
    _restore_moved_names()
    model = SlimModel(network)
    model.build((None, *image_shape))
    return model


def _restore_moved_names() -> None:
    """Restores two names that tf_slim needs and that TensorFlow and tf_keras have moved.

    On its first use, `slim.batch_norm` loads `tf_keras.legacy_tf_layers`, which is now under
    `tf_keras.src`. After dense layers, it uses `ops.Tensor`.
    """
    try:
        importlib.import_module("tf_slim")
        for name in ("legacy_tf_layers", "legacy_tf_layers.normalization"):
            sys.modules.setdefault(
                f"tf_keras.{name}", importlib.import_module(f"tf_keras.src.{name}")
            )
        ops.Tensor = tf.Tensor
    except ImportError as error:
        raise ConfigError(
            f"a TF-Slim model needs the packages tf-slim and tf-keras ({error}). "
            "Install the extra slim: pip install '.[slim]' in a clone of Trainyard"
        ) from error


class SlimModel(keras.Model):  # type: ignore[misc]  # Keras is not typed
    """The Keras model that `build_slim_model` returns."""

    def __init__(self, network: Network):
        super().__init__()
        self._network = network
        self._variables_by_name: dict[str, keras.Variable] = {}
        self._generator = keras.random.SeedGenerator()

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables: traces the definition once, in training, which needs the most."""
        tf.function(lambda images: self._run(images, True)[0]).get_concrete_function(
            tf.TensorSpec([1, *input_shape[1:]], tf.float32)
        )
        self.built = True

    def call(self, images_BHWC: tf.Tensor, training: bool = False) -> tf.Tensor:
        logits, losses = self._run(images_BHWC, bool(training))
        if training:
            self.add_loss(losses)
        return logits

    def _run(self, images_BHWC: tf.Tensor, training: bool) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns logits and regularisation losses.

        The collections belong to the function that is being traced, so only their new entries
        belong to this call.
        """
        graph, keys = v1.get_default_graph(), v1.GraphKeys
        seen = {
            key: len(graph.get_collection(key))
            for key in (keys.UPDATE_OPS, keys.REGULARIZATION_LOSSES)
        }
        with (
            _use_generator(self._generator),
            variable_scope.with_variable_store(variable_scope._VariableStore()),
            v1.variable_scope(
                v1.get_variable_scope(),
                custom_getter=self._get_variable,
                use_resource=True,
                reuse=v1.AUTO_REUSE,
            ),
        ):
            logits = self._network(images_BHWC, training)
        updates, losses = (graph.get_collection(key)[count:] for key, count in seen.items())
        with tf.control_dependencies(updates if training else []):
            return tf.identity(logits), losses

    def _get_variable(
        self,
        getter: Any,
        name: str,
        shape: Any = None,
        dtype: Any = tf.float32,
        initializer: Any = None,
        trainable: bool = True,
        **_unused: Any,
    ) -> tf.Variable:
        """Replaces `tf.compat.v1.get_variable`.

        It never gets the regulariser, because the old layers apply it themselves.
        """
        if name not in self._variables_by_name:
            with tf.init_scope():
                dtype, shape = tf.as_dtype(dtype), tf.TensorShape(shape).as_list()
                if initializer is None:
                    initializer = v1.glorot_uniform_initializer
                if isinstance(initializer, type):
                    initializer = initializer()
                value = (
                    initializer(shape, dtype=dtype)
                    if callable(initializer)
                    else tf.constant(initializer, dtype)
                )
                self._variables_by_name[name] = self.add_weight(
                    name=name.replace("/", "."),
                    shape=shape,
                    dtype=dtype.name,
                    trainable=trainable is not False,
                    initializer=lambda shape, dtype=None: value,
                )
        return self._variables_by_name[name].value


@contextlib.contextmanager
def _use_generator(generator: keras.random.SeedGenerator) -> Iterator[None]:
    """Makes dropout draw from a generator of Keras while the block runs.

    TensorFlow's own random numbers would start again in every process, and so after every restart.
    """
    original_dropout = nn_ops._dropout

    def draw(shape: Any, dtype: Any) -> tf.Tensor:
        return keras.random.uniform(shape, dtype=dtype, seed=generator)

    def dropout(**arguments: Any) -> tf.Tensor:
        return original_dropout(**arguments | {"uniform_sampler": draw})

    nn_ops._dropout = dropout
    try:
        yield
    finally:
        nn_ops._dropout = original_dropout
