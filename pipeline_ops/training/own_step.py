"""Steps of the author's own: `train_step` of a model, a model that is compiled, and `train.step`.

They are called as Keras's `fit` calls `train_step`: in each replica, with its part of the global
batch. The step computes gradients, applies its optimizers, and returns its figures. What `fit` does
around a step is done here, so that a restarted training repeats each step:

- Metrics begin anew in each step, so a checkpoint needs none of them. The figures of an epoch are
  the means over its examples.
- Generators of Keras begin each step from seed, step and replica.
- A state, such as a moving average, is the mean over the replicas after each step.

Gradients are added up over the replicas before they are clipped. Keras would clip each replica's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Optimizer, Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.input.framework_internals import (
    build_compiled_parts,
    get_slots,
    list_assigned,
    sum_gradients_first,
)
from pipeline_ops.models import has_own_step, list_own_parts, load_function
from pipeline_ops.models.classification import (
    TAKES_LOGITS,
    Classification,
    compute_logits,
    find_end,
)
from pipeline_ops.models.own_functions import takes_one_hot
from pipeline_ops.models.task import BatchSums, Task
from pipeline_ops.training.loop import (
    Batches,
    PartResult,
    SynchronousLoop,
    cast_to_float,
    get_replica_index,
    make_change,
)
from pipeline_ops.training.optimizer import make_optimizer

Step = Callable[[Any], Any]
"""Maps a batch (images float32 [b, H, W, C], labels int64 [b]) to figures by name."""
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker_mirrored")
"""Those under which a step of the author's own can be called."""


class PreparedStep(NamedTuple):
    """A compiled model, its steps, and what they change."""

    train: Step
    test: Step | None
    """None if nothing of the validation is the author's own."""
    of_step: list[str]
    """The names of the figures of a step besides the loss."""
    of_validation: list[str]
    optimizers: list[tuple[keras.optimizers.Optimizer, list[Any]]]
    """The optimizers that a step applies, with the weights to which it applies them."""
    has_loss: bool
    """Whether a step returns a figure with the name loss."""
    variables: list[Any]
    """Those of the optimizers, and the tf.Variables that are attributes of the model."""
    is_one_hot: bool
    """Whether the labels are one-hot."""
    assigned: list[keras.Variable]
    """The weights that a step assigns itself, besides the optimizers."""


def prepare_step(
    model: keras.Model,
    task: Classification,
    config: Train,
    function: Callable[..., Any] | None,
    parts: Collection[str],
) -> PreparedStep:
    """Traces the steps of a compiled model once.

    The trace finds the figures, and for each optimizer the weights that it is applied to. Called in
    the scope of the strategy.

    Args:
      model: a built classifier, whose call is the author's.
      task: its task, for images and labels.
      config: the section `train`.
      function: that of `train.step`, of model, optimizer, batch and `tf.distribute.ReplicaContext`.
      parts: the parts of `fit` that are the author's own.
    """
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    size = config.batch_size // num_replicas
    images, labels = np.zeros((size, *task.image_shape), np.float32), np.zeros(size, np.int64)
    one_hot = np.zeros((size, task.num_classes), np.float32)
    end = task.end
    is_one_hot = takes_one_hot(model.loss, end.num_outputs if end else task.num_classes)
    weights = [each.path for each in model.weights]
    build_compiled_parts(model, (images, one_hot if is_one_hot else labels))

    def call_function(batch: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return function and function(model, model.optimizer, batch, context)

    train = call_function if function else model.train_step
    validating = {"test_step", "compute_loss"}
    if model.loss is not None:
        validating |= {"compute_metrics", "compile"}
    test = model.test_step if validating & {*parts} else None
    if is_one_hot:
        train, test = (each and _with_one_hot(each, task.num_classes) for each in (train, test))
    applied: dict[int, list[Any]] = {}
    found = _list_attributes(model, keras.optimizers.Optimizer)
    with _recording(found, model, applied):
        of_step, assigned = _trace(train, "train_step", images, labels, model)
    of_validation, _ = _trace(test, "test_step", images, labels, model) if test else ([], [])
    if late := [each.path for each in model.weights if each.path not in weights]:
        raise ConfigError(
            f"train.model: {config.model} creates {', '.join(late[:4])} in its first step, so the "
            "served model lacks them. Begin each of its models with keras.Input, or call them in "
            "the function that builds the model."
        )
    optimizers = [(each, applied[id(each)]) for each in found if id(each) in applied]
    if not optimizers and num_replicas > 1:
        raise ConfigError(
            f"train.model: {config.model}: its step applies no optimizer that is an attribute of "
            "the model, so the replicas would not add up their gradients. Call "
            "self.optimizer.apply_gradients, and keep all optimizers in attributes."
        )
    for optimizer, variables in optimizers:
        _build(optimizer, variables, config, num_replicas)
    return PreparedStep(
        train,
        test,
        [name for name in of_step if name != "loss"],
        [name for name in of_validation if name not in ("loss", *task.metrics)],
        optimizers,
        "loss" in of_step,
        [
            *(variable for each, _ in optimizers for variable in each.variables),
            *_list_attributes(model, tf.Variable),
        ],
        is_one_hot,
        [each for each in model.trainable_variables if each.path in assigned],
    )


def _build(
    optimizer: keras.optimizers.Optimizer, variables: list[Any], config: Train, num_replicas: int
) -> None:
    if not optimizer.built:
        optimizer.build(variables)
    for each in _list_inner(optimizer):
        if each.gradient_accumulation_steps and num_replicas > 1:
            raise ConfigError(
                f"train.model: {config.model}: the optimizer {each.name} has "
                "gradient_accumulation_steps, which Keras cannot do with several replicas. Leave "
                "them out, and choose a larger train.global_batch_size."
            )
        sum_gradients_first(each)


def _with_one_hot(step: Step, num_classes: int) -> Step:
    return lambda batch: step((batch[0], tf.one_hot(batch[1], num_classes)))


def _list_attributes(model: keras.Model, kind: Any) -> list[Any]:
    """Returns the objects of a class among a model's attributes, also in lists and dicts."""

    def iterate(value: Any) -> Iterator[Any]:
        if isinstance(value, kind):
            yield value
        elif isinstance(value, list | tuple | dict):
            for each in value.values() if isinstance(value, dict) else value:
                yield from iterate(each)

    public = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    found = {id(each): each for name in sorted(public) for each in iterate(public[name])}
    return [*found.values()]


@contextlib.contextmanager
def _recording(
    optimizers: Sequence[keras.optimizers.Optimizer],
    model: keras.Model,
    applied: dict[int, list[Any]],
) -> Iterator[None]:
    """Lets optimizers note their weights, by the optimizers' ids, and do nothing else."""

    def note(optimizer: Any, gradients: Any, variables: Any = None) -> None:
        applied.setdefault(id(optimizer), [*(variables or model.trainable_variables)])

    for each in optimizers:
        each.apply = functools.partial(note, each)
    try:
        yield
    finally:
        for each in optimizers:
            del each.apply


def _trace(
    step: Step, name: str, images: np.ndarray, labels: np.ndarray, model: keras.Model
) -> tuple[list[str], list[str]]:
    """Traces a step in each replica.

    Returns the names of its figures, and the paths of the weights that it assigns.
    """
    names: list[str] = []
    assigned: list[str] = []

    def take(*batch: Any) -> None:
        logs = flatten_logs(step(_place(*batch)))
        names[:] = map(str, logs) if read_figures(logs, name) else []
        assigned[:] = list_assigned(model.trainable_variables)

    strategy = tf.distribute.get_strategy()
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in (images, labels)]
    run = tf.function(lambda *batch: strategy.run(take, batch), autograph=False)
    run.get_concrete_function(*specs)
    return names, assigned


def _place(*batch: Any) -> Any:
    """Returns a batch on the device of its replica, which gathering over replicas asks for."""
    return tf.nest.map_structure(tf.identity, batch)


def flatten_logs(logs: Any) -> Any:
    """Returns the figures of a step by name, as `fit` does: `compile_metrics` is a dict in one."""
    if not isinstance(logs, Mapping):
        return logs
    inner = [each if isinstance(each, Mapping) else {key: each} for key, each in logs.items()]
    return {key: value for each in inner for key, value in each.items()}


def read_figures(logs: Any, name: str) -> dict[str, tf.Tensor]:
    """Returns the figures of a step by name, float32 [] each.

    A training step must return a loss. If it has several, as those of a GAN, it is their sum.
    """
    if not isinstance(logs, Mapping) or not logs:
        raise ConfigError(
            f"train.model: {name} returns {type(logs).__name__}. It must return its figures, a "
            "dict of numbers by name, with the loss as loss."
        )
    figures = {}
    for key, value in flatten_logs(logs).items():
        value = tf.convert_to_tensor(value)
        if value.shape.rank != 0:
            raise ConfigError(
                f"train.model: {name} returns {key} with the shape {value.shape}. A figure is a "
                "number: return its mean."
            )
        figures[str(key)] = tf.cast(value, tf.float32)
    if name == "train_step" and "loss" not in figures:
        losses = [value for key, value in figures.items() if "loss" in key.lower()]
        if not losses:
            raise ConfigError(
                f"train.model: {name} returns no loss, only {', '.join(figures)}. Return the "
                "figure that tells whether the training works as loss."
            )
        figures["loss"] = tf.add_n(losses)
    return figures


class OwnStepLoop(SynchronousLoop):
    """The loop whose steps are the author's own."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        task: Classification,
        config: Train,
        folder: Path,
    ):
        refuse_options(config, strategy.num_replicas_in_sync)
        self._parts = list_own_parts(model)
        if "compile" in self._parts:
            reason, default = "What it is compiled with counts", Optimizer()
            given = {"optimizer": config.optimizer != default and reason}
            _refuse(config, given | {"loss": config.loss and reason}, "is compiled")
        self._function = load_function(config.step, "train.step", folder) if config.step else None
        self._end = find_end(model, config.model, task.image_shape, task.num_classes)
        self._classification = task.copy(end=self._end)
        super().__init__(strategy, model, task, config, folder)

    def _make_optimizers(self) -> Sequence[Any]:
        with self._strategy.scope():
            self._own = self.prepare(self.model)
        task = self._classification
        names = (*task.metrics, *self._own.of_validation)
        self.task = self._task = task.copy(metrics=self._own.of_step, validation_metrics=names)
        self._inner = rated = find_rated(self.model, self._own)
        if rated is None:
            self.learning_rate = None
            config, reason = self._config, "Or use model.optimizer without a schedule"
            lowers = config.on_divergence.action == "lower_learning_rate"
            given = {
                "reduce_learning_rate": config.reduce_learning_rate and reason,
                "on_divergence": lowers and reason,
                "optimizer.schedule": config.optimizer.schedule.type != "constant" and reason,
            }
            _refuse(config, given, "has optimizers with learning rates of their own")
        elif "compile" in self._parts:
            self.learning_rate = float(rated.learning_rate.numpy())
        metrics = {id(each) for metric in self.model.metrics for each in metric.variables}
        self._states = [each for each in self._states if id(each) not in metrics]
        # The replicas would differ by rounding.
        self._states += self._own.assigned
        return self._own.variables

    def prepare(self, model: keras.Model) -> PreparedStep:
        """Prepares this model, or another one that was built like it."""
        if "compile" not in self._parts:
            self._compile(model)
        return prepare_step(model, self._classification, self._config, self._function, self._parts)

    def _compile(self, model: keras.Model) -> None:
        """Compiles a model with the optimizer, the loss and the metrics of the config."""
        config, task = self._config, self._classification
        loss: Any = keras.losses.BinaryCrossentropy()
        if self._end.num_outputs == task.num_classes:
            loss = keras.losses.SparseCategoricalCrossentropy(not self._end.is_probability)
        if self._end.is_probability and getattr(task.loss, TAKES_LOGITS, False):
            raise ConfigError(
                f"train.loss: {config.loss} takes logits, and a step of its own returns what "
                f"{config.model} ends in. Compile the model with the loss, or leave its end out."
            )
        options = {
            "optimizer": make_optimizer(config.optimizer, False, self._folder),
            "loss": task.loss or loss,
            "metrics": ["accuracy", *task.own_metrics.values()],
            "jit_compile": False,
        }
        try:
            model.compile(**options)
        except TypeError as error:
            raise ConfigError(
                f"train.model: {config.model}: its compile does not take {', '.join(options)} "
                f"({error}). Call it in the function that builds the model, as before fit."
            ) from error

    def describe(self) -> str:
        """Says in a sentence what a step is, for the log."""
        name = self._config.step or f"{type(self.model).__name__}.train_step"
        names = [type(each).__name__ for each, _ in self._own.optimizers]
        text = f"each step is {name}, with {' and '.join(names) or 'no optimizer of Keras'}"
        text += ", for one-hot labels" * self._own.is_one_hot
        return ". ".join(filter(None, (text, self.remark)))

    @property
    def remark(self) -> str:
        """Says what the losses are, where a reader of the curves would not expect it."""
        losses = [each for each in self._own.of_step if "loss" in each.lower()]
        training = "" if self._own.has_loss else f"The training loss is {' + '.join(losses)}"
        validation = "The validation loss is the cross-entropy of the answers"
        is_own = "train_step" in self._parts or self._config.step
        return ". ".join(filter(None, (training, validation * bool(is_own and not self._own.test))))

    def find_unknown(self, batches: Batches) -> tuple[Any, set[int]]:
        """Returns the graph of a step on one device, and the ids of the handles of variables that
        no checkpoint has.
        """
        arguments = self._make_arguments(batches, 0, [0.0], 0.0, self._is_timed)
        graph = self._train.get_concrete_function(*arguments).graph
        known = [*self.model.variables, *self._own.variables]
        known += [variable for metric in self.model.metrics for variable in metric.variables]
        values = [each.value if isinstance(each, keras.Variable) else each for each in known]
        handles = {id(each.handle) for each in values if hasattr(each, "handle")}
        return graph, {id(each.handle) for each in graph.variables} - handles

    def apply_gradients_alone(self) -> None:
        """Makes each optimizer subtract the gradients of all replicas from its weights."""

        def subtract(weights: Sequence[Any], gradients: Any, variables: Any = None) -> None:
            context = tf.distribute.get_replica_context()
            for gradient, weight in zip(gradients, variables or weights, strict=True):
                if gradient is not None:
                    total = tf.convert_to_tensor(gradient)
                    weight.assign_sub(context.all_reduce(tf.distribute.ReduceOp.SUM, total))

        for optimizer, weights in self._own.optimizers:
            optimizer.apply = functools.partial(subtract, weights)

    def _find_averages(self) -> dict[int, keras.Variable]:
        found: dict[int, keras.Variable] = {}
        for optimizer, weights in self._own.optimizers:
            averages = get_slots(optimizer).get("averages", []) if optimizer.use_ema else weights
            found |= {id(each): average for each, average in zip(weights, averages, strict=True)}
        return found

    def _set_learning_rate(self, rate: tf.Tensor) -> None:
        if self._inner is not None:
            super()._set_learning_rate(rate)

    def read_learning_rate(self) -> float:
        """Returns the rate of the first optimizer, which has a schedule of its own."""
        first = next((_list_inner(each)[0] for each, _ in self._own.optimizers), None)
        return 0.0 if first is None else float(keras.ops.convert_to_numpy(first.learning_rate))

    def _call_step(self, step: Step, name: str, features: Any, labels: Any) -> Any:
        """Returns this replica's figures, summed over its examples, and their number."""
        for metric in self.model.metrics:
            metric.reset_state()
        figures = read_figures(step(_place(cast_to_float(features), labels)), name)
        count = tf.cast(tf.shape(labels)[0], tf.float32)
        # A replica may have no example, and then a mean over them is not a number.
        return {key: tf.math.multiply_no_nan(each, count) for key, each in figures.items()}, count

    def _accumulate_parts(self, step: tf.Tensor, features: Any, labels: Any) -> PartResult:
        """Takes the author's step, which updates the weights itself."""
        part = get_replica_index()
        self._generators.set_states(step, part)
        old = self._read_states()
        figures, count = self._call_step(self._own.train, "train_step", features, labels)
        metrics = tf.stack([figures[name] for name in self._own.of_step] or [0.0])
        new = self._read_states()
        changes = [make_change(*pair, part, self._num_parts) for pair in zip(new, old, strict=True)]
        return PartResult(
            BatchSums(figures["loss"], metrics[: len(self._own.of_step)], count), [], changes
        )

    def _apply(self, gradients: Sequence[tf.Tensor], sums: BatchSums) -> None:
        pass

    def _answer(self, images: Any) -> tf.Tensor:
        name, num_classes = self._config.model, self._classification.num_classes
        return compute_logits(self.model, name, num_classes, self._end, images, training=False)

    def _compute_evaluation_sums(self, features: Any, labels: Any) -> BatchSums:
        sums = super()._compute_evaluation_sums(features, labels)
        if self._own.test is None:
            return sums
        figures, _ = self._call_step(self._own.test, "test_step", features, labels)
        own = [figures[name] for name in self._own.of_validation]
        number = len(self._classification.metrics)
        parts = [sums.metrics[:number], *(each[None] for each in own), sums.metrics[number:]]
        return BatchSums(figures.get("loss", sums.loss), tf.concat(parts, 0), sums.count)


def make_synchronous_loop(
    strategy: tf.distribute.Strategy, model: keras.Model, task: Task, config: Train, folder: Path
) -> SynchronousLoop:
    """Makes the loop of a model that was built in the strategy's scope."""
    if isinstance(task, Classification) and has_own_step(model, config):
        return OwnStepLoop(strategy, model, task, config, folder)
    return SynchronousLoop(strategy, model, task, config, folder)


def find_rated(model: keras.Model, own: PreparedStep) -> keras.optimizers.Optimizer | None:
    """Returns the model's optimizer if a step applies it, and its learning rate can be set."""
    for optimizer, _ in own.optimizers:
        [inner, *others] = _list_inner(optimizer)
        is_settable = not others and isinstance(inner.learning_rate, keras.Variable)
        if optimizer is model.optimizer and is_settable:
            return inner
    return None


def _list_inner(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers that update weights: those of a MultiOptimizer, or the one itself."""
    return [*getattr(optimizer, "optimizers", [optimizer])]


def refuse_options(config: Train, num_replicas: int) -> None:
    """Raises ConfigError for what only the loop's own step can do."""
    computes_loss = "A step of its own computes its loss itself"
    given = {
        "micro_batches": config.micro_batches > 1 and "A step of its own gets its batch whole",
        "class_weights": (config.class_weights or config.weights_by_class) and computes_loss,
        "label_smoothing": config.label_smoothing and computes_loss,
        "xla": config.xla != "none" and "Give tf.function(jit_compile=True) to parts of the step",
        "input.augment.mixup": config.input.augment.mixup and "It gets one label for each image",
        "input.augment.cutmix": config.input.augment.cutmix and "It gets one label for each image",
        "precision": config.precision == "float16" and "Only the loop's step scales its loss",
    }
    _refuse(config, given, "trains with a step of its own (train_step, compile, or train.step)")
    if config.strategy not in STRATEGIES:
        raise ConfigError(
            f"train.strategy: {config.model} trains with a step of its own, which "
            f"{config.strategy} cannot call: its weights are not on one device. Choose one of "
            f"{', '.join(STRATEGIES)}."
        )
    if config.batch_size % num_replicas:
        raise ConfigError(
            f"train.{config.batch_key}: {config.model} trains with a step of its own, whose loss "
            f"is a mean over a replica's examples. {config.batch_size} examples cannot be divided "
            f"equally between {num_replicas} replicas."
        )


def _refuse(config: Train, given: Mapping[str, Any], fact: str) -> None:
    """Raises ConfigError for the first key that is given, with the reason that is its value."""
    for key, reason in given.items():
        if reason:
            raise ConfigError(
                f"train.{key}: {config.model} {fact}. {reason}. Leave train.{key} out."
            )
