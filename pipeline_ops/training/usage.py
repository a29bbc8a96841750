"""The shares of a worker's time, and the load of its GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml
import tensorflow as tf

from pipeline_ops.contract.results import GpuUsage, StepShares
from pipeline_ops.system.gpus import find_gpus

_SAMPLE_SECONDS = 1.0


class Waits(NamedTuple):
    """Seconds of some steps in which a worker waited, float64 []."""

    input: Any
    communication: Any
    """From the worker's own gradients to the sums of all replicas: for the others, and the way."""


def read_clock(
    tensor: tf.Tensor, is_timed: bool | tf.Tensor, since: tf.Tensor | float = 0.0
) -> tf.Tensor:
    """Returns the seconds from a time until a tensor has been computed, or 0 if not timed.

    A GPU computes what the host has long scheduled, so the host gets one value of the tensor first.
    """

    def read() -> tf.Tensor:
        value = tf.reshape(tensor, [-1])[:1]
        with tf.device("CPU:0"), tf.control_dependencies([tf.cast(value, tf.float64)]):
            return tf.timestamp() - since

    if isinstance(is_timed, bool):
        return read() if is_timed else tf.zeros([], tf.float64)
    return tf.cond(is_timed, read, lambda: tf.zeros([], tf.float64))


class ClockTimes(NamedTuple):
    """The variables of a loop over steps that a `StepClock` keeps."""

    waits: Waits
    ended: tf.Tensor
    """The time at which the last step ended, float64 []."""


class StepClock:
    """Measures steps inside of a compiled function. All times are 0 if they are not timed."""

    def __init__(self, is_timed: bool | tf.Tensor):
        self.is_timed = is_timed

    def start(self) -> ClockTimes:
        zero = tf.zeros([], tf.float64)
        return ClockTimes(Waits(zero, zero), zero)

    def wait_for(
        self, get_batch: Callable[[], Any], number: tf.Tensor, times: ClockTimes
    ) -> tuple[Any, ClockTimes]:
        """Returns the next batch, for which the worker waits since its last step has ended."""
        begun = read_clock(number, self.is_timed)  # once the host has scheduled the last step
        with tf.control_dependencies([begun]):
            batch = get_batch()
        with tf.device("CPU:0"):
            begun = tf.maximum(begun, times.ended)
        wait = read_clock(tf.nest.flatten(batch)[0], self.is_timed, begun)
        with tf.device("CPU:0"):
            waits = times.waits._replace(input=times.waits.input + tf.maximum(wait, 0))
        return batch, times._replace(waits=waits)

    def measure_exchange(
        self, exchange: Callable[[], list[tf.Tensor]], own: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the tensors of an exchange, and its seconds since this replica has its own."""
        with tf.control_dependencies(own):
            computed = read_clock(own[-1], self.is_timed)
        totals = exchange()
        with tf.control_dependencies(totals):
            return totals, read_clock(totals[-1], self.is_timed, computed)

    def end_step(
        self, times: ClockTimes, communication: tf.Tensor, weight: tf.Tensor
    ) -> ClockTimes:
        """Adds the seconds of an exchange. The step ends when a weight has its new value."""
        with tf.device("CPU:0"):
            waits = times.waits._replace(communication=times.waits.communication + communication)
        return ClockTimes(waits, read_clock(weight, self.is_timed))


@dataclasses.dataclass
class TimeSums:
    """Adds up the seconds of a training, since its worker has started."""

    _steps: float = 0.0
    _timed: float = 0.0
    _input: float = 0.0
    _communication: float = 0.0
    _saving: float = 0.0

    def add_steps(self, seconds: float, waits: Waits | None) -> None:
        """Adds some steps. Those without waits were not timed."""
        self._steps += seconds
        if waits:
            self._timed += seconds
            self._input += waits.input
            self._communication += waits.communication

    def add_saving(self, seconds: float) -> None:
        self._saving += seconds

    def compute_shares(self) -> StepShares | None:
        """Returns what each part has taken of the time of all, or None if no step was timed."""
        if not self._timed:
            return None
        saving = self._saving / (self._steps + self._saving)
        waited, exchanged = (
            (1 - saving) * min(1.0, seconds / self._timed)
            for seconds in (self._input, self._communication)
        )
        return StepShares(
            input=waited,
            communication=exchanged,
            saving=saving,
            computing=max(0.0, 1 - waited - exchanged - saving),
        )


class GpuMonitor:
    """Asks NVIDIA's driver every second about the GPUs of this process, until the process ends.

    `warn` is called if the driver does not answer, as in a container without its `utility` part.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.gpus: list[GpuUsage] = []
        """The newest figures. None without a GPU."""
        self._handles: dict[str, Any] = {}
        names = find_gpus()
        if not names:
            return
        try:
            pynvml.nvmlInit()
            self._handles = {name: _open_gpu(name) for name in names}
            self.gpus = self._read()
        except pynvml.NVMLError as error:
            warn(f"utilization, memory and power of the GPUs are not known: {error}")
            return
        threading.Thread(target=self._watch, daemon=True).start()

    def list_processes(self) -> list[str]:
        """Returns the processes that use the GPUs now, as numbered on the host.

        It leaves out the GPUs whose processes the driver does not tell.
        """
        found = []
        for name, handle in self._handles.items():
            with contextlib.suppress(pynvml.NVMLError):
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                found += [f"GPU {name}: process {process.pid}" for process in processes]
        return found

    def _watch(self) -> None:
        while True:
            time.sleep(_SAMPLE_SECONDS)
            with contextlib.suppress(pynvml.NVMLError):
                self.gpus = self._read()

    def _read(self) -> list[GpuUsage]:
        return [_read_gpu(name, handle) for name, handle in self._handles.items()]


def _open_gpu(name: str) -> Any:
    """Opens a GPU by an entry of CUDA_VISIBLE_DEVICES: a number in the order of the bus, or an id.

    `tensorflow_start.py` makes CUDA count in that order, too.
    """
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def _read_gpu(name: str, handle: Any) -> GpuUsage:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    utilization = watts = None
    # A part of a GPU (MIG) has neither.
    with contextlib.suppress(pynvml.NVMLError_NotSupported):
        utilization = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with contextlib.suppress(pynvml.NVMLError_NotSupported):
        watts = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return GpuUsage(
        name=name,
        utilization=utilization,
        memory_bytes=memory.used,
        memory_limit_bytes=memory.total,
        watts=watts,
    )
