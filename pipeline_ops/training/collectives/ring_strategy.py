"""A `tf.distribute` strategy whose workers add up in the ring, without TensorFlow's servers.

It gives the results of MultiWorkerMirroredStrategy: the same replica numbers, the same initial
values on all workers, and sums over all replicas wherever Keras or a user's code asks for them.
Workers on one host open no port. The strategy is for workers that train on CPUs. On GPUs the sums
would go through the host's memory, and NCCL is faster.

A custom strategy overrides private methods, which `framework_internals.py` checks. The tests train
with this strategy and compare weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline_ops.input.framework_internals import Mirrored, MirroredExtended, broadcast_to_devices
from pipeline_ops.training.collectives.ring import Ring

_SUMMED_BY_RING = (tf.float16, tf.bfloat16, tf.float32)


class RingStrategy(tf.distribute.Strategy):
    """One worker's side of the gang.

    Args:
      devices: The devices of this worker, one for each of its replicas.
      ring: The worker's position in the ring.
    """

    _collective_key_base = 0  # MirroredExtended needs it

    def __init__(self, devices: Sequence[str], ring: Ring):
        super().__init__(_RingExtended(self, devices, ring))
        self.ring = ring


class _RingExtended(MirroredExtended):
    """Numbers the replicas of all workers, and reduces through the ring."""

    def __init__(self, strategy: RingStrategy, devices: Sequence[str], ring: Ring):
        self._ring = ring
        super().__init__(strategy, devices, RingOps(ring))

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._ring.workers * len(self._devices)

    def _in_multi_worker_mode(self) -> bool:
        return True

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self._ring.worker * len(self._devices) + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self._ring.worker * len(self._devices)

    def _use_merge_call(self) -> bool:
        return True

    def _get_cross_device_ops(self, value: Any) -> tf.distribute.CrossDeviceOps:
        return self._cross_device_ops

    def _reduce_to(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, destinations: Any, options: Any
    ) -> Any:
        if isinstance(value, Mirrored) and reduce_op == tf.distribute.ReduceOp.MEAN:
            return value
        return self._cross_device_ops.reduce(reduce_op, value, destinations)

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: tf.Variable | None, **kwargs: Any
    ) -> Any:
        """Gives all workers the initial value of worker 0, whatever the initializer draws."""
        value = super()._get_variable_creator_initial_value(
            replica_id, device, primary_var, **kwargs
        )
        return (
            (lambda: self._broadcast_first_value(value, kwargs.get("dtype")))
            if replica_id == 0
            else value
        )

    def _broadcast_first_value(self, value: Any, dtype: tf.DType | None) -> tf.Tensor:
        value = tf.convert_to_tensor(value() if callable(value) else value, dtype)
        return self._cross_device_ops.sum_over_workers(
            [value if self._ring.worker == 0 else tf.zeros_like(value)]
        )[0]


class RingOps(tf.distribute.CrossDeviceOps):
    """Sums and means over all replicas of all workers."""

    def __init__(self, ring: Ring):
        super().__init__()
        self._ring = ring
        with tf.device("/cpu:0"):
            self._order = tf.Variable(0, trainable=False)

    @property
    def _num_between_graph_workers(self) -> int:
        return self._ring.workers

    def reduce_implementation(
        self,
        reduce_op: tf.distribute.ReduceOp,
        per_replica_value: Any,
        destinations: Any,
        options: Any,
    ) -> Any:
        return self.batch_reduce_implementation(
            reduce_op, [(per_replica_value, destinations)], options
        )[0]

    def batch_reduce_implementation(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any,
    ) -> list[Any]:
        replicas = [value.values for value, _ in value_destination_pairs]
        totals = self.sum_over_workers(
            [_sum_replicas(replica_values) for replica_values in replicas]
        )
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            counts = [self._ring.workers * len(replica_values) for replica_values in replicas]
            totals = [
                tf.cast(total / count, total.dtype)
                for total, count in zip(totals, counts, strict=True)
            ]
        return [
            broadcast_to_devices(total, destinations, always_mirrored=True)
            for total, (_, destinations) in zip(totals, value_destination_pairs, strict=True)
        ]

    def sum_over_workers(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers. Short floats are added as float32, others exactly."""
        dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
        wide = [
            tf.cast(tensor, tf.float32) if tensor.dtype in _SUMMED_BY_RING else tensor
            for tensor in dense
        ]
        with tf.device("/cpu:0"):
            totals = self._run_in_order(
                lambda: tf.nest.flatten(
                    tf.numpy_function(self._sum, wide, [tensor.dtype for tensor in wide])
                )
            )
        return [
            tf.cast(tf.ensure_shape(total, tensor.shape), tensor.dtype)
            for total, tensor in zip(totals, dense, strict=True)
        ]

    def _run_in_order(self, exchange: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
        """Keeps exchanges in the order of the program, which is the same on all workers.

        Operations on one variable keep their order. Two exchanges in a graph have no other
        dependency.
        """
        if tf.executing_eagerly():
            return exchange()
        with tf.control_dependencies([self._order.assign_add(1)]):
            totals = exchange()
        with tf.control_dependencies(totals):
            self._order.assign_add(1)
        return totals

    def _sum(self, *arrays: np.ndarray) -> list[np.ndarray]:
        totals = iter(
            self._ring.all_reduce(*(array for array in arrays if array.dtype == np.float32))
        )
        return [
            next(totals) if array.dtype == np.float32 else self._sum_exactly(array)
            for array in arrays
        ]

    def _sum_exactly(self, array: np.ndarray) -> np.ndarray:
        messages = self._ring.gather(array.tobytes())
        values = [np.frombuffer(message, array.dtype) for message in messages]
        return np.asarray(np.sum(values, axis=0, dtype=array.dtype)).reshape(array.shape)


def _sum_replicas(replica_values: Sequence[Any]) -> tf.Tensor:
    """Returns the sum over the replicas of this worker. Gradients of embeddings are slices."""
    if len(replica_values) == 1:
        return tf.convert_to_tensor(replica_values[0])
    with tf.device("/cpu:0"):
        return tf.add_n([tf.convert_to_tensor(value) for value in replica_values])
