"""The keys of `train` in a pipeline config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pipeline_ops.config.base import (
    Section,
    TaskSection,
    advanced_field,
    operational_field,
    per_run_field,
)
from pipeline_ops.config.diagnostics import DebugSwitch, Divergence, Tensorboard
from pipeline_ops.config.input import InputOptions
from pipeline_ops.config.model_catalogue import (
    CATALOGUE,
    check_function,
    check_model,
    get_model_task,
    is_user_function,
)
from pipeline_ops.config.optimizer import Optimizer

Monitor = Annotated[str, Field(pattern=r"^validation_[a-z][a-z0-9_]*$")]
"""A figure of the validation split: `validation_loss`, or `validation_` and the name of a metric. A
figure whose name ends in loss or error is better when it is lower, any other when it is higher."""


def is_lower_better(monitor: str) -> bool:
    return monitor.endswith(("loss", "error"))


Strategy = Literal[
    "auto",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "parameter_server",
    "tpu",
    "device_placement",
    "dtensor",
]
MAX_EPOCHS = 100_000
HOSTS_NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""A plain name, so that the path stays in the folder `hosts/`."""
PUBLISHED_MODEL_PATTERN = "champion|version [1-9][0-9]{0,8}"
"""The weights that a run may begin with: a published model of this pipeline, never a path."""
PUBLISHED_MODEL_DESCRIPTION = "champion, or a published version such as `version 3`"


class EarlyStopping(Section):
    """Stops after `patience_epochs` epochs without an improvement of the monitored figure."""

    monitor: Monitor = "validation_loss"
    patience_epochs: int = per_run_field(5, ge=1)
    min_delta: float = per_run_field(0.0, ge=0, is_advanced=True)


class ReduceLearningRate(Section):
    """Multiplies the learning rate by `factor` when the monitored figure does not improve.

    That is after `patience_epochs` epochs without an improvement.
    """

    monitor: Monitor = "validation_loss"
    factor: float = per_run_field(0.5, gt=0, lt=1)
    patience_epochs: int = per_run_field(2, ge=1)
    min_learning_rate: float = per_run_field(1e-6, ge=0, is_advanced=True)


class BestCheckpoint(Section):
    """Selects the weights of the best epoch as the challenger, not those of the last epoch."""

    monitor: Monitor | None = None
    """The figure. Null is `validation_accuracy`, or `validation_map_50` for a detector."""
    keep: int = operational_field(1, ge=1, le=1000, is_advanced=True)
    """Number of best epochs whose weights stay in the folder of checkpoints until training is
    done."""


class TrainOptions(TaskSection):
    """Each key by itself. `train.Train` also checks which of them go together."""

    model: str
    """A name from the model catalogue (`config/model_catalogue.py`), or
    `my_package.my_module:build`, a function of your own."""
    model_parameters: dict[str, Any] = {}
    """Arguments for the function that builds the model."""
    loss: str | None = advanced_field(None)
    """`my_package.my_module:loss`, a function of labels and logits that returns a loss for each
    example. Null is cross-entropy."""
    metrics: list[str] = advanced_field([])
    """Functions `my_package.my_module:metric`, each like `loss`. They are reported under the
    function's name, next to accuracy."""
    strategy: Strategy = "multi_worker_mirrored"
    workers: int = Field(1, ge=1, le=1024)
    min_workers: int | None = operational_field(None, ge=1, le=1024, is_advanced=True)
    """The smallest number of workers with which a gang that has lost hosts goes on, at the same
    global batch. With null it needs all of `workers`."""
    max_workers: int | None = operational_field(None, ge=1, le=1024, is_advanced=True)
    """The largest number of workers, if the hosts can take them. Null is `workers`."""
    hosts: str | None = operational_field(None, pattern=HOSTS_NAME_PATTERN)
    """The hosts to train on, as the name of a file in `hosts/` next to this one. Null is this
    machine."""
    devices_per_worker: int = Field(1, ge=1, le=64)
    """Number of GPUs of each worker, or of logical devices if it has none."""
    parameter_servers: int = advanced_field(0, ge=0, le=1024)
    """Number of processes that hold the variables, besides the chief and the workers. Only for
    `parameter_server`."""
    min_variable_shard_bytes: int = operational_field(256 << 10, ge=1, is_advanced=True)
    """The smallest part into which a variable is divided among the servers. Only for
    `parameter_server`."""
    placement: dict[str, str] = advanced_field({})
    """The device of the layers whose names match a pattern,
    `{"conv2d*": "GPU:0", "dense*": "GPU:1"}`. The first match counts. Only for
    `device_placement`."""
    sharding: dict[str, int] = advanced_field({})
    """The axis along which the weights that match a pattern are divided, `{"*dense/kernel": 1}`.
    Other weights are on each device. Only for `dtensor`."""
    tpu: str | None = operational_field(None, min_length=1, is_advanced=True)
    """The name or address of the TPU. Null is the one that the environment names. Only for
    `tpu`."""
    global_batch_size: int = per_run_field(64, rank=3, ge=1, le=1_000_000)
    """Examples per optimizer step over all workers. It never follows the number of workers."""
    micro_batches: int = per_run_field(1, ge=1, le=1024, is_advanced=True)
    """Number of parts into which each replica divides its share of a batch, one after the other, to
    save memory. The gradients are added up."""
    epochs: int = per_run_field(10, rank=1, ge=1, le=MAX_EPOCHS)
    """Passes over the training data."""
    seed: int = per_run_field(1, ge=0, le=2**32 - 1)
    """Seed of initial weights, the order of examples, augmentation and dropout."""
    input: InputOptions = InputOptions()
    optimizer: Optimizer = Optimizer()
    precision: Literal["float32", "bfloat16", "float16"] = per_run_field("float32")
    """The type in which layers compute. Weights are always float32. float16 scales the loss, so
    that small gradients do not vanish."""
    synchronized_batch_normalization: bool = per_run_field(False, is_advanced=True)
    """Normalises over the global batch instead of each replica's share of it."""
    xla: Literal["none", "gradients", "step"] = advanced_field("none")
    """The part that XLA compiles: nothing, the forward and backward pass, or the whole step with
    the optimizer. For GPUs. On CPUs, convolutions get slower."""
    class_weights: bool = per_run_field(False, is_advanced=True)
    """Weighs each example's loss by its class, as in `preprocess.balance: by_class`. The validation
    loss is not weighed."""
    label_smoothing: float = per_run_field(0.0, ge=0, lt=1, is_advanced=True)
    """The part of each label that is spread over all classes, in training only."""
    warm_start: str | None = per_run_field(
        None,
        rank=5,
        is_operational=True,
        is_path=True,
        run_pattern=PUBLISHED_MODEL_PATTERN,
        run_pattern_description=PUBLISHED_MODEL_DESCRIPTION,
    )
    """The weights to begin with: champion (the model in service, if there is one yet), `version 3`
    of the published ones, or the path of a SavedModel's folder or of a file of weights (.npz, .h5
    or .keras). The head is left out if it has another number of classes."""
    freeze_epochs: int = per_run_field(0, ge=0, le=MAX_EPOCHS, is_advanced=True)
    """The number of first epochs in which the weights that `warm_start` has set do not change. Only
    the others, such as a head for other classes, learn."""
    early_stopping: EarlyStopping | None = None
    reduce_learning_rate: ReduceLearningRate | None = None
    best_checkpoint: BestCheckpoint | None = BestCheckpoint()
    on_divergence: Divergence = advanced_field(Divergence())
    callbacks: list[str] = advanced_field([])
    """Classes `my_package.my_module:MyCallback`, or functions that are called after every epoch
    (README, "Callbacks")."""
    tensorboard: Tensorboard = advanced_field(Tensorboard())
    debug: list[DebugSwitch] = advanced_field([])
    """TensorFlow's debugging switches. Training gets slower with each."""
    steps_per_call: int = operational_field(10, ge=1, le=10_000, is_advanced=True)
    """Optimizer steps in one call of the compiled function."""
    checkpoint_every_steps: int = operational_field(200, ge=1)
    """Steps between checkpoints. Checkpoints are written during training. A lost worker costs the
    steps since the last one."""
    keep_checkpoints: int = operational_field(2, ge=2, le=1000, is_advanced=True)
    """Number of newest checkpoints that are kept. If the last one is damaged, training goes on from
    the one before it."""
    max_restarts: int = operational_field(3, ge=0, le=1000, is_advanced=True)
    """Number of restarts of the whole gang from its last checkpoint before the task fails."""
    start_timeout_seconds: int = operational_field(300, ge=1)
    """Time until each worker must have made its first step. Otherwise the gang is restarted."""
    step_timeout_seconds: int = operational_field(120, ge=1)
    """Time without a report from a worker after which it counts as hung, and the gang is
    restarted."""
    heartbeat_timeout_seconds: int = operational_field(15, ge=2, is_advanced=True)
    """Time without a sign of life from a host or a process after which it counts as lost, even in
    the middle of a long step."""

    @field_validator("model")
    @classmethod
    def _validate_model(cls, value: str) -> str:
        return check_model(value)

    @field_validator("loss")
    @classmethod
    def _validate_loss(cls, value: str | None) -> str | None:
        return value and check_function(value)

    @field_validator("metrics", "callbacks")
    @classmethod
    def _validate_functions(cls, value: list[str]) -> list[str]:
        return [check_function(path) for path in value]

    @property
    def metric_names(self) -> list[str]:
        """The names of all figures of the validation split besides the loss."""
        known = ("accuracy",) if is_user_function(self.model) else CATALOGUE[self.model].metrics
        counted = ("map_50",) if get_model_task(self.model) == "detection" else ()
        return [*known, *counted, *(path.partition(":")[2] for path in self.metrics)]

    @property
    def best_monitor(self) -> str | None:
        """The figure that selects the best epoch. None if the last epoch counts."""
        if self.best_checkpoint is None:
            return None
        return self.best_checkpoint.monitor or (
            "validation_map_50"
            if get_model_task(self.model) == "detection"
            else "validation_accuracy"
        )

    @property
    def effective_min_workers(self) -> int:
        return self.min_workers or self.workers

    @property
    def effective_max_workers(self) -> int:
        return self.max_workers or self.workers
