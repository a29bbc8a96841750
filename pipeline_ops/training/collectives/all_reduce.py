"""Exchange between the replicas of a step and between the workers of a gang, by strategy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from pipeline_ops.training.collectives.ring import Gather
from pipeline_ops.training.collectives.ring_strategy import RingStrategy

AllReduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]
"""Returns the sums of a replica's tensors over all replicas, in the same order.

It is called in a replica. The shapes of the tensors must be known.
"""

_ROW_BYTES = 128
"""Messages are padded to a multiple of this length, so that a gather is traced once."""


def all_reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """The sums of a replica's tensors over all replicas, in the same order. Called in a replica."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def make_gather(strategy: tf.distribute.Strategy) -> Gather:
    """Returns a function that sends each worker's message to all workers.

    TensorFlow's collectives do this as a sum. Each worker contributes a matrix with its message in
    its own row. A single worker gets its own message back.
    """
    if isinstance(strategy, RingStrategy):
        return strategy.ring.gather
    resolver = (
        strategy.cluster_resolver
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        else None
    )
    workers = len(resolver.cluster_spec().as_dict()["worker"]) if resolver else 1
    if workers == 1:
        return lambda said: [said]
    local_replicas = len(strategy.extended.worker_devices)

    @tf.function
    def add_up(rows: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(lambda: rows / local_replicas), axis=None
        )

    def gather(said: bytes) -> list[bytes]:
        rows = np.zeros((workers, -(-len(said) // _ROW_BYTES) * _ROW_BYTES), np.float32)
        rows[resolver.task_id, : len(said)] = np.frombuffer(said, np.uint8)
        return [
            row[: len(said)].tobytes()
            for row in np.rint(add_up(tf.constant(rows)).numpy()).astype(np.uint8)
        ]

    return gather
