"""The base of the training loops, and the compiled steps of every synchronous strategy.

Keras's `fit` does not run under MultiWorkerMirroredStrategy, and its optimizers clip each replica's
gradient before the all-reduce, which silently makes the result depend on the number of workers.
This loop therefore has its own all-reduce. Each replica divides its summed loss by the *global*
batch. One collective adds up gradients and metric sums over all replicas. The optimizer sees the
gradient of the global batch. A loss may be a mean over boxes instead of examples. Then the
number of boxes is among the sums, and the gradient is divided by it after the collective.

AutoGraph is off, here and where the batches are made: translating the functions takes half of the
time from the start of a worker to its first step. So loops over tensors are `tf.while_loop`s.

`sharded_loop.py` has the loops of the other strategies.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import (
    SEED_STATE,
    count_local_replicas,
    get_slots,
    keep_gradients,
    list_assigned,
    list_layers,
)
from pipeline_ops.models.task import BatchSums, Task, add_sums, judge_examples, zero_sums
from pipeline_ops.models.user_errors import describe_call
from pipeline_ops.training.optimizer import make_optimizer
from pipeline_ops.training.usage import ClockTimes, StepClock, Waits
from pipeline_ops.training.weight_files import Arrays, Paths, number_paths

_TIMED_CALLS = 16
"""Every 16th call is timed on GPUs, because the host waits for the GPU to read the clock."""
Batches = Iterator[tuple[Any, Any]]
"""Training batches of features and labels."""


class PartResult(NamedTuple):
    """The result of one part of a global batch, or the sum of several."""

    sums: BatchSums
    gradients: list[tf.Tensor]
    changes: list[tf.Tensor]
    """The part's shares of the changes of the loop's states, in `make_change`'s types."""


Differentiate = Callable[[int | tf.Tensor, Any, Any], PartResult]
"""Maps the number of a micro-batch, its features and its labels to its result."""


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of one or more steps, the same on every worker."""

    sums: BatchSums
    is_sound: bool
    """Whether the sums and every weight are finite."""
    is_stop_requested: bool
    """Whether some worker was asked to stop."""
    worst_loss: float
    """The largest mean loss of a step."""
    waits: Waits | None = None
    """None if the steps were not timed."""


def to_arrays(sums: BatchSums) -> BatchSums:
    return BatchSums(*map(np.asarray, sums))


class SeedGenerators:
    """The random numbers of layers in training, of dropout above all, from seed, step and part.

    Keras's layers draw from generators with a state that advances with every draw. Here, every step
    sets the states. A training that resumes from a checkpoint therefore draws the same numbers as
    an uninterrupted one, although no checkpoint holds a state. Each replica draws its own, while
    Keras would give all replicas the same mask. Numbers that a model draws in another way, such as
    `tf.random.uniform`, are not repeated after a restart.

    A generator is known by the seed in its initial state, so this is created before the first step.
    """

    def __init__(self, model: keras.Model):
        self.states = [each for each in model.non_trainable_variables if each.name == SEED_STATE]
        self._seeds = [int(state.numpy()[0]) for state in self.states]

    def set_states(self, step: int | tf.Tensor, part: int | tf.Tensor) -> None:
        """Sets the states for the beginning of a step. The layers advance them from there."""
        for state, value in zip(self.states, self.compute_states(step, part), strict=True):
            state.assign(value)

    def compute_states(self, step: int | tf.Tensor, part: int | tf.Tensor) -> list[tf.Tensor]:
        """Returns the states at the beginning of a step, int64 [2] each.

        `part` is the part of the global batch. Each draws different numbers.
        """
        step, part = tf.cast(step, tf.int64), tf.cast(part, tf.int64)
        # Keras's seeds are smaller than 2**32.
        keys = [tf.stack([seed + part * 2**32, step]) for seed in self._seeds]
        return [
            tf.random.stateless_uniform([2], seed=key, minval=None, maxval=None, dtype=tf.int64)
            for key in keys
        ]


def find_states(model: keras.Model) -> list[keras.Variable]:
    """Finds the variables that layers change while they train: moving averages, counters.

    Weights that were made to learn and are frozen are not among them.
    """
    return [
        variable
        for variable in model.non_trainable_variables
        if variable.name != SEED_STATE and not variable.value.trainable
    ]


def make_change(new: tf.Tensor, old: tf.Tensor, part: int | tf.Tensor, num_parts: int) -> tf.Tensor:
    """Returns a part's share of the change of a state.

    The state becomes its old value and the sum of all shares. For floats, this is the mean over the
    parts, exact where nothing changed. Whole numbers and flags have no mean: the first part counts.
    The type is float32, float64 or int64, in which sums of small types are exact.
    """
    if new.dtype.is_floating:
        kind = tf.float64 if new.dtype == tf.float64 else tf.float32
        return (tf.cast(new, kind) - tf.cast(old, kind)) / num_parts
    change = tf.cast(new, tf.int64) - tf.cast(old, tf.int64)
    return tf.where(tf.equal(part, 0), change, tf.zeros_like(change))


def add_change(old: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(old, change.dtype) + change, old.dtype)


class Loop(abc.ABC):
    """A model and its optimizer. All workers of a gang call the same methods in the same order.

    A global batch has parts: each micro-batch of each replica is one. Layers see one part at a
    time, each from the states at the beginning of the step (`find_states`). After the step, a state
    is the mean over the parts. So a training depends on the number of parts alone, wherever they
    are computed, and on nothing if no layer looks at its batch as a whole or draws numbers.
    """

    _weights: Sequence[Any]
    """The variables of `model.weights`, whole or as shards."""
    _best_weights: Sequence[Any]
    """The same with averages instead of trained weights, if the optimizer keeps them."""
    _optimizer_variables: Sequence[Any]
    _optimizer_paths: Sequence[str]
    is_traced = False
    """Whether the functions of a step are traced, as far as that can be done before a step."""

    def __init__(self, model: keras.Model, task: Task, config: Train):
        self.model, self._config = model, config
        self.task = self._task = task.for_model(model)
        self.learning_rate: float | None = config.learning_rate
        """The rate before schedule and callbacks. None if the author's code has a schedule."""
        self._generators, self._states = SeedGenerators(model), find_states(model)
        self._unused: set[int] = set()
        """The trainable variables on which the loss does not depend, known once it is traced."""
        check_scaled_loss(config, model)
        for variable in model.trainable_variables:
            if variable.overwrite_with_gradient:
                raise ConfigError(
                    f"train.model: {config.model}: the weight {variable.path} is replaced by its "
                    "gradient (the layer's type is float8), which is not supported here. Build the "
                    "layer with another dtype."
                )
        examples = {str(each.dtype): each.path for each in reversed(model.trainable_variables)}
        clip = config.optimizer.clip
        if clip and clip.global_norm and len(examples) > 1:
            types = " and ".join(f"{path} is {dtype}" for dtype, path in examples.items())
            raise ConfigError(
                f"train.optimizer.clip.global_norm: {config.model} has weights of several types "
                f"({types}), which Keras cannot clip together. Clip by norm or value, or give all "
                "layers one type of weights, as mixed_bfloat16 does."
            )

    @property
    def paths(self) -> Paths:
        """The paths of weights and optimizer, unique and in the order of `get_views`."""
        return Paths(
            number_paths(variable.path for variable in self.model.weights),
            number_paths(self._optimizer_paths),
        )

    @abc.abstractmethod
    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        """Takes a step for each learning rate. `stop` is 1 if this worker was asked to stop."""

    def trace(self, batches: Batches, step: int, learning_rates: Sequence[float]) -> None:
        """Traces what `train` would call, and takes no step.

        It runs the Python code of the model, and no worker waits for another one in it.
        """
        self.is_traced = True

    def freeze(self, positions: Collection[int]) -> None:
        """Freezes the weights at these positions of `model.weights`."""
        raise NotImplementedError  # for sharded weights, which a rule of the config ensures

    @abc.abstractmethod
    def evaluate(self, batches: Iterable[Any]) -> BatchSums:
        """Adds up the sums of the best weights over the batches of all workers."""

    def answer(self, images: tf.Tensor, weights: Arrays) -> list[np.ndarray]:
        """Returns the outputs for images with the given weights, which the loop keeps.

        All workers call it alike.
        """
        self.assign(weights)
        return [np.asarray(each) for each in tf.nest.flatten(self._answer(images))]

    def _answer(self, images: tf.Tensor) -> Any:
        """Returns the outputs for float32 images: the logits of a classifier."""
        return self.model(images, training=False)

    def read_learning_rate(self) -> float:
        """Returns the rate of the next step, where `learning_rate` is None."""
        raise NotImplementedError

    @abc.abstractmethod
    def judge(self, batches: Iterable[Any]) -> np.ndarray:
        """Returns which examples of this worker's batches have finite answers and figures.

        bool [N, 2], with the best weights (`judge_examples`). Workers exchange nothing in it.
        """

    @abc.abstractmethod
    def _read(self, variable: Any) -> Any:
        """Returns an array or a tensor, not copied if the variable is whole."""

    @abc.abstractmethod
    def _write(self, variable: Any, value: np.ndarray) -> None: ...

    def _compute_evaluation_sums(self, features: Any, labels: Any) -> BatchSums:
        outputs = self._answer(cast_to_float(features))
        return self._task.compute_batch_sums(outputs, labels, training=False)

    def _compute_verdicts(self, features: Any, labels: Any) -> tf.Tensor:
        outputs = self._answer(cast_to_float(features))
        return judge_examples(self._task, outputs, labels)

    def _accumulate(self, differentiate: Differentiate, features: Any, labels: Any) -> PartResult:
        """Applies `differentiate` part by part, so that each part reuses the memory of the last."""
        count = self._config.micro_batches
        if count == 1:
            return differentiate(0, features, labels)

        def add_next(number: tf.Tensor, total: PartResult) -> Any:
            part = differentiate(number, *cut_batch((features, labels), number, count))
            return number + 1, tf.nest.map_structure(operator.add, total, part)

        nothing = PartResult(
            zero_sums(self._task, training=True),
            [tf.zeros(each.shape, each.dtype) for each in self.model.trainable_variables],
            [make_change(old, old, 0, 1) for old in map(tf.zeros_like, self._states)],
        )
        _, total = tf.while_loop(
            lambda number, _: number < count,
            add_next,
            (tf.constant(0), nothing),
            parallel_iterations=1,
        )
        return total

    def _fill_gradients(self, gradients: Sequence[Any]) -> list[tf.Tensor]:
        """Returns dense gradients, zeros for weights on which the loss does not depend.

        As in Keras, those weights stay as they are: no decay, no momentum.
        """
        self._unused = {number for number, each in enumerate(gradients) if each is None}
        if len(self._unused) == len(gradients):
            raise ConfigError(
                f"train.model: {self._config.model}: the loss depends on no weight that can learn, "
                "so nothing would be learned."
            )
        # Rows of an embedding would be added up by putting them one after another.
        return [
            tf.zeros(variable.shape, variable.dtype) if each is None else tf.convert_to_tensor(each)
            for variable, each in zip(self.model.trainable_variables, gradients, strict=True)
        ]

    def get_weights(self) -> Arrays:
        """Returns all weights, in the order of `model.weights`."""
        return [np.array(self._read(variable)) for variable in self._weights]

    def get_best_weights(self) -> Arrays:
        """Returns the weights to evaluate: the averaged ones if there are any."""
        return [np.array(self._read(variable)) for variable in self._best_weights]

    def get_views(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns weights and optimizer values, uncopied if possible, valid until the next step."""
        weights, optimizer_values = (
            [self._read(variable) for variable in variables]
            for variables in (self._weights, self._optimizer_variables)
        )
        return weights, optimizer_values

    def assign(self, weights: Arrays, optimizer_values: Arrays | None = None) -> None:
        """Sets weights and optimizer values. None leaves the optimizer as it is."""
        pairs = [*zip(self._weights, weights, strict=True)]
        if optimizer_values is not None:
            pairs += zip(self._optimizer_variables, optimizer_values, strict=True)
        for variable, value in pairs:
            self._write(variable, value)


def check_scaled_loss(config: Train, model: keras.Model) -> None:
    """Raises ConfigError for layers in float16 whose gradients would underflow.

    The loss is scaled with `train.precision: float16` alone.
    """
    small = [each for each in (*list_layers(model), model) if each.compute_dtype == "float16"]
    if small and config.precision != "float16":
        first = next((each for each in small if each.trainable_weights), small[0])
        raise ConfigError(
            f"train.model: {config.model}: the layer {first.path or first.name} computes in "
            "float16, in which small gradients become 0 unless the loss is scaled, and "
            f"train.precision: {config.precision} does not scale it. Set train.precision: float16, "
            "or give the layer the dtype mixed_bfloat16."
        )


def refuse_assigned(config: Train, paths: Sequence[str]) -> NoReturn:
    """Raises the ConfigError for weights that learn, and that layers assign as well."""
    raise ConfigError(
        f"train.micro_batches: {config.model} assigns {', '.join(paths)} in each call, as "
        "SpectralNormalization does, and the micro-batches of a step must begin with the same "
        "weights. Set train.micro_batches to 1, or leave the layer out."
    )


def add_losses(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of the losses of layers, float32 [], as Keras's `fit` takes it.

    They have the types of their layers. One may have any shape, such as a mean for each feature.
    """
    return tf.add_n([tf.zeros([]), *(tf.cast(tf.reduce_sum(each), tf.float32) for each in losses)])


def join_verdicts(parts: Iterable[tf.Tensor]) -> np.ndarray:
    """Returns the verdicts on the examples of all batches, bool [N, 2]."""
    return np.concatenate([np.empty((0, 2), bool), *map(np.asarray, parts)])


def cast_to_float(features: Any) -> Any:
    """Casts images, which travel as bytes, to the floats that a model takes."""
    return tf.nest.map_structure(
        lambda values: tf.cast(values, tf.float32) if values.dtype.is_integer else values, features
    )


def are_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def cut_batch(batch: Any, number: int | tf.Tensor, count: int) -> Any:
    """Returns one of `count` parts of every tensor. Their sizes differ by one example at most."""

    def slice_tensor(values: tf.Tensor) -> tf.Tensor:
        size = values.shape[0] or tf.shape(values)[0]
        if values.shape[0] and size % count == 0:
            # XLA has no tensors whose size is known only in the loop.
            rank = len(values.shape)
            start = tf.concat([[number * (size // count)], tf.zeros([rank - 1], tf.int32)], 0)
            return tf.slice(values, start, [size // count, *[-1] * (rank - 1)])
        return values[number * size // count : (number + 1) * size // count]

    return batch if count == 1 else tf.nest.map_structure(slice_tensor, batch)


class StepSums(NamedTuple):
    """The sums that the replicas exchange in a step besides their gradients."""

    batch: BatchSums
    stop: tf.Tensor
    """float32 [], the number of replicas that were asked to stop."""


class SynchronousLoop(Loop):
    """The loop in which all replicas take each step together, with a model of their strategy."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        task: Task,
        config: Train,
        folder: Path = Path(),  # noqa: B008  (immutable)
    ):
        super().__init__(model, task, config)
        self._folder = folder
        """That of the author's modules."""
        self._strategy, self._weights = strategy, model.weights
        self._local_replicas = count_local_replicas(strategy)
        self._optimizer_variables = self._make_optimizers()
        self._optimizer_paths = [
            each.path if isinstance(each, keras.Variable) else each.name
            for each in self._optimizer_variables
        ]
        average_of = self._find_averages()
        self._best_weights = [average_of.get(id(each), each) for each in self._weights]
        self._has_averages = any(map(operator.is_not, self._best_weights, self._weights))
        self._is_on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        # TensorFlow refuses its clock where all operations have to be repeatable.
        self._has_clock = not self._is_on_tpu and "determinism" not in config.debug
        self._is_sampled = self._has_clock and bool(tf.config.list_logical_devices("GPU"))
        # Parents come before children, so a parent's flag never replaces that of a child.
        flagged = [*list_layers(model), *self._weights]
        self._is_trainable = [(each, each.trainable) for each in flagged]
        self._frozen: set[int] = set()
        self._num_parts = strategy.num_replicas_in_sync * config.micro_batches
        summed = [each.path for each in model.weights if each.aggregation == "sum"]
        if strategy.num_replicas_in_sync > 1 and summed:
            raise ConfigError(
                f'train.model: {config.model}: {", ".join(summed)} with aggregation="sum" would '
                "grow with each assignment by a replica. Leave aggregation out: a state becomes "
                "the mean over the replicas."
            )
        if self._num_parts == 1:
            self._states = []  # the layers' own assignments are enough
        self._prepare_step()

    def _make_optimizers(self) -> Sequence[Any]:
        """Makes the optimizer of the gradients that a step has summed. Returns its variables."""
        with self._strategy.scope():
            self.optimizer = make_optimizer(
                self._config.optimizer, self._config.precision == "float16", self._folder
            )
            self.optimizer.build(self.model.trainable_variables)
        self._inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        keep_gradients(self._inner)
        variables: Sequence[Any] = self.optimizer.variables
        return variables

    def _find_averages(self) -> dict[int, keras.Variable]:
        """Returns the averages that an optimizer keeps, by the ids of the weights."""
        trained = self.model.trainable_variables
        averages = get_slots(self._inner).get("averages", trained)
        return {id(each): average for each, average in zip(trained, averages, strict=True)}

    def _prepare_step(self) -> None:
        """Makes the functions of a step, which are traced when they are called first."""
        self._train = tf.function(self._take_steps, reduce_retracing=True, autograph=False)
        self._compute_gradients = _compile(self._accumulate_parts, self._config.xla == "gradients")
        self._step = _compile(self._replica_step, self._config.xla == "step")
        self._calls, self.is_traced = 0, False

    def trace(self, batches: Batches, step: int, learning_rates: Sequence[float]) -> None:
        if not tf.config.functions_run_eagerly():
            arguments = self._make_arguments(batches, step, learning_rates, 0.0, self._is_timed)
            try:
                self._train.get_concrete_function(*arguments)
            except RuntimeError as error:
                if "merge_call" in str(error) and self._config.micro_batches > 1:
                    raise ConfigError(
                        f"train.micro_batches: {self._config.model} exchanges values between "
                        f"replicas in each call ({describe_call(error)}), which only whole "
                        "batches can do. Set train.micro_batches to 1, or leave the exchange out."
                    ) from error
                raise
        self.is_traced = True

    def train(
        self, batches: Batches, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> StepResult:
        is_timed = self._is_timed
        sums, is_sound, worst_loss, waits = self._train(
            *self._make_arguments(batches, step, learning_rates, stop, is_timed)
        )
        is_timed = is_timed and self._calls > 0  # the first call is traced and compiled
        self._calls += 1
        return StepResult(
            to_arrays(sums.batch),
            bool(is_sound),
            bool(sums.stop > 0),
            float(worst_loss),
            Waits(*map(float, waits)) if is_timed else None,
        )

    @property
    def _is_timed(self) -> bool:
        """Returns whether the next call is timed."""
        return self._calls % _TIMED_CALLS == 1 if self._is_sampled else self._has_clock

    def _make_arguments(
        self,
        batches: Batches,
        step: int,
        learning_rates: Sequence[float],
        stop: float,
        is_timed: bool,
    ) -> tuple[Any, ...]:
        # Always of one length, because another length would be traced again.
        padded = np.zeros(max(self._config.steps_per_call, len(learning_rates)), np.float32)
        padded[: len(learning_rates)] = learning_rates
        return (
            batches,
            tf.constant(step),
            tf.constant(padded),
            tf.constant(len(learning_rates)),
            tf.constant(stop),
            tf.constant(is_timed) if self._is_sampled else is_timed,
        )

    def freeze(self, positions: Collection[int]) -> None:
        """Freezes the weights at these positions of `model.weights`, and no others.

        A layer whose weights are all frozen is not trainable. Batch normalization then uses its
        moving statistics, and keeps them. The optimizer has slots for all weights at any time, so
        checkpoints do not depend on what is frozen. Raises ConfigError if no weight can learn.
        """
        frozen = set(positions)
        if frozen == self._frozen:
            return
        self._frozen = frozen
        for each, is_trainable in self._is_trainable:
            each.trainable = is_trainable
        frozen_ids = {id(self._weights[position]) for position in frozen}
        for layer in list_layers(self.model):
            if layer.weights and frozen_ids.issuperset(map(id, layer.weights)):
                layer.trainable = False
        for position in frozen:
            self._weights[position].trainable = False
        if not self.model.trainable_variables:
            raise ConfigError(
                "train.freeze: all weights of the model are frozen, so nothing is learned. Freeze "
                "fewer of them, or for fewer epochs."
            )
        self._prepare_step()

    def _take_steps(
        self,
        batches: Any,
        first: tf.Tensor,
        learning_rates: tf.Tensor,
        num_steps: tf.Tensor,
        stop: tf.Tensor,
        is_timed: bool | tf.Tensor,
    ) -> tuple[StepSums, tf.Tensor, tf.Tensor, Waits]:
        clock, last_weight = StepClock(is_timed), self.model.trainable_variables[-1]

        def take(number: tf.Tensor, sums: StepSums, worst: tf.Tensor, times: ClockTimes) -> Any:
            batch, times = clock.wait_for(batches.get_next, number, times)
            self._set_learning_rate(learning_rates[number])
            taken, communication = self._get_first(  # the same on every replica
                self._strategy.run(self._step, args=(*batch, first + number, stop, is_timed))
            )
            times = clock.end_step(times, communication, self._get_first(last_weight.value))
            sums = StepSums(add_sums(sums.batch, taken.batch), sums.stop + taken.stop)
            loss = taken.batch.loss / tf.maximum(taken.batch.count, 1.0)
            return number + 1, sums, tf.maximum(worst, loss), times

        no_sums = StepSums(zero_sums(self._task, training=True), tf.zeros([]))
        initial = tf.constant(0), no_sums, tf.constant(tf.float32.min), clock.start()
        _, sums, worst, times = tf.while_loop(lambda number, *_: number < num_steps, take, initial)
        weights = [self._get_first(variable.value) for variable in self.model.trainable_variables]
        return sums, are_finite([*weights, *sums.batch]), worst, times.waits

    def _set_learning_rate(self, rate: tf.Tensor) -> None:
        self._inner.learning_rate.value.assign(rate)

    def _get_first(self, replicas: Any) -> Any:
        """Returns the first local replica's values of a structure."""
        return tf.nest.map_structure(
            lambda value: self._strategy.experimental_local_results(value)[0], replicas
        )

    def _replica_step(
        self,
        features: Any,
        labels: Any,
        step: tf.Tensor,
        stop: tf.Tensor,
        is_timed: bool | tf.Tensor,
    ) -> tuple[StepSums, tf.Tensor]:
        """Takes a step. Returns its sums, and the seconds of the exchange if it is timed."""
        old = self._read_states()
        part = self._compute_gradients(step, *self._slice_for_replica(features, labels))
        own = StepSums(part.sums, tf.identity(stop))  # an input of the loop cannot be reduced
        # Alone there is no exchange, and XLA has no clock.
        clock = StepClock(is_timed if self._strategy.num_replicas_in_sync > 1 else False)
        exchanged = own, part.gradients, part.changes
        totals, communication = clock.measure_exchange(
            lambda: _all_reduce(tf.nest.flatten(exchanged)), part.gradients or [part.sums.loss]
        )
        sums, gradients, changes = tf.nest.pack_sequence_as(exchanged, totals)
        for state, value, change in zip(self._states, old, changes, strict=True):
            state.assign(add_change(value, change))
        self._apply(gradients, sums.batch)
        return sums, communication

    def _apply(self, gradients: Sequence[tf.Tensor], sums: BatchSums) -> None:
        """Updates the weights with the gradients of the global batch."""
        if not self._task.counts_examples:
            # They were divided by the global batch.
            scale = self._config.batch_size / tf.maximum(sums.count, 1.0)
            gradients = [gradient * scale for gradient in gradients]
        known = [None if n in self._unused else each for n, each in enumerate(gradients)]
        self.optimizer.apply_gradients(zip(known, self.model.trainable_variables, strict=True))

    def _read_states(self) -> list[tf.Tensor]:
        """Reads this replica's states."""
        return [state.value.read_value() for state in self._states]

    def _slice_for_replica(self, *batch: Any) -> Any:
        """Returns this replica's part of the worker's batch.

        The batch is split on the host, so each GPU receives only its own part.
        """
        part, count = get_replica_index() % self._local_replicas, self._local_replicas
        with contextlib.nullcontext() if self._is_on_tpu else tf.device("CPU:0"):
            return cut_batch(batch, part, count)

    def _accumulate_parts(self, step: tf.Tensor, features: Any, labels: Any) -> PartResult:
        return self._accumulate(functools.partial(self._differentiate, step), features, labels)

    def _differentiate(
        self, step: tf.Tensor, number: int | tf.Tensor, features: Any, labels: Any
    ) -> PartResult:
        """Returns the result of a micro-batch. The states are afterwards as before."""
        part = get_replica_index() * self._config.micro_batches + number
        self._generators.set_states(step, part)
        old = self._read_states()
        with tf.GradientTape() as tape:
            sums = self._task.compute_batch_sums(
                self.model(cast_to_float(features), training=True), labels, training=True
            )
            loss = sums.loss / self._config.batch_size
            # Regularizers are the same for every part.
            loss += add_losses(self.model.losses) / self._num_parts
            scaled = self.optimizer.scale_loss(loss)
        trainable = self.model.trainable_variables
        if self._config.micro_batches > 1 and (assigned := list_assigned(trainable)):
            refuse_assigned(self._config, assigned)
        batch = tf.nest.flatten((features, labels))
        if self._num_parts > 1 and (assigned := list_assigned(trainable, batch)):
            raise ConfigError(
                f"train.model: {self._config.model} assigns {', '.join(assigned)} in each call, "
                "from its part of the batch, and replicas would differ in a weight that learns. "
                "Create it with trainable=False, then it becomes the mean over the replicas, or "
                "train on one device."
            )
        gradients = tape.gradient(scaled, [variable.value for variable in trainable])
        new = self._read_states()
        changes = [make_change(*pair, part, self._num_parts) for pair in zip(new, old, strict=True)]
        for state, value in zip(self._states, old, strict=True):
            state.assign(value)
        return PartResult(sums, self._fill_gradients(gradients), changes)

    def evaluate(self, batches: Iterable[Any]) -> BatchSums:
        # Workers may have different numbers of batches, so they exchange only the final sums.
        sums = zero_sums(self._task, training=False)
        with self._use_best_weights():
            for features, labels in batches:
                sums = add_sums(sums, self._evaluate_batch(features, labels))
        return to_arrays(self._sum_over_workers(sums))

    def judge(self, batches: Iterable[Any]) -> np.ndarray:
        with self._use_best_weights():
            return join_verdicts(self._judge_batch(*batch) for batch in batches)

    @contextlib.contextmanager
    def _use_best_weights(self) -> Iterator[None]:
        raw = self.get_weights() if self._has_averages else None
        if raw:
            self.assign(self.get_best_weights())
        try:
            yield
        finally:
            if raw:
                self.assign(raw)

    @tf.function(reduce_retracing=True, autograph=False)
    def _judge_batch(self, features: Any, labels: Any) -> tf.Tensor:
        def judge(features: Any, labels: Any) -> tf.Tensor:
            return self._compute_verdicts(*self._slice_for_replica(features, labels))

        replicas = self._strategy.run(judge, args=(features, labels))
        return tf.concat(self._strategy.experimental_local_results(replicas), axis=0)

    @tf.function(reduce_retracing=True, autograph=False)
    def _evaluate_batch(self, features: Any, labels: Any) -> BatchSums:
        """Returns the sums over the local replicas."""

        def evaluate(features: Any, labels: Any) -> BatchSums:
            return self._compute_evaluation_sums(*self._slice_for_replica(features, labels))

        replicas = self._strategy.run(evaluate, args=(features, labels))
        return tf.nest.map_structure(
            lambda values: tf.add_n(self._strategy.experimental_local_results(values)), replicas
        )

    @tf.function(autograph=False)
    def _sum_over_workers(self, sums: BatchSums) -> BatchSums:
        """Returns the sum over workers. Each local replica adds an equal share of its worker's."""

        def add_up() -> Any:
            return _all_reduce([values / self._local_replicas for values in sums])

        return BatchSums(*self._get_first(self._strategy.run(add_up)))

    def _read(self, variable: keras.Variable | tf.Variable) -> tf.Tensor:
        # All workers do it at the same step, because some variables are averaged over them.
        own = variable.value if isinstance(variable, keras.Variable) else variable
        return tf.convert_to_tensor(own)

    def _write(self, variable: keras.Variable | tf.Variable, value: np.ndarray) -> None:
        variable.assign(value)


def _all_reduce(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sums of a replica's tensors over all replicas. Called in a replica.

    TensorFlow puts the tensors of a call one after another, so each type has a call of its own.
    """
    context, totals = tf.distribute.get_replica_context(), dict[int, tf.Tensor]()
    by_type = collections.defaultdict(list)
    for position, tensor in enumerate(tensors):
        by_type[tensor.dtype].append(position)
    for positions in by_type.values():
        own = [tensors[position] for position in positions]
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, own)
        totals |= zip(positions, summed, strict=True)
    return [totals[position] for position in range(len(tensors))]


def _compile(function: Callable[..., Any], with_xla: bool) -> Callable[..., Any]:
    return tf.function(function, jit_compile=True, autograph=False) if with_xla else function


def get_replica_index() -> int | tf.Tensor:
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    static = tf.get_static_value(index)
    return index if static is None else int(static)
