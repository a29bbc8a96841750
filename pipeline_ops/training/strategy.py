"""The `tf.distribute` strategy of a worker, its share of the host, and the exchange of values.

With the strategy `device_placement`, a large model is spread over several devices of one worker.
`train.placement` maps patterns of layer names to devices. A layer's variables and its optimizer
slots are created on its device, and the layer computes there. TensorFlow copies the tensors between
layers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import WorkerSpec
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import (
    disable_thread_spinning,
    get_creation_path,
    list_layers,
    override_local_devices,
    send_all_types,
)
from pipeline_ops.system.gpus import find_gpu_problem, find_gpus, find_package_problem

Gather = Callable[[bytes], list[bytes]]
"""Sends a message of this worker to all workers, and returns the messages of all, by worker.

A message has at most 128 bytes, without blanks at its end.
"""
_MESSAGE_BYTES = 128
_MAX_NAMES = 20
SHOW_REASON = (
    "TF_CPP_MIN_LOG_LEVEL=0 python -m pipeline_ops.training.device_check gpu shows the reason."
)
_TOLERANCE = 1e-2
"""Of the same numbers on other GPUs, with TF32."""
_Value = TypeVar("_Value")


@dataclasses.dataclass(frozen=True)
class ChosenStrategy:
    """A strategy with its name in the config and this process's devices."""

    name: str
    reason: str
    """Explains the choice if the config leaves it to `auto`."""
    strategy: tf.distribute.Strategy
    devices: list[str]
    communication: str = ""
    """How workers add up gradients, `nccl` or `ring`. Empty if they don't."""

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope in which models are built. Sharded weights are created later."""
        is_sharded = self.name in ("parameter_server", "dtensor")
        return contextlib.nullcontext() if is_sharded else self.strategy.scope()

    @property
    def class_name(self) -> str:
        """The public name of the strategy's class, or its own if TensorFlow does not export it."""
        made = type(self.strategy)
        public = (name for name, found in vars(tf.distribute).items() if found is made)
        return next(public, made.__name__)


def make_strategy(config: Train, spec: WorkerSpec) -> ChosenStrategy:
    """Joins the gang and returns once every worker is there. Must precede any other operation.

    Raises ConfigError if GPUs cannot be used, or if their results differ.
    """
    configure_threads(spec)
    gpus = len(tf.config.list_physical_devices("GPU"))
    if find_gpus() and not gpus and not find_package_problem():
        problem, cure = find_gpu_problem() or ("it registers none", SHOW_REASON)
        raise ConfigError(f"{spec.host} has GPUs, and TensorFlow uses none: {problem}. {cure}")
    name: str = config.strategy
    reason, num_devices = "", config.devices_per_worker
    if name == "auto":
        name, reason = choose_strategy(config, spec.workers, gpus)
        if name in ("mirrored", "multi_worker_mirrored"):
            num_devices = max(gpus, num_devices)
    devices, communication = configure_devices(num_devices, gpus), ""
    match name:
        case "one_device":
            strategy = tf.distribute.OneDeviceStrategy(devices[0])
        case "multi_worker_mirrored" if spec.workers > 1:
            implementation = choose_communication(config, gpus)
            communication = implementation.value.lower()
            # Workers wait there for a peer that validates, or is in a callback. The supervisor,
            # which knows who is awaited, gives up first. A killed peer is noticed at once.
            options = tf.distribute.experimental.CommunicationOptions(
                timeout_seconds=2.0
                * max(config.phase_timeout_seconds, config.step_timeout_seconds),
                implementation=implementation,
            )
            with override_local_devices(devices):
                strategy = tf.distribute.MultiWorkerMirroredStrategy(
                    make_cluster_resolver(spec), options
                )
            send_all_types(strategy)
        case "mirrored" | "multi_worker_mirrored":
            strategy = tf.distribute.MirroredStrategy(devices)
        case "parameter_server":
            # Returns once all workers and servers have answered.
            strategy = tf.distribute.ParameterServerStrategy(
                make_cluster_resolver(spec),
                variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
                    max_shards=len(spec.cluster["ps"])
                ),
            )
        case "tpu":
            strategy = connect_tpu(config)
        case _:
            strategy = tf.distribute.get_strategy()
    if gpus and name in ("mirrored", "multi_worker_mirrored"):
        check_replicas_agree(strategy)
    return ChosenStrategy(name, reason, strategy, devices, communication)


def describe_devices() -> str:
    """Returns the GPUs that TensorFlow uses, or why there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        problem = find_package_problem() if find_gpus() else None
        return f"CPUs: {problem[0]}" if problem else "CPUs"
    details = tf.config.experimental.get_device_details
    names = Counter(details(gpu).get("device_name", gpu.name) for gpu in gpus)
    build = tf.sysconfig.get_build_info()
    return (
        ", ".join(f"{count} x {name}" for name, count in names.items())
        + f" with CUDA {build['cuda_version']} and cuDNN {build['cudnn_version']}"
    )


def configure_threads(spec: WorkerSpec) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(spec.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, spec.threads))
    # By default an idle thread polls for work for a while, which on one core blocks the working
    # thread. Without polling, a step of the digits CNN takes a tenth less CPU time.
    if spec.threads == 1:
        disable_thread_spinning()


def choose_strategy(config: Train, workers: int, gpus: int) -> tuple[str, str]:
    """Returns the strategy that uses all devices and needs no others, and the reason."""
    if workers > 1:
        return "multi_worker_mirrored", f"the gang has {workers} workers"
    if gpus > 1 and config.devices_per_worker == 1:
        return "mirrored", f"there is one worker, and its host has {gpus} GPUs"
    if config.devices_per_worker > 1:
        return "mirrored", f"there is one worker with {config.devices_per_worker} devices"
    return "one_device", f"there is one worker, and its host has {'one GPU' if gpus else 'no GPU'}"


def choose_communication(
    config: Train, gpus: int
) -> tf.distribute.experimental.CommunicationImplementation:
    """Returns how workers add up gradients. TensorFlow's AUTO is the ring, also on GPUs."""
    kinds = tf.distribute.experimental.CommunicationImplementation
    return kinds.NCCL if gpus and config.communication == "auto" else kinds.RING


def configure_devices(count: int, gpus: int) -> list[str]:
    """Returns this worker's devices. Raises ConfigError if there are GPUs, but too few.

    Without a GPU these are logical CPUs, so that a config for several devices runs anywhere.
    """
    if gpus:
        if count > gpus:
            raise ConfigError(
                f"train.devices_per_worker is {count}, but a worker here sees {gpus} GPUs. "
                "Lower it, or train on hosts with more GPUs."
            )
        return [f"/gpu:{number}" for number in range(count)]
    if count > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    return [f"/cpu:{number}" for number in range(count)]


def check_replicas_agree(strategy: tf.distribute.Strategy) -> None:
    """Raises ConfigError if the devices of all workers do not compute and add as one."""
    if problem := check_replicas(strategy):
        raise ConfigError(
            f"the GPUs of the workers differ: {problem} (tensorflow#90686 is such a case). Set "
            "train.communication to ring, or train on one GPU. NCCL_DEBUG=INFO in `environment` "
            "of the hosts file shows what NCCL does."
        )


def check_replicas(strategy: tf.distribute.Strategy) -> str:
    """Says what is wrong with the devices of all workers, "" if nothing.

    All replicas compute the same convolution and its gradient, and add them up, as in a step.
    """

    def compute() -> Any:
        context = tf.distribute.get_replica_context()
        images = tf.random.stateless_uniform([8, 16, 16, 3], [1, 2])
        kernel = tf.random.stateless_uniform([3, 3, 3, 8], [3, 4])
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = tf.reduce_mean(tf.nn.conv2d(images, kernel, 1, "SAME") ** 2)
        own = tf.stack([loss, tf.norm(tape.gradient(loss, kernel))])
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        total, numbers = context.all_reduce(tf.distribute.ReduceOp.SUM, [own, number])
        return tf.concat([own, total, [numbers]], 0)

    run = tf.function(lambda: strategy.run(compute), autograph=False)
    count = strategy.num_replicas_in_sync
    expected = count * (count - 1) / 2
    for values in strategy.experimental_local_results(run()):
        own, total, numbers = np.split(values.numpy(), [2, 4])
        if numbers != expected:
            return f"the sum of the numbers of {count} replicas is {numbers[0]}, and not {expected}"
        if not np.allclose(total, count * own, rtol=_TOLERANCE):
            return (
                f"the same convolution has the loss and gradient {own} on one device, and their "
                f"sums over {count} are {total}"
            )
    return ""


def make_cluster_resolver(spec: WorkerSpec) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Makes a resolver of the gang's addresses."""
    os.environ["TF_CONFIG"] = spec.tf_config
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def connect_tpu(config: Train) -> tf.distribute.Strategy:
    """Connects to the TPU. Raises ConfigError if none is found."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=config.tpu or "")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        name = f" under the name {config.tpu}" if config.tpu else ""
        raise ConfigError(
            f"train.strategy is tpu, but no TPU was found{name}: "
            f"{str(error).strip().splitlines()[0]}. "
            "Set its name in train.tpu, or choose another strategy."
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def make_gather(strategy: tf.distribute.Strategy, spec: WorkerSpec) -> Gather:
    """Makes a `Gather` that adds up matrices, in which each worker has a row of its own."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return lambda message: [message]
    local_replicas = len(strategy.extended.worker_devices)

    @tf.function(autograph=False)
    def sum_rows(rows: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(lambda: rows / local_replicas), axis=None
        )

    def gather(message: bytes) -> list[bytes]:
        rows = np.zeros((spec.workers, _MESSAGE_BYTES), np.float32)
        rows[spec.index] = np.frombuffer(message.ljust(_MESSAGE_BYTES), np.uint8)
        sums = np.rint(sum_rows(tf.constant(rows)).numpy()).astype(np.uint8)
        return [row.tobytes().rstrip() for row in sums]

    return gather


def find_match(name: str, by_pattern: Mapping[str, _Value]) -> _Value | None:
    """Returns the value of the first pattern that matches a name."""
    matches = (value for pattern, value in by_pattern.items() if fnmatch.fnmatchcase(name, pattern))
    return next(matches, None)


def check_matches(option: str, patterns: Iterable[str], kind: str, names: Sequence[str]) -> None:
    """Raises ConfigError if a pattern of an option matches none of the layers or weights."""
    if unused := [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        raise ConfigError(
            f"{option}: no {kind} matches {', '.join(unused)}. The {kind}s are "
            f"{', '.join(names[:_MAX_NAMES])}{more}."
        )


def build_placed(build: Callable[[], keras.Model], placement: Mapping[str, str]) -> keras.Model:
    """Builds a model whose layers have their variables on their devices, and compute there."""
    known = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    asked = placement.values()
    if unknown := [device for device in asked if device.strip("/").upper() not in known]:
        raise ConfigError(
            f"train.placement: there is no device {', '.join(unknown)}. "
            f"This worker has {', '.join(known)} (train.devices_per_worker)."
        )

    def create(next_creator: Any, **options: Any) -> tf.Variable:
        layers = reversed((get_creation_path() or "").split("/"))
        devices = filter(None, (find_match(layer, placement) for layer in layers))
        with tf.device(next(devices, None)):
            return next_creator(**options)

    with tf.variable_creator_scope(create):
        model = build()
    layers = list_layers(model)
    for layer in layers:
        if device := find_match(layer.name, placement):
            layer.call = functools.partial(_call_on_device, device, layer.call)
    check_matches("train.placement", placement, "layer", [layer.name for layer in layers])
    return model


def _call_on_device(device: str, call: Any, *arguments: Any, **options: Any) -> Any:
    with tf.device(device):
        return call(*arguments, **options)
