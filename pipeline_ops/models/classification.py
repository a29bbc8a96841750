"""Image classification: one class for each image, and the outputs of a classifier.

A classifier returns one logit for each class, for the loss and for the served model. A user's model
may also end in softmax.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.contract.dataset import ENCODED, LABEL
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.augment import MixedLabels
from pipeline_ops.input.images import decode_images
from pipeline_ops.models.task import BatchSums, count_false
from pipeline_ops.precision_recall import compute_rates

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""A user's own loss or metric: takes labels int64 [b] and the model's outputs float32 [b, classes],
and returns a value for each example, float32 [b]. Labels are [b, 1] for a single output.
"""
TAKES_LOGITS = "takes_logits"
"""The attribute of a function that gets logits even if the model ends in softmax."""

_FEATURES = {
    ENCODED: tf.io.FixedLenFeature([], tf.string),
    LABEL: tf.io.FixedLenFeature([], tf.int64),
}

_PROBABILITIES = frozenset(("Softmax", "Sigmoid"))
"""The operations whose results are probabilities."""
_ELEMENTWISE = frozenset(
    ("Add", "AddV2", "AddN", "Cast", "ClipByValue", "Identity", "IdentityN", "Maximum", "Minimum")
    + ("Mul", "Neg", "Pow", "RealDiv", "Reshape", "Select", "SelectV2", "Squeeze", "Sub")
)
_END = "end_of_answers"
"""The attribute of a model with the end of its graph, whose call `return_logits` has changed."""
_TINY = np.finfo(np.float32).tiny


class Classification:
    """The task of a model that returns logits [b, classes].

    Args:
      class_weights: the factor of each class's loss in training, by index. None weights all classes
          alike.
      label_smoothing: the share of each label that is spread over all classes in training.
      loss: a function that replaces the cross-entropy. Class weights apply to it as well.
      metrics: metrics in addition to accuracy, by name.
      gate_metrics: metrics of the gate that are made of counts: `macro_precision`, `macro_recall`,
        `macro_f1`, `worst_class_recall`, and `top_3_accuracy` or with another number.
      num_classes: the number of classes, for `gate_metrics`.
    """

    counts_examples = True
    evaluation_batch_size = 256

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        class_weights: list[float] | None = None,
        label_smoothing: float = 0.0,
        loss: PerExample | None = None,
        metrics: Mapping[str, PerExample] | None = None,
        gate_metrics: Sequence[str] = (),
        num_classes: int = 0,
    ):
        self.image_shape = image_shape
        self._gate_metrics, self.num_classes = tuple(gate_metrics), num_classes
        # Of each metric `top_3_accuracy`, the number.
        self._tops = [int(name.split("_")[1]) for name in gate_metrics if name.startswith("top_")]
        self.num_counts = 3 * num_classes + len(self._tops) if gate_metrics else 0
        self._class_weights, self._label_smoothing = class_weights, label_smoothing
        self.loss, self.own_metrics = loss, dict(metrics or {})
        self.end: End | None = None
        """The end of the model's graph. None if it returns logits."""
        self.metrics = self.validation_metrics = ("accuracy", *self.own_metrics)

    def parse(self, serialized_b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns images uint8 [b, H, W, C] and labels int64 [b]. Parsing a whole batch costs half
        as much as parsing one by one.
        """
        features = tf.io.parse_example(serialized_b, _FEATURES)
        return decode_images(features[ENCODED], self.image_shape), features[LABEL]

    def list_classes(self, labels: tf.Tensor) -> tf.Tensor:
        return labels[:, None]

    def compute_batch_sums(
        self, outputs: tf.Tensor, labels: tf.Tensor | MixedLabels, training: bool
    ) -> BatchSums:
        """Returns the sums of loss, accuracy and the user's metrics, and the number of examples."""
        logits = tf.cast(outputs, tf.float32)
        losses, *metrics = self._compute_values(logits, labels, training)
        sums = tf.stack([tf.reduce_sum(values) for values in metrics])
        if not training:
            counts = [self._count(logits, labels)] if self._gate_metrics else []
            unusable = count_false(self.are_answers_finite(logits))
            sums = tf.concat([sums, *counts, unusable], axis=0)
        return BatchSums(tf.reduce_sum(losses), sums, tf.cast(tf.size(metrics[0]), tf.float32))

    def _compute_values(
        self, logits: tf.Tensor, labels: tf.Tensor | MixedLabels, training: bool
    ) -> list[tf.Tensor]:
        """Returns the loss, the accuracy and the user's metrics of each example, float32 [b] each.

        The two labels of a mixed example count in proportion to their shares. For the
        cross-entropy, that equals soft labels.
        """
        if isinstance(labels, MixedLabels):
            first, second = (self._compute_values(logits, each, training) for each in labels[:2])
            return [
                labels.share * one + (1 - labels.share) * other
                for one, other in zip(first, second, strict=True)
            ]
        return [
            self._compute_losses(logits, labels, training),
            tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32),
            *(self.compute_own(*each, labels, logits) for each in self.own_metrics.items()),
        ]

    def are_answers_finite(self, outputs: tf.Tensor) -> tf.Tensor:
        # The answers are probabilities. A logit of -inf gives the probability 0.
        probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32))
        return tf.reduce_all(tf.math.is_finite(probabilities), axis=-1)

    def _count(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Returns float32 [num_counts], the counts for `compute_from_counts`.

        They are the right answers, the answers and the examples of each class, and for each k the
        examples whose label is among the k largest logits.
        """
        answers, once = tf.argmax(logits, axis=-1), tf.ones_like(labels, tf.float32)
        right = tf.cast(tf.equal(answers, labels), tf.float32)
        counts = [
            tf.math.unsorted_segment_sum(values, classes, self.num_classes)
            for values, classes in ((right, labels), (once, answers), (once, labels))
        ]
        own = tf.gather(logits, labels, batch_dims=1)[:, None]
        # As in `evaluation.metrics.find_in_top_k`.
        comes_later = tf.range(logits.shape[-1], dtype=labels.dtype) > labels[:, None]
        is_before = tf.where(comes_later, logits >= own, logits > own)
        rank = tf.math.count_nonzero(is_before, axis=1)
        tops = [tf.math.count_nonzero(rank < k, dtype=tf.float32)[None] for k in self._tops]
        return tf.concat([*counts, *tops], axis=0)

    def compute_from_counts(self, counts: np.ndarray) -> dict[str, float]:
        """Returns the metrics of the gate. Means leave out classes without examples. 0 / 0 is 0."""
        if not self._gate_metrics:
            return {}
        by_class, tops = np.split(counts.astype(np.float64), [3 * self.num_classes])
        right, predicted, support = by_class.reshape(3, -1)[:, by_class[-self.num_classes :] > 0]
        num_examples = max(support.sum(), 1.0)
        found = {
            f"top_{k}_accuracy": top / num_examples for k, top in zip(self._tops, tops, strict=True)
        }
        if len(support):
            rates = compute_rates(right, predicted, support)
            found |= {f"macro_{name}": values.mean() for name, values in rates.items()}
            found["worst_class_recall"] = rates["recall"].min()
        return {name: float(found.get(name, 0.0)) for name in self._gate_metrics}

    def _compute_losses(self, logits: tf.Tensor, labels: tf.Tensor, training: bool) -> tf.Tensor:
        if self.loss is not None:
            losses = self.compute_own("train.loss", self.loss, labels, logits)
            return self._weigh(losses, labels) if training else losses
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if training and self._label_smoothing:
            # The cross-entropy with equal shares of all classes as the label.
            uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
            losses = (1 - self._label_smoothing) * losses + self._label_smoothing * uniform
        return self._weigh(losses, labels) if training else losses

    def _weigh(self, losses: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if self._class_weights is None:
            return losses
        return losses * tf.gather(tf.constant(self._class_weights, tf.float32), labels)

    def for_model(self, model: keras.Model) -> Classification:
        """Returns the task of a model whose logits `return_logits` has found."""
        return self.copy(end=vars(model).get(_END))

    def copy(self, **attributes: Any) -> Classification:
        """Returns a copy with other attributes."""
        found = copy.copy(self)
        vars(found).update(attributes)
        return found

    def compute_own(
        self, name: str, function: PerExample, labels: tf.Tensor, logits: tf.Tensor
    ) -> tf.Tensor:
        """Returns the values of a user's function for the outputs that the model itself returns."""
        end = self.end
        if end and end.num_outputs == 1:
            logits, labels = logits[:, 1:] - logits[:, :1], labels[:, None]
        if end and end.is_probability and not getattr(function, TAKES_LOGITS, False):
            logits = tf.sigmoid(logits) if end.num_outputs == 1 else tf.nn.softmax(logits)
        return compute_per_example(name, function, labels, logits)


def compute_per_example(
    name: str, function: PerExample, labels: tf.Tensor, logits: tf.Tensor
) -> tf.Tensor:
    """Returns the values of a user's function.

    Raises ConfigError for a mean over the batch, because the result of the training would depend on
    the number of workers.
    """
    values = tf.convert_to_tensor(function(labels, logits))
    if values.shape.rank != 1:
        raise ConfigError(
            f"{name}: must return a value for each example, a tensor of rank 1, "
            f"got shape {values.shape}. Do not average over the batch"
        )
    if not values.shape.is_compatible_with(labels.shape[:1]):
        raise ConfigError(
            f"{name} returns {values.shape[0]} values for a batch of {labels.shape[0]} images. "
            "It must return one value for each image"
        )
    return tf.cast(values, tf.float32)


def return_logits(
    model: keras.Model, name: str, image_shape: tuple[int, int, int], num_classes: int
) -> None:
    """Makes a built classifier return logits, also if it ends in probabilities."""
    end = find_end(model, name, image_shape, num_classes)
    setattr(model, _END, end)
    model.call = functools.partial(compute_logits, model.call, name, num_classes, end)


def find_end(
    model: keras.Model, name: str, image_shape: tuple[int, int, int], num_classes: int
) -> End:
    """Checks the outputs of a built classifier. Returns the end of its graph.

    The end tells logits from probabilities. `compute_logits` skips a final softmax, and the final
    sigmoid of a single output for two classes. The weights and their names stay the same. `name` is
    the value of `train.model`, for messages.
    """
    call = tf.function(lambda images: model(images, training=False), autograph=False)
    traced = call.get_concrete_function(tf.TensorSpec((None, *image_shape)))
    outputs, kind = traced.outputs, type(traced.structured_outputs)
    if len(outputs) == 1 and issubclass(kind, (Mapping, list, tuple)):
        raise ConfigError(
            f"train.model: {name} returns a {kind.__name__} with one tensor, and a classifier "
            "returns the tensor: the logits"
        )
    if len(outputs) != 1:
        raise ConfigError(
            f"train.model: {name} has {len(outputs)} outputs, and a classifier has one: the logits"
        )
    end = _find_end(outputs[0])
    is_single = end.type == "Sigmoid" and outputs[0].shape[1:] == (1,) and num_classes == 2
    if not is_single:
        _check_shape(tuple(outputs[0].shape), name, num_classes)
    if end.type == "Sigmoid" and not is_single:
        raise ConfigError(
            f"train.model: {name} ends in sigmoid, which gives several labels for an image. "
            "Multi-label classification is not supported: a classifier chooses one class. End the "
            "model with softmax or without an activation"
        )
    return End.of(end)


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a graph of a model."""

    kind: str
    """The type of the last operation."""
    where: str
    is_made_of: bool
    """Whether its input was computed elementwise from results of the same type of operation."""
    num_outputs: int
    """The number of outputs for each image: 1 for the sigmoid of a single output."""

    @property
    def is_probability(self) -> bool:
        return self.kind in _PROBABILITIES

    @classmethod
    def of(cls, operation: tf.Operation) -> End:
        kind = operation.type
        is_made_of = kind in _PROBABILITIES and _has_results(operation.inputs[0].op, kind)
        where = f"{kind} ({operation.name})"
        return cls(kind, where, is_made_of, operation.outputs[0].shape[-1])


def _find_end(outputs: tf.Tensor) -> tf.Operation:
    """Returns the operation that computes the values of a tensor of a graph.

    Casts are skipped, and so are reshapes that keep the last axis.
    """
    operation = outputs.op
    while (
        operation.type in ("Cast", "Identity", "Reshape", "Squeeze")
        and operation.inputs[0].shape[-1:] == outputs.shape[-1:]
    ):
        operation = operation.inputs[0].op
    return operation


def compute_logits(
    call: Callable[..., tf.Tensor],
    name: str,
    num_classes: int,
    end: End,
    *arguments: Any,
    **options: Any,
) -> tf.Tensor:
    """Calls a model, and returns its logits. `end` is the end of the graph for inference.

    In a graph, the logits are the input of the last activation, or the outputs if there is none. A
    model may have none only in training. Without a graph, they are logarithms of probabilities.
    """
    outputs = call(*arguments, **options)
    if tf.executing_eagerly():
        if not end.is_probability:
            return outputs
        probabilities = tf.cast(outputs, tf.float32)
        if outputs.shape[-1] < num_classes:
            probabilities = tf.concat([1 - probabilities, probabilities], axis=-1)
        if _are_probabilities(probabilities.numpy(), tolerance=0.05):  # rounded to bfloat16
            return tf.math.log(tf.maximum(probabilities, _TINY))
    else:
        flat = tf.nest.flatten(outputs)
        if len(flat) > 1:
            raise _UnequalEndsError(
                f"train.model: {name} returns {len(flat)} outputs in training, and one when it "
                "answers. The loss takes one: add the loss of the others by add_loss in call, or "
                "write a train_step or a compute_loss for all."
            )
        found = _find_end(flat[0])
        _check_logits(found, end, name)
        if found.type == end.kind and end.is_probability:
            outputs = tf.reshape(found.inputs[0], [-1, outputs.shape[-1]])
        elif not end.is_probability:
            return outputs
    if outputs.shape[-1] < num_classes:  # the logit of the second class against the first
        outputs = tf.concat([tf.zeros_like(outputs), outputs], axis=-1)
    return outputs


class _UnequalEndsError(ConfigError):
    """An error in a call. Keras raises it again with the call's arguments around its message, which
    this class removes.
    """

    def __init__(self, message: str):
        super().__init__(message.partition("\x1b[1m")[2].partition("\x1b[0m")[0] or message)


def _check_logits(found: tf.Operation, end: End, name: str) -> None:
    """Raises ConfigError if the training would take probabilities for logits.

    A model that returns probabilities in inference may return logits in training, but not
    probabilities that were changed by noise or dropout.
    """
    if found.type == end.kind:
        return
    changed = end.is_probability and _has_results(found, end.kind) and not end.is_made_of
    if changed or found.type in _PROBABILITIES:
        raise _UnequalEndsError(
            f"train.model: {name} ends in {end.where} when it answers, and in {found.type} "
            f"({found.name}) in training. The loss takes logits: end the model with the softmax in "
            "both cases, or in training with its input. Apply other operations before the softmax."
        )


def _has_results(end: tf.Operation, kind: str) -> bool:
    """Returns whether the values at an end were computed elementwise from an activation's results.

    `kind` is the type of the activation's operation.
    """
    reached, seen = [end], set[str]()
    while reached:
        operation = reached.pop()
        if operation.type == kind:
            return True
        if operation.type in _ELEMENTWISE and operation.name not in seen:
            seen.add(operation.name)
            reached += [each.op for each in operation.inputs]
    return False


def check_logits(values: np.ndarray, name: str, num_classes: int) -> None:
    """Checks the outputs for a batch of images that differ."""
    _check_shape(values.shape, name, num_classes)
    if not np.isfinite(values).all():
        raise ConfigError(
            f"train.model: {name} has outputs that are not finite, with new weights and images of "
            "random pixels. Check its layers and its initial weights"
        )
    if _are_probabilities(values, tolerance=1e-3):
        raise ConfigError(
            f"train.model: {name} returns probabilities (the outputs of every image sum to 1) "
            "that are not the result of a softmax at its end, and the loss and the served model "
            "take logits. Return the logits, or the logarithms of the probabilities"
        )


def _are_probabilities(values: np.ndarray, tolerance: float) -> bool:
    return bool((values >= 0).all() and np.allclose(values.sum(axis=1), 1, atol=tolerance))


def _check_shape(shape: tuple[int | None, ...], name: str, num_classes: int) -> None:
    if len(shape) != 2 or shape[1] != num_classes:
        cure = "End the model with keras.layers.Dense(num_classes)"
        if len(shape) == 4:
            cure = (
                "Segmentation (a class for each pixel) is not supported: masks are neither read "
                "nor evaluated"
            )
        elif shape[1:] == (1,):
            cure += ". Regression (a number for each image) is not supported"
        raise ConfigError(
            f"train.model: {name} has outputs of shape {[*shape[1:]]} for each image, and the "
            f"data set has {num_classes} classes. {cure}"
        )
