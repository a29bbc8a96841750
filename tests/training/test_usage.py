"""The shares of a worker's time, and the load of its GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from unittest import mock

import pynvml
import pytest
from engines.cluster import find_free_ports

from pipeline_ops.contract.results import GpuUsage
from pipeline_ops.training.usage import GpuMonitor, TimeSums, Waits

WORKER = """
import json, os, sys, time
from pipeline_ops.input.tensorflow_start import tf
import keras, numpy as np
from pipeline_ops.config.train import Train
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.loop import SynchronousLoop
from pipeline_ops.training.strategy import check_replicas_agree
from pipeline_ops.training.usage import TimeSums

strategy = tf.distribute.MultiWorkerMirroredStrategy()
check_replicas_agree(strategy)  # as every gang on GPUs does
config = Train(model="dense", workers=2, global_batch_size=4)
with strategy.scope():
    images = keras.Input((4, 4, 1))
    model = keras.Model(images, keras.layers.Dense(3)(keras.layers.Flatten()(images)))
loop = SynchronousLoop(strategy, model, Classification((4, 4, 1)), config)

def read(number):
    time.sleep(float(sys.argv[1]))
    return np.zeros((2, 4, 4, 1), np.uint8)

def parse(number):
    images = tf.numpy_function(read, [number], tf.uint8)
    images.set_shape((2, 4, 4, 1))
    return images, tf.zeros([2], tf.int64)

batches, times = iter(tf.data.Dataset.counter().map(parse).prefetch(2)), TimeSums()
for step in (0, 10, 20):
    begun = time.perf_counter()
    waits = loop.train(batches, step, [0.1] * 10).waits
    if step:
        times.add_steps(time.perf_counter() - begun, waits)
loop._is_sampled, loop._calls = True, 0  # the conditional clock, which GPUs have
sampled = [loop.train(batches, 30 + 10 * call, [0.1] * 10).waits for call in range(3)]
print(json.dumps([waits, times.compute_shares().model_dump(), sampled]), flush=True)
os._exit(0)
"""


@pytest.mark.training
def test_a_slow_input_is_told_from_waiting_for_the_worker_that_has_it():
    addresses = [f"127.0.0.1:{port}" for port in find_free_ports(2)]
    processes = []
    for index, delay in enumerate((0.0, 0.05)):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(delay)],
                env=os.environ | {"TF_CONFIG": json.dumps(task)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    (_, fast, _), (slow_waits, slow, sampled) = (
        json.loads(output.splitlines()[-1]) for output in outputs
    )
    assert slow_waits[0] == pytest.approx(10 * 0.05, rel=0.4)
    assert slow["input"] > 0.7 and slow["communication"] < 0.2
    assert fast["input"] < 0.2 and fast["communication"] > 0.6
    assert sampled[0] is None and sampled[2] is None and sampled[1][0] > 0.2


def test_the_shares_of_a_training_add_up_to_one():
    times = TimeSums()
    times.add_steps(30.0, None)  # traced and compiled
    times.add_saving(10.0)
    assert times.compute_shares() is None
    times.add_steps(20.0, Waits(2.0, 4.0))
    times.add_steps(40.0, None)
    shares = times.compute_shares()
    assert shares.model_dump() == pytest.approx(
        {"input": 0.09, "computing": 0.63, "communication": 0.18, "saving": 0.1}
    )
    assert sum(shares.model_dump().values()) == pytest.approx(1)


@pytest.fixture
def driver(monkeypatch):
    """Functions of NVIDIA's driver for one GPU and for a part of one."""
    functions = mock.Mock(nvmlInit=mock.Mock())
    functions.nvmlDeviceGetHandleByIndex.side_effect = str
    functions.nvmlDeviceGetComputeRunningProcesses.return_value = []
    functions.nvmlDeviceGetHandleByUUID.side_effect = str
    functions.nvmlDeviceGetMemoryInfo.return_value = mock.Mock(used=30 * 10**9, total=80 * 10**9)
    functions.nvmlDeviceGetUtilizationRates.return_value = mock.Mock(gpu=97)

    def read_power(handle):
        if handle.startswith("MIG"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 612_000

    functions.nvmlDeviceGetPowerUsage.side_effect = read_power
    for name in dir(functions):
        if name.startswith("nvml"):
            monkeypatch.setattr(pynvml, name, getattr(functions, name))
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    return functions


def test_the_gpus_of_a_worker_are_watched(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,MIG-7")
    monitor = GpuMonitor(pytest.fail)
    common = {"memory_bytes": 30 * 10**9, "memory_limit_bytes": 80 * 10**9, "utilization": 0.97}
    assert monitor.gpus == [
        GpuUsage(name="3", watts=612.0, **common),
        GpuUsage(name="MIG-7", **common),
    ]
    driver.nvmlDeviceGetHandleByIndex.assert_called_once_with(3)
    processes = {"3": [mock.Mock(pid=17)], "MIG-7": []}
    driver.nvmlDeviceGetComputeRunningProcesses.side_effect = processes.get
    assert monitor.list_processes() == ["GPU 3: process 17"]


def test_a_driver_that_does_not_answer_is_told_and_stops_no_training(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    driver.nvmlInit.side_effect = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    warnings = []
    assert GpuMonitor(warnings.append).gpus == []
    assert warnings == [
        "utilization, memory and power of the GPUs are not known: NVML Shared Library Not Found"
    ]


def test_without_a_gpu_there_is_nothing_to_watch(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert GpuMonitor(pytest.fail).gpus == []
    driver.nvmlInit.assert_not_called()
