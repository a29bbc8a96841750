"""The `tf.distribute` strategy of a worker, and its share of the host."""

from __future__ import annotations

import os

import tensorflow as tf

from pipeline_ops.contracts.config_train import Train
from pipeline_ops.contracts.gang import WorkerSpec


def make_strategy(config: Train, spec: WorkerSpec) -> tf.distribute.Strategy:
    """Joins the gang: returns once every worker is there. Must come before any other operation."""
    tf.config.threading.set_intra_op_parallelism_threads(spec.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, spec.threads))
    if config.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy("/cpu:0" if not tf.config.list_physical_devices("GPU") else "/gpu:0")
    os.environ["TF_CONFIG"] = spec.tf_config
    # A step that takes longer than this is a lost peer. A killed one is noticed at once, by its closed connection.
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=float(config.step_timeout_seconds))
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
