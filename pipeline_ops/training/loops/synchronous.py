"""The compiled steps: one loop for every synchronous strategy.

Keras's `fit` does not run under MultiWorkerMirroredStrategy, and its optimizers clip each replica's
gradient before the all-reduce, which silently makes the result depend on the number of workers.
This loop therefore has its own all-reduce. Each replica divides its summed loss by the *global*
batch. One collective adds up gradients and metric sums over all replicas. The optimizer sees the
gradient of the global batch. A loss may be a mean over boxes, say, instead of examples. Then the
number of boxes is among the sums, and the gradient is divided by it after the collective.

Other strategies, whose replicas do not take all steps together, have their own loops with the same
methods: `parameter_server.py` and `dtensor.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.models.task import Task, num_sums
from pipeline_ops.training.checkpointing.state import Arrays
from pipeline_ops.training.collectives.all_reduce import AllReduce, all_reduce
from pipeline_ops.training.gradients import as_floats, in_micro_batches, part_of
from pipeline_ops.training.optimizer import make_optimizer
from pipeline_ops.training.random_numbers import Generators

_SUM = tf.distribute.ReduceOp.SUM


@dataclasses.dataclass(frozen=True)
class Taken:
    """The result of one or more steps, the same on every worker.

    Attributes:
      sums: The sums of `Task.batch_sums` over all workers.
      is_finite: Whether every weight is finite.
      is_asked_to_stop: Whether some worker was asked to stop.
      worst_loss: The largest mean loss of a step, or None if the steps are not looked at one by
        one.
    """

    sums: np.ndarray
    is_finite: bool
    is_asked_to_stop: bool
    worst_loss: float | None = None

    @property
    def is_sound(self) -> bool:
        return self.is_finite and bool(np.isfinite(self.sums).all())


class Loop(Protocol):
    """A model and its optimizer.

    All workers of a gang call the same methods in the same order.
    """

    model: keras.Model

    def train(
        self, batches: Iterator, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> Taken:
        """Takes a step for each learning rate in one call of a compiled function.

        Args:
          batches: The training batches.
          step: The number of the first step.
          learning_rates: The learning rate of each step.
          stop: 1 if this worker was asked to stop.
        """
        ...

    def train_on(self, batch: Any, step: int, learning_rate: float) -> Taken:
        """Takes one step on a batch from `batches`, to find out which of several steps diverged."""
        ...

    def evaluate(self, batches: tf.data.Dataset) -> np.ndarray:
        """Adds up `Task.batch_sums` over this worker's batches and then over all workers.

        Uses the averaged weights if the optimizer keeps them.
        """
        ...

    def weights(self) -> Arrays:
        """All weights, in the order of `model.weights`."""
        ...

    def best_weights(self) -> Arrays:
        """The weights to evaluate: the averaged ones if they are kept, else `weights`."""
        ...

    def optimizer_values(self) -> Arrays: ...

    def assign(self, weights: Arrays, optimizer_values: Arrays | None = None) -> None:
        """Sets weights and optimizer values. None leaves the optimizer as it is."""
        ...


class SynchronousLoop:
    """The loop in which all replicas take each step together.

    Args:
      strategy: The strategy in whose scope `model` was built.
      model: The model. Its outputs go to the task's `batch_sums`.
      task: The task to train for.
      config: The training section.
      add_up: Adds up the tensors of all replicas in a step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        task: Task,
        config: Train,
        add_up: AllReduce = all_reduce,
    ):
        self._strategy, self.model, self._task, self._config, self._all_reduce = (
            strategy,
            model,
            task,
            config,
            add_up,
        )
        with strategy.scope():
            self.optimizer = make_optimizer(
                config.optimizer, scale_loss=config.precision == "float16"
            )
            self.optimizer.build(model.trainable_variables)
        self._variables = (
            [v.value for v in model.weights],
            [v.value for v in self.optimizer.variables],
        )
        self._generators = Generators(model)
        self._inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        # `apply_gradients` gets summed gradients. A private hook, so Keras is pinned.
        self._inner._all_reduce_sum_gradients = lambda gradients: gradients
        self._local_replicas = (
            len(strategy.extended.worker_devices)
            if strategy.extended._in_multi_worker_mode()
            else strategy.num_replicas_in_sync
        )
        self._gradients = (
            tf.function(self._sum_gradients, jit_compile=True)
            if config.xla == "gradients"
            else self._sum_gradients
        )
        self._step = (
            tf.function(self._replica_step, jit_compile=True)
            if config.xla == "step"
            else self._replica_step
        )

    def train(
        self, batches: Iterator, step: int, learning_rates: Sequence[float], stop: float = 0.0
    ) -> Taken:
        # Always of one length, because another length would be traced again.
        padded = np.zeros(max(self._config.steps_per_call, len(learning_rates)), np.float32)
        padded[: len(learning_rates)] = learning_rates
        return _taken(
            *self._train(
                batches,
                tf.constant(step),
                tf.constant(padded),
                tf.constant(len(learning_rates)),
                tf.constant(stop),
            )
        )

    def train_on(self, batch: Any, step: int, learning_rate: float) -> Taken:
        return _taken(
            *self._train_on(batch, tf.constant(step), tf.constant(learning_rate, tf.float32))
        )

    @tf.function(reduce_retracing=True)
    def _train(
        self,
        batches: Iterator,
        first: tf.Tensor,
        learning_rates: tf.Tensor,
        num_steps: tf.Tensor,
        stop: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        sums, worst = tf.zeros([num_sums(self._task) + 1]), tf.constant(tf.float32.min)
        for number in tf.range(num_steps):
            of_step = self._take(next(batches), first + number, learning_rates[number], stop)
            sums, worst = sums + of_step, tf.maximum(worst, _mean_loss(of_step))
        self._share_averages(sums)
        return sums, self._are_finite(), worst

    @tf.function(reduce_retracing=True)
    def _train_on(
        self, batch: Any, step: tf.Tensor, learning_rate: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        sums = self._take(batch, step, learning_rate, tf.constant(0.0))
        self._share_averages(sums)
        return sums, self._are_finite(), _mean_loss(sums)

    def _take(
        self, batch: Any, step: tf.Tensor, learning_rate: tf.Tensor, stop: tf.Tensor
    ) -> tf.Tensor:
        """Takes one step. Returns the sums over all replicas, and how many were asked to stop."""
        self._inner._learning_rate.value.assign(learning_rate)
        replicas = self._strategy.run(self._step, args=(*batch, step, stop))
        return self._strategy.experimental_local_results(replicas)[0]  # the same on every replica

    def _share_averages(self, taken: tf.Tensor) -> None:
        """Gives all replicas the mean of their moving averages of batch normalization.

        In Keras every replica keeps its own averages, so each worker would evaluate and save a
        different model. A moving average is linear, so the frequency of the exchange makes no
        difference.

        Args:
          taken: The sums of the preceding steps. With frozen statistics no step writes the
            averages, and only this dependency keeps the exchange from overtaking that of a step.
            Otherwise a worker would add another worker's averages to its gradients.
        """
        averages = [
            variable.value
            for variable in self.model.non_trainable_variables
            if variable.value.dtype.is_floating
        ]
        count = self._strategy.num_replicas_in_sync
        if not averages or count == 1:
            return

        def share() -> None:
            with tf.control_dependencies([taken]):
                totals = self._all_reduce([average.read_value() for average in averages])
            for average, total in zip(averages, totals, strict=True):
                average.assign(total / count)

        self._strategy.run(share)

    def _are_finite(self) -> tf.Tensor:
        """Returns whether the weights of the first replica are finite. The others have the same."""
        values = [
            self._strategy.experimental_local_results(variable.value)[0]
            for variable in self.model.trainable_variables
        ]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])

    def _replica_step(
        self, features: Any, labels: Any, step: tf.Tensor, stop: tf.Tensor
    ) -> tf.Tensor:
        self._generators.begin(step, _replica_number())
        sums, gradients = self._gradients(*self._part_of_replica(features, labels))
        *gradients, sums = self._all_reduce([*gradients, tf.concat([sums, [stop]], 0)])
        if not self._task.counts_examples:
            per_counted = self._config.global_batch / tf.maximum(
                sums[-2], 1.0
            )  # they were divided by the global batch
            gradients = [gradient * per_counted for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return sums

    def _part_of_replica(self, *batch: Any) -> Any:
        """This replica's share of the worker's batch, which the worker's devices divide."""
        return part_of(batch, _replica_number() % self._local_replicas, self._local_replicas)

    def _sum_gradients(self, features: Any, labels: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sums and gradients of this replica's share."""
        shapes = [variable.shape for variable in self.model.trainable_variables]
        return in_micro_batches(
            self._config.micro_batches,
            self._sum_gradients_of,
            features,
            labels,
            shapes,
            num_sums(self._task),
        )

    def _sum_gradients_of(
        self, _number: int | tf.Tensor, features: Any, labels: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            sums = self._task.batch_sums(
                self.model(as_floats(features), training=True), labels, training=True
            )
            loss = sums[0] / self._config.global_batch
            if (
                self.model.losses
            ):  # regularizers: every replica and every micro-batch has the same ones
                loss += tf.add_n(self.model.losses) / (
                    self._strategy.num_replicas_in_sync * self._config.micro_batches
                )
            scaled = self.optimizer.scale_loss(loss)
        variables = [variable.value for variable in self.model.trainable_variables]
        return sums, tape.gradient(
            scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    def evaluate(self, batches: tf.data.Dataset) -> np.ndarray:
        """Adds up the sums of this worker's batches, then those of all workers.

        Workers may have different numbers of batches, so they exchange only the final sums.
        """
        raw = self.weights() if self._config.optimizer.average_weights else None
        if raw:
            self.assign(self.best_weights())
        sums = tf.zeros([num_sums(self._task)])
        for features, labels in batches:
            sums += tf.add_n(
                self._strategy.experimental_local_results(self._evaluate_batch(features, labels))
            )
        if raw:
            self.assign(raw)
        return self._sum_over_workers(sums).numpy()

    @tf.function(reduce_retracing=True)
    def _evaluate_batch(self, features: Any, labels: Any):
        def evaluate(features, labels):
            features, labels = self._part_of_replica(features, labels)
            return self._task.batch_sums(
                self.model(as_floats(features), training=False), labels, training=False
            )

        return self._strategy.run(evaluate, args=(features, labels))

    @tf.function
    def _sum_over_workers(self, sums: tf.Tensor) -> tf.Tensor:
        """The sum over workers. Each local replica adds an equal share of its worker's sums."""
        return self._strategy.reduce(
            _SUM,
            self._strategy.run(lambda values: values / self._local_replicas, args=(sums,)),
            axis=None,
        )

    def weights(self) -> Arrays:
        """All weights. All workers must call it at the same step.

        Some variables are averaged over the workers when they are read.
        """
        return [variable.numpy() for variable in self.model.weights]

    def best_weights(self) -> Arrays:
        if not self._config.optimizer.average_weights:
            return self.weights()
        averages = {
            id(variable): average
            for variable, average in zip(
                self.model.trainable_variables,
                self._inner._model_variables_moving_average,
                strict=True,
            )
        }
        return [averages.get(id(variable), variable).numpy() for variable in self.model.weights]

    def optimizer_values(self) -> Arrays:
        return [variable.numpy() for variable in self.optimizer.variables]

    def views(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The values of `weights` and `optimizer_values`, not copied, valid until the next step."""
        weights, optimizer_values = self._variables
        return [*map(_view_of, weights)], [*map(_view_of, optimizer_values)]

    def assign(self, weights: Arrays, optimizer_values: Arrays | None = None) -> None:
        pairs = [*zip(self.model.weights, weights, strict=True)]
        if optimizer_values is not None:
            pairs += zip(self.optimizer.variables, optimizer_values, strict=True)
        for variable, value in pairs:
            variable.assign(value)


def snapshot(loop: Loop) -> tuple[Sequence, Sequence]:
    """Weights and optimizer values, valid until the next step.

    Loops with variables in pieces gather them, which is a copy.
    """
    return (
        loop.views()
        if isinstance(loop, SynchronousLoop)
        else (loop.weights(), loop.optimizer_values())
    )


def _view_of(variable: tf.Variable) -> tf.Tensor:
    """The value of a variable, read by the bare operation if there is one replica.

    The overhead of `tf.convert_to_tensor` takes as long as the read, and a checkpoint waits for it.
    """
    if isinstance(variable, tf.distribute.DistributedValues):
        return tf.convert_to_tensor(variable)
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _mean_loss(sums: tf.Tensor) -> tf.Tensor:
    """The mean loss of one step. The last of the sums counts the replicas asked to stop."""
    return sums[0] / tf.maximum(sums[-2], 1.0)


def _taken(sums: tf.Tensor, is_finite: tf.Tensor, worst_loss: tf.Tensor) -> Taken:
    *sums, asked = sums.numpy()
    return Taken(np.array(sums), bool(is_finite), asked > 0, float(worst_loss))


def _replica_number() -> int | tf.Tensor:
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    static = tf.get_static_value(number)
    return number if static is None else int(static)
