"""The compiled steps: one loop for every synchronous strategy.

Keras's `fit` does not run under MultiWorkerMirroredStrategy, and its optimizers clip each replica's gradient before
the all-reduce, which silently makes the result depend on the number of workers. So the all-reduce is ours: each
replica divides its summed loss by the *global* batch, gradients and metric sums are added up over all replicas in one
collective, and the optimizer sees the gradient of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.contracts.config_train import Optimizer, Train
from pipeline_ops.models.classification import batch_sums
from pipeline_ops.training.state import Arrays


def make_optimizer(config: Optimizer) -> keras.optimizers.Optimizer:
    match config.name:
        case "sgd":
            return keras.optimizers.SGD(config.learning_rate, momentum=config.momentum)
        case "adamw":
            return keras.optimizers.AdamW(config.learning_rate, weight_decay=config.weight_decay)
        case "adam":
            return keras.optimizers.Adam(config.learning_rate)


class Loop:
    """A model, its optimizer and the two compiled functions on them.

    Args:
      strategy: the strategy in whose scope `model` was built.
      model: takes float32 images in 0..255, returns logits.
      config: the training section.
    """

    def __init__(self, strategy: tf.distribute.Strategy, model: keras.Model, config: Train):
        self._strategy, self.model, self._global_batch = strategy, model, config.global_batch
        with strategy.scope():
            self.optimizer = make_optimizer(config.optimizer)
            self.optimizer.build(model.trainable_variables)
        # The gradients that reach `apply_gradients` are summed already. A private hook, so keras is pinned.
        self.optimizer._all_reduce_sum_gradients = lambda gradients: gradients

    @tf.function(reduce_retracing=True)
    def train(self, batches: Iterator, num_steps: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        """Takes `num_steps` optimizer steps. Returns the sums of `batch_sums` over all workers and, last, that of their `stop`."""
        sums = tf.zeros([4])
        for _ in tf.range(num_steps):
            replicas = self._strategy.run(self._replica_step, args=(*next(batches), stop))
            sums += self._strategy.experimental_local_results(replicas)[0]  # the same on every replica
        return sums

    def _replica_step(self, images_bHWC: tf.Tensor, labels_b: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            sums = batch_sums(self.model(tf.cast(images_bHWC, tf.float32), training=True), labels_b)
            loss = sums[0] / self._global_batch
            if self.model.losses:  # regularisers: every replica has the same ones
                loss += tf.add_n(self.model.losses) / context.num_replicas_in_sync
        gradients = tape.gradient(loss, self.model.trainable_variables)
        *gradients, sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, tf.concat([sums, [stop]], 0)])
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return sums

    def evaluate(self, batches: tf.data.Dataset) -> np.ndarray:
        """The sums of `batch_sums` over this worker's batches and then over all workers.

        Workers may have different numbers of batches: nothing is exchanged until each has gone through its own.
        """
        sums = tf.zeros([3])
        for images_bHWC, labels_b in batches:
            sums += self._strategy.experimental_local_results(self._evaluate_batch(images_bHWC, labels_b))[0]
        return self._sum_over_workers(sums).numpy()

    @tf.function(reduce_retracing=True)
    def _evaluate_batch(self, images_bHWC: tf.Tensor, labels_b: tf.Tensor):
        return self._strategy.run(lambda x, y: batch_sums(self.model(tf.cast(x, tf.float32), training=False), y), args=(images_bHWC, labels_b))

    @tf.function(input_signature=[tf.TensorSpec([3])])
    def _sum_over_workers(self, sums: tf.Tensor) -> tf.Tensor:
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    def set_learning_rate(self, value: float) -> None:
        self.optimizer.learning_rate = value

    def weights(self) -> Arrays:
        """To be called by all workers at the same step: some variables are averaged over the workers when they are read."""
        return [variable.numpy() for variable in self.model.weights]

    def optimizer_values(self) -> Arrays:
        return [variable.numpy() for variable in self.optimizer.variables]

    def assign(self, weights: Arrays, optimizer_values: Arrays) -> None:
        """Sets what `weights` and `optimizer_values` gave."""
        for variable, value in zip([*self.model.weights, *self.optimizer.variables], [*weights, *optimizer_values], strict=True):
            variable.assign(value)
