"""Exchange between the replicas of a step and between the workers of a gang, by strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

AllReduce = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
"""Returns the sums of a replica's tensors over all replicas, in the same order.

It is called in a replica. The shapes of the tensors must be known.
"""

Gather = Callable[[bytes], list[bytes]]
"""Sends a message of this worker to all workers, and returns the messages of all, by worker.

All messages have the same length.
"""
_ROW_BYTES = 128
"""Messages are padded to a multiple of this length, so that a gather is traced once."""


def all_reduce(tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The `AllReduce` of the current strategy."""
    context = tf.distribute.get_replica_context()
    totals: Sequence[tf.Tensor] = context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)
    return totals


def make_gather(strategy: tf.distribute.Strategy) -> Gather:
    """Returns a function that sends each worker's message to all workers.

    TensorFlow's collectives do this as a sum. Each worker contributes a matrix with its message in
    its own row. A single worker gets its own message back.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return lambda message: [message]
    resolver = strategy.cluster_resolver
    workers = len(resolver.cluster_spec().as_dict()["worker"])
    local_replicas = len(strategy.extended.worker_devices)

    @tf.function
    def sum_rows(rows: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(lambda: rows / local_replicas), axis=None
        )

    def gather(message: bytes) -> list[bytes]:
        rows = np.zeros((workers, -(-len(message) // _ROW_BYTES) * _ROW_BYTES), np.float32)
        rows[resolver.task_id, : len(message)] = np.frombuffer(message, np.uint8)
        return [
            row[: len(message)].tobytes()
            for row in np.rint(sum_rows(tf.constant(rows)).numpy()).astype(np.uint8)
        ]

    return gather
