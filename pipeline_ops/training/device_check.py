"""The check of this host's GPUs: `python -m pipeline_ops.training.device_check gpu`.

`trainyard doctor --gpu` starts it in a process of its own, because TensorFlow holds a GPU until its
process ends. It prints the findings as a JSON list. With `cpu`, two logical CPUs stand for GPUs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.system.host import Finding

_NUM_STEPS, _BATCH = 10, 64
_TOLERANCE = 1e-3
"""Of the loss, relative, with TF32 off. Devices add in another order."""
_DRIVER = Path("/proc/driver/nvidia/version")
_NUM_CPUS = 2


def check_devices(kind: str) -> Iterator[Finding]:
    """Yields what TensorFlow was built with, each device, a sum over all, and a short training."""
    build = tf.sysconfig.get_build_info()
    driver = _DRIVER.read_text().splitlines()[0] if _DRIVER.exists() else "no driver"
    yield Finding(
        check=f"TensorFlow {tf.__version__} for CUDA {build.get('cuda_version', '-')} and cuDNN "
        f"{build.get('cudnn_version', '-')}; {driver}"
    )
    if kind == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * _NUM_CPUS
        tf.config.set_logical_device_configuration(cpu, logical)
    physical = tf.config.list_physical_devices(kind.upper())
    if not physical:
        yield Finding(
            check="GPUs",
            problem="TensorFlow registers no GPU of this host",
            cure="TF_CPP_MIN_LOG_LEVEL=0 python -m pipeline_ops.training.device_check gpu shows "
            "the reason in TensorFlow's log.",
        )
        return
    for device in physical:
        details = tf.config.experimental.get_device_details(device)
        version = ".".join(map(str, details.get("compute_capability", ())))
        name = details.get("device_name", "a CPU")
        yield Finding(
            check=f"{device.name}: {name}{', compute capability ' * bool(version)}{version}"
        )
    yield from _find_other_processes()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    devices = [device.name for device in tf.config.list_logical_devices(kind.upper())]
    # A second MirroredStrategy of a process would use the same keys of collectives.
    one, every = (
        tf.distribute.OneDeviceStrategy(devices[0]),
        tf.distribute.MirroredStrategy(devices),
    )
    yield _check_sum(every)
    yield compare_losses(_train(one), _train(every))


def _check_sum(strategy: tf.distribute.Strategy) -> Finding:
    """Adds the numbers of the devices, over NCCL if they are several GPUs."""
    count = strategy.num_replicas_in_sync

    @tf.function
    def add() -> Any:
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(
                "sum",
                tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, "float32"),
            )
        )

    found = [float(value) for value in strategy.experimental_local_results(add())]
    expected = count * (count - 1) / 2
    return Finding(
        check=f"a sum over {count} devices",
        problem="" if found == [expected] * count else f"is {found}, and not {expected} on each",
        cure="NCCL_DEBUG=INFO python -m pipeline_ops.training.device_check gpu shows the reason.",
    )


def _train(strategy: tf.distribute.Strategy) -> np.ndarray:
    """Returns the losses of a few steps on the same batch."""
    generator = np.random.default_rng(1)
    images = generator.random((_BATCH, 16, 16, 3), np.float32)
    labels = generator.integers(0, 10, _BATCH)
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Conv2D(8, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.1), loss)
    batches = tf.data.Dataset.from_tensors((images, labels))
    history = model.fit(batches, epochs=_NUM_STEPS, shuffle=False, verbose=0)
    return np.array(history.history["loss"])


def compare_losses(one: np.ndarray, all_devices: np.ndarray) -> Finding:
    """Compares the losses on one device with those on all."""
    problem = ""
    if not np.isfinite(all_devices).all():
        problem = f"the loss on all devices is not finite: {all_devices.round(4).tolist()}"
    elif not np.allclose(one, all_devices, rtol=_TOLERANCE):
        problem = (
            f"the loss on one device is {one.round(4).tolist()}, "
            f"and on all {all_devices.round(4).tolist()}"
        )
    return Finding(
        check=f"{_NUM_STEPS} steps on one device and on all",
        problem=problem,
        cure="Do not train on several GPUs of this host (tensorflow#90686 is such a case): set "
        "train.devices_per_worker to 1, or install another driver.",
    )


def _find_other_processes() -> Iterator[Finding]:
    """Warns of processes that use the GPUs now, as far as nvidia-smi knows them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    query = ["--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"]
    done = subprocess.run(
        [program, *query], capture_output=True, text=True, check=False, timeout=60
    )
    others = done.stdout.strip().replace("\n", "; ")
    yield Finding(
        check="other processes on the GPUs",
        problem=others if done.returncode == 0 else done.stderr.strip(),
        cure="A training shares memory and time with them. End them, or wait.",
        is_warning=True,
    )


if __name__ == "__main__":
    print(json.dumps([each.model_dump() for each in check_devices(sys.argv[1])]))
