"""Checks that a step on several devices, or with sharded weights, is the step on one device.

A training depends on the number of parts of its batches, and not on where they are computed
(`Loop`). Layers can break that: two replicas of one process share their attributes and the losses
that they have added, and take turns where they exchange values. With sharded weights, a model is a
function, and a gradient that the author defines sees none of them. So `check.py` takes one step of
a model of the author's own in both ways, on CPUs, and compares all weights and states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Optimizer, Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import SEED_STATE, list_layers
from pipeline_ops.models import has_own_step
from pipeline_ops.models.task import Task
from pipeline_ops.training.loop import Batches, Loop, StepResult
from pipeline_ops.training.own_step import OwnStepLoop, make_synchronous_loop, refuse_options
from pipeline_ops.training.self_consistency import locate_reads
from pipeline_ops.training.sharded_loop import ParameterServerLoop, ShardedLoop, make_result
from pipeline_ops.training.weight_files import Arrays

_NUM_EXAMPLES = 4
_REPLICAS = 2
_RATE = 1.0
"""With plain SGD, the changes of the weights are then the gradients."""
_TOLERANCE, _REDUCED_TOLERANCE, _OWN_TOLERANCE, _NOISE = 1e-3, 0.1, 0.05, 1e-5
"""In parts of the largest change of a weight: of float32, of 16 bits, and of a factor that an
author's own step adds. And in parts of the largest gradient of all, below which rounding is all
that is left."""
_DRAWING = (
    *(keras.layers.Dropout, keras.layers.GaussianDropout, keras.layers.AlphaDropout),
    keras.layers.GaussianNoise,
)
_OPTIONS: dict[str, Any] = {
    "strategy": "one_device",
    "workers": 1,
    "devices_per_worker": 1,
    "global_batch_size": _NUM_EXAMPLES,
    "batch_size_per_replica": None,
    "optimizer": Optimizer(name="sgd", learning_rate=_RATE),
    "steps_per_call": 1,
    "xla": "none",
}


class LocalShardedLoop(ParameterServerLoop):
    """The loop of the parameter servers in one process, without a server."""

    def __init__(self, model: keras.Model, task: Task, config: Train):
        self._strategy = tf.distribute.get_strategy()
        ShardedLoop.__init__(self, model, task, config)

    def train(
        self, batches: Batches, step: int, learning_rates: Any, stop: float = 0.0
    ) -> StepResult:
        rates = [tf.constant(rate, tf.float32) for rate in learning_rates]
        steps = [
            self._step(*next(batches), tf.constant(step + number), rate)
            for number, rate in enumerate(rates)
        ]
        return make_result(steps, stop)


def configure_two_devices() -> None:
    """Divides the CPU into two devices. Must precede the first operation."""
    [cpu] = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * _REPLICAS
    tf.config.set_logical_device_configuration(cpu, devices)


class Steps:
    """Takes one step of a model in several ways, always from the same weights.

    `build` makes the model. The images and labels are random and always the same.
    """

    def __init__(
        self,
        config: Train,
        task: Task,
        build: Callable[[], keras.Model],
        image_shape: tuple[int, int, int],
        num_classes: int,
        folder: Path,
    ):
        self._config, self._task, self._build, self._folder = config, task, build, folder
        first, second = build(), build()
        self.is_own = has_own_step(first, config)
        """Whether the step is the author's own."""
        self.is_shared = bool({*map(id, first.weights)} & {*map(id, second.weights)})
        """Whether models of one process share layers, such as those of a module."""
        draw = np.random.default_rng(1)
        self._images = draw.integers(0, 256, (_NUM_EXAMPLES, *image_shape), np.uint8)
        self._labels = draw.integers(0, num_classes, _NUM_EXAMPLES, np.int64)
        self._initial: Arrays | None = None
        self.paths: list[str] = []
        self.learning: list[int] = []
        """The positions of the weights that learn."""
        self.has_generators = False
        """Whether layers draw numbers from Keras's generators."""

    def take(
        self,
        strategy: tf.distribute.Strategy | None,
        micro_batches: int = 1,
        only_gradients: bool = False,
    ) -> Arrays:
        """Returns the changes of all weights and states, float64. None is sharded weights.

        With `only_gradients`, the weights of a step of the author's own change by their gradients,
        and dropout, noise and the statistics of a batch are left out of it.
        """
        options = _OPTIONS | {"micro_batches": micro_batches}
        with (strategy or tf.distribute.get_strategy()).scope():
            model = self._build()
            if only_gradients:
                self.has_generators = _silence(model)
        if has_own_step(model, self._config):
            options = {"global_batch_size": _NUM_EXAMPLES, "batch_size_per_replica": None}
        config = self._config.model_copy(update=options)
        if self._initial is None:
            self._initial = model.get_weights()
            self.paths = [each.path for each in model.weights]
            self.learning = [n for n, each in enumerate(model.weights) if each.trainable]
            self.has_generators = any(each.name == SEED_STATE for each in model.variables)
        model.set_weights(self._initial)
        loop: Loop = (
            make_synchronous_loop(strategy, model, self._task, config, self._folder)
            if strategy
            else LocalShardedLoop(model, self._task, config)
        )
        batches = tf.data.Dataset.from_tensors((self._images, self._labels)).repeat()
        rate = _RATE
        if isinstance(loop, OwnStepLoop):
            rate = loop.learning_rate or 0.0
            if only_gradients:
                loop.apply_gradients_alone()
            if strategy and strategy.num_replicas_in_sync == 1:
                graph, handles = loop.find_unknown(iter(batches))
                if handles:  # a checkpoint does not have them
                    raise ConfigError(
                        f"train.model: {config.model}: its step uses variables that are neither "
                        f"weights nor attributes of the model ({locate_reads(graph, handles)}), so "
                        "a restarted training would lose them. Make each variable, metric and "
                        "optimizer an attribute of the model."
                    )
            loop.evaluate(batches.take(1))
        loop.train(iter(batches), 0, [rate])
        pairs = zip(loop.get_weights(), self._initial, strict=True)
        return [new.astype(np.float64) - old for new, old in pairs]


def _silence(model: keras.Model) -> bool:
    """Leaves dropout, noise and batch statistics out. Returns whether numbers are still drawn."""
    quiet = 0
    for layer in list_layers(model):
        layer.trainable &= not isinstance(layer, keras.layers.BatchNormalization)
        if isinstance(layer, _DRAWING):
            layer.rate = layer.stddev = 0.0
            quiet += 1
    return sum(each.name == SEED_STATE for each in model.variables) > quiet


def check_step(config: Train, steps: Steps) -> str:
    """Raises ConfigError if a step where the config trains is another one than on one device.

    Where each process computes one part, it has nothing to share. Then the step is only taken,
    because a loop refuses some models itself. A step of the author's own is always taken. Returns a
    remark on it, or nothing.
    """
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    if steps.is_shared:  # no strategy has made its weights
        steps.take(tf.distribute.get_strategy())
        return ""
    if steps.is_own:
        return _check_own_step(config, steps, one)
    if config.strategy in ("parameter_server", "dtensor"):
        where, found, expected = "with sharded weights", steps.take(None), [steps.take(one)]
        cure = (
            "A function with a gradient of its own (tf.custom_gradient, tf.recompute_grad) does "
            "not see weights that it uses and is not given: pass them as arguments, or choose "
            "another strategy"
        )
    elif config.replicas > 1:
        where = f"on {_REPLICAS} devices of one worker"
        devices = [f"/cpu:{number}" for number in range(_REPLICAS)]
        found = steps.take(tf.distribute.MirroredStrategy(devices))
        if config.devices_per_worker == 1:
            return ""
        expected = [steps.take(one)]  # replicas that exchange values see the batch as a whole
        try:
            if not config.synchronized_batch_normalization:
                expected.append(steps.take(one, _REPLICAS))
            elif steps.has_generators:  # the parts draw other numbers than the whole
                return ""
        except ConfigError:  # refused for micro-batches alone, as assigned weights are
            return ""
        cure = (
            "The replicas of a process share what a layer keeps in attributes, such as a tensor or "
            "the losses that it adds, and take turns where they exchange values. Let call depend "
            "on its arguments and weights alone, or train with one device for each worker"
        )
    else:
        return ""
    tolerance = _TOLERANCE if config.precision == "float32" else _REDUCED_TOLERANCE
    shares = [_compare(found, each, steps.learning, tolerance) for each in expected]
    if all(max(each) > tolerance for each in shares):
        nearest = min(shares, key=max)
        first = next(number for number, share in enumerate(nearest) if share > tolerance)
        raise ConfigError(
            f"train.model: {config.model}: a step {where} is another one than on one device, "
            f"first in {steps.paths[first]} (by {nearest[first]:.2g} of its change). {cure}."
        )
    return ""


def _check_own_step(config: Train, steps: Steps, one: tf.distribute.Strategy) -> str:
    """Raises ConfigError if replicas add up means, which makes the gradient several times as large.

    Other differences may be meant, such as negatives of the replica's own batch. Returns a remark
    on them.
    """
    refuse_options(config, config.replicas)
    expected = steps.take(one)
    if config.replicas == 1:
        return ""
    devices = [f"/cpu:{number}" for number in range(_REPLICAS)]
    two = tf.distribute.MirroredStrategy(devices)
    found = steps.take(two)
    summed = [_REPLICAS * each for each in expected]
    shares = [_compare(found, each, steps.learning, _OWN_TOLERANCE) for each in (expected, summed)]
    if max(shares[0]) > _OWN_TOLERANCE and max(shares[1]) < _OWN_TOLERANCE:
        raise ConfigError(
            f"train.model: {config.model}: with {_REPLICAS} replicas, a step changes the weights "
            f"{_REPLICAS} times as much as with one. Gradients are added up over the replicas, so "
            "divide the loss of a replica's examples by the global batch, or take its mean and "
            "divide it by tf.distribute.get_strategy().num_replicas_in_sync. compute_loss does so."
        )
    expected, again, found = (steps.take(each, only_gradients=True) for each in (one, one, two))
    tolerance = _TOLERANCE if config.precision == "float32" else _REDUCED_TOLERANCE
    drawn = _compare(again, expected, steps.learning, tolerance)
    differences = _compare(found, expected, steps.learning, tolerance)
    others = [number for number, share in enumerate(differences) if share > tolerance]
    if not others or steps.has_generators or max(drawn) > 0:
        return ""
    first = others[0]
    return (
        f"with {_REPLICAS} replicas, a step of {config.model} changes {steps.paths[first]} "
        f"otherwise than with one, by {differences[first]:.2g} of its gradient or change. If that "
        "is not meant: a loss or a penalty that is not divided by "
        "tf.distribute.get_strategy().num_replicas_in_sync counts once for each replica, a "
        "replica sees its own part of the batch, and a state is the mean of the replicas' states."
    )


def _compare(
    found: Arrays, expected: Arrays, learning: Sequence[int], tolerance: float
) -> list[float]:
    """Returns the difference of each change, in parts of the largest in its weight.

    Of changes that are rounding alone, it is in parts of what is allowed. `learning` has the
    positions of the gradients.
    """
    gradients = [np.abs(expected[position]).max(initial=0.0) for position in learning]
    noise = _NOISE / tolerance * max(gradients)
    shares = []
    for one, other in zip(found, expected, strict=True):
        difference = np.abs(one - other).max(initial=0.0)
        is_nan = np.isnan(one).any() != np.isnan(other).any()
        share = difference / max(np.abs(other).max(initial=0.0), noise) if difference else 0.0
        shares.append(float("inf") if is_nan else float(np.nan_to_num(share)))
    return shares
