"""What the replicas of a step and the workers of a gang tell each other, by their strategy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from pipeline_ops.training.collectives.ring import Gather
from pipeline_ops.training.collectives.ring_strategy import RingStrategy

AllReduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]
"""Called in a replica: the sums of its tensors over all replicas, in the same order. Their shapes must be known."""

_ROW_BYTES = 128
"""What is said is made this long, or a multiple, so that a gather is traced once."""


def all_reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """The sums of a replica's tensors over all replicas, in the same order. Called in a replica."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def make_gather(strategy: tf.distribute.Strategy) -> Gather:
    """Tells all workers what each has said.

    Over TensorFlow's collectives this is a sum, to which each worker brings a matrix with its own
    row in it. A single worker has nobody to ask.
    """
    if isinstance(strategy, RingStrategy):
        return strategy.ring.gather
    resolver = strategy.cluster_resolver if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) else None
    workers = len(resolver.cluster_spec().as_dict()["worker"]) if resolver else 1
    if workers == 1:
        return lambda said: [said]
    local_replicas = len(strategy.extended.worker_devices)

    @tf.function
    def add_up(rows: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: rows / local_replicas), axis=None)

    def gather(said: bytes) -> list[bytes]:
        rows = np.zeros((workers, -(-len(said) // _ROW_BYTES) * _ROW_BYTES), np.float32)
        rows[resolver.task_id, :len(said)] = np.frombuffer(said, np.uint8)
        return [row[:len(said)].tobytes() for row in np.rint(add_up(tf.constant(rows)).numpy()).astype(np.uint8)]

    return gather
