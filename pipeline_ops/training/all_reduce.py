"""How the replicas of a step add up their gradients: by the strategy, or, where each worker has one CPU, in a ring of our own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from pipeline_ops.training.ring import Gather, Ring, join_ring

AllReduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]
"""Called in a replica: the sums of its tensors over all replicas, in the same order. Their shapes must be known."""

_ROW_BYTES = 128
"""What is said is made this long, or a multiple, so that a gather is traced once."""


def make_all_reduce(strategy: tf.distribute.Strategy, gather: Gather, timeout_seconds: float) -> AllReduce:
    """The faster one of those that can serve a strategy. All workers of a gang must call this at the same place; `gather` is the strategy's.

    Raises:
      MachineError: the workers can't reach each other.
    """
    if not _has_a_cpu_in_each_worker(strategy):
        return lambda tensors: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)
    resolver = strategy.cluster_resolver
    addresses = resolver.cluster_spec().as_dict()["worker"]
    host = addresses[resolver.task_id].rpartition(":")[0].strip("[]")
    ring = join_ring(resolver.task_id, len(addresses), host, gather, timeout_seconds)
    return lambda tensors: _by_ring(ring, tensors)


def _has_a_cpu_in_each_worker(strategy: tf.distribute.Strategy) -> bool:
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or strategy.num_replicas_in_sync == 1:
        return False
    [device, *others] = strategy.extended.worker_devices
    return not others and tf.DeviceSpec.from_string(device).device_type == "CPU"


def make_gather(strategy: tf.distribute.Strategy) -> Gather:
    """By a sum of the strategy's, to which each worker brings a matrix with its own row in it. Where there is one worker, there is nobody to ask."""
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


def _by_ring(ring: Ring, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]  # gradients of embeddings come as slices
    totals = tf.numpy_function(ring.all_reduce, [tf.cast(tensor, tf.float32) for tensor in dense], [tf.float32] * len(dense))
    return [tf.cast(tf.ensure_shape(total, tensor.shape), tensor.dtype) for total, tensor in zip(totals, dense, strict=True)]
