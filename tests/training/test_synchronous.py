"""The order of operations in the graph of the compiled steps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.loop import SynchronousLoop

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
with strategy.scope():
    images = keras.Input((4, 4, 1))
    x = keras.layers.BatchNormalization(trainable=False)(images)
    model = keras.Model(images, keras.layers.Dense(3)(keras.layers.Flatten()(x)))

config = Train(model="dense", strategy="mirrored", devices_per_worker=2, global_batch_size=4)
loop = SynchronousLoop(strategy, model, Classification((4, 4, 1)), config)
batch = (tf.zeros([4, 4, 4, 1], tf.uint8), tf.zeros([4], tf.int64))
batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
graph = loop._train.get_concrete_function(
    batches, tf.constant(0), tf.zeros([10]), tf.constant(2), tf.constant(0.0), True
).graph

def ancestors(operation):
    found, waiting = set(), [operation]
    while waiting:
        for before in [tensor.op for tensor in waiting[0].inputs] + list(waiting[0].control_inputs):
            if before.name not in found:
                found.add(before.name)
                waiting.append(before)
        waiting.pop(0)
    return found

steps = [operation.name for operation in graph.get_operations() if "While" in operation.type]
reads = [operation for operation in graph.get_operations() if operation.type == "ReadVariableOp"]
print(json.dumps({
    "steps": len(steps),
    "reads": len(reads),
    "after": sum(set(steps) <= ancestors(each) for each in reads),
}))
"""


@pytest.mark.training
def test_the_exchange_of_averages_waits_for_the_steps_also_where_no_step_writes_them():
    """Another worker would mistake one of two simultaneous exchanges for the other. Four variables
    are frozen, on two devices. Two other reads see whether the weights are finite."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert json.loads(run.stdout.splitlines()[-1]) == {"steps": 1, "reads": 10, "after": 10}
