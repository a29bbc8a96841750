"""The check of this host's GPUs: `python -m pipeline_ops.training.device_check gpu`.

`trainyard doctor --gpu` starts it in a process of its own, because TensorFlow holds a GPU until its
process ends. It prints the findings as a JSON list. With `cpu`, two logical CPUs stand for GPUs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pipeline_ops.input.keras_start  # noqa: F401  (before other imports of Keras)
from pipeline_ops.input.tensorflow_start import tf
from pipeline_ops.system.host import Finding
from pipeline_ops.training.strategy import SHOW_REASON, check_replicas
from pipeline_ops.training.usage import GpuMonitor

_DRIVER = Path("/proc/driver/nvidia/version")
_NUM_CPUS = 2
_NEWEST_CODE = (9,)
"""The newest compute capability that the packages of TensorFlow 2.21 have machine code for."""


def check_devices(kind: str) -> Iterator[Finding]:
    """Yields versions, other processes, each device, XLA, and a sum."""
    build = tf.sysconfig.get_build_info()
    driver = _DRIVER.read_text().splitlines()[0] if _DRIVER.exists() else "no driver"
    yield Finding(
        check=f"TensorFlow {tf.__version__} for CUDA {build.get('cuda_version', '-')} and cuDNN "
        f"{build.get('cudnn_version', '-')}; {driver}"
    )
    others: list[str] = []
    others += GpuMonitor(others.append).list_processes()
    yield Finding(
        check="other processes on the GPUs",
        problem="; ".join(others),
        cure="A training shares memory and time with them. End them, or wait.",
        is_warning=True,
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
            cure=SHOW_REASON,
        )
        return
    for device in physical:
        yield describe_device(device.name, tf.config.experimental.get_device_details(device))
    devices = [device.name for device in tf.config.list_logical_devices(kind.upper())]
    yield _compile_for(devices[0])
    every = tf.distribute.MirroredStrategy(devices)
    yield Finding(
        check=f"a convolution and its sum over {every.num_replicas_in_sync} devices",
        problem=check_replicas(every),
        cure="NCCL_DEBUG=INFO python -m pipeline_ops.training.device_check gpu shows the reason.",
    )


def describe_device(name: str, details: Mapping[str, Any]) -> Finding:
    """Names a device. Warns if TensorFlow has no machine code for it."""
    version = details.get("compute_capability", ())
    text = f", compute capability {'.'.join(map(str, version))}" if version else ""
    return Finding(
        check=f"{name}: {details.get('device_name', 'a CPU')}{text}",
        problem="TensorFlow has no machine code for it" if version[:1] > _NEWEST_CODE else "",
        cure="The driver translates every kernel at its first use, which can take half an hour, or "
        "fails (tensorflow#89272). Keep CUDA_CACHE_PATH on a disk, or take another GPU.",
        is_warning=True,
    )


def _compile_for(device: str) -> Finding:
    """Compiles with XLA, which starts NVIDIA's `ptxas` and reads `libdevice`."""

    @tf.function(jit_compile=True)
    def compute() -> tf.Tensor:
        return tf.reduce_sum(tf.exp(tf.ones([8, 8])))

    problem = ""
    try:
        with tf.device(device):
            compute()
    except tf.errors.OpError as error:
        problem = str(error).strip().splitlines()[0]
    return Finding(
        check="XLA",
        problem=problem,
        cure="Leave out train.xla, or install requirements-gpu.txt, which has ptxas and libdevice "
        "(tensorflow#58681).",
    )


if __name__ == "__main__":
    print(json.dumps([each.model_dump() for each in check_devices(sys.argv[1])]))
