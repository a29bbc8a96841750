"""`train` of a pipeline config: shards to trained weights and a candidate SavedModel."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline_ops.contracts.section import Section, TaskSection, operational


class Optimizer(Section):
    """A Keras optimizer; the clipping is done by us, on the gradient of the global batch."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(1e-3, gt=0, le=10)
    momentum: float = Field(0.0, ge=0, lt=1)
    """For sgd."""
    weight_decay: float = Field(0.0, ge=0, lt=1)
    """For adamw."""

    @model_validator(mode="after")
    def _fits(self) -> Optimizer:
        if self.momentum and self.name != "sgd":
            raise ValueError(f"momentum is for the optimizer sgd, got it with {self.name}")
        if self.weight_decay and self.name != "adamw":
            raise ValueError(f"weight_decay is for the optimizer adamw, got it with {self.name}")
        return self


Monitor = Literal["validation_loss", "validation_accuracy"]


class EarlyStopping(Section):
    """Stops when the monitored figure has not improved for so many epochs."""

    monitor: Monitor = "validation_loss"
    patience_epochs: int = Field(5, ge=1)
    min_delta: float = Field(0.0, ge=0)


class ReduceLearningRate(Section):
    """Multiplies the learning rate by `factor` when the monitored figure has not improved for so many epochs."""

    monitor: Monitor = "validation_loss"
    factor: float = Field(0.5, gt=0, lt=1)
    patience_epochs: int = Field(2, ge=1)
    min_learning_rate: float = Field(1e-6, ge=0)


class BestCheckpoint(Section):
    """The weights of the epoch with the best figure become the challenger, not those of the last epoch."""

    monitor: Monitor = "validation_accuracy"


class Train(TaskSection):
    """Shards to trained weights and a candidate SavedModel."""

    model: str
    """A name from the model catalogue (`pipeline_ops/models/`)."""
    strategy: Literal["one_device", "multi_worker_mirrored", "parameter_server"] = "multi_worker_mirrored"
    workers: int = Field(1, ge=1, le=1024)
    min_workers: int | None = operational(None, ge=1, le=1024)
    """A gang that has lost hosts goes on with as few workers as this, at the same global batch. Null: with `workers` or not at all."""
    max_workers: int | None = operational(None, ge=1, le=1024)
    """As many workers as this, where the hosts have room for them. Null: `workers`."""
    devices_per_worker: int = Field(1, ge=1, le=64)
    parameter_servers: int = Field(0, ge=0, le=1024)
    """For parameter_server: processes that hold the variables, beside the chief and the workers."""
    hosts: str | None = operational(None)
    """The hosts to train on: the name of a file in `hosts/` beside this one. Null: this machine."""
    global_batch: int = Field(64, ge=1, le=1_000_000)
    """Examples per optimizer step over all workers. It never follows the number of workers."""
    epochs: int = Field(10, ge=1, le=100_000)
    seed: int = Field(1, ge=0)
    optimizer: Optimizer = Optimizer()
    early_stopping: EarlyStopping | None = None
    reduce_learning_rate: ReduceLearningRate | None = None
    best_checkpoint: BestCheckpoint | None = BestCheckpoint()
    steps_per_call: int = operational(10, ge=1, le=10_000)
    """Optimizer steps in one call of the compiled function."""
    checkpoint_every_steps: int = operational(200, ge=1)
    max_restarts: int = operational(3, ge=0, le=1000)
    """How often the whole gang is restarted from its last checkpoint before the task fails."""
    start_timeout_seconds: int = operational(300, ge=1)
    """A gang of which not every worker has made its first step by then is restarted."""
    step_timeout_seconds: int = operational(120, ge=1)
    """A worker that reports nothing for so long is taken for hung, and the gang is restarted."""
    heartbeat_timeout_seconds: int = operational(15, ge=2)
    """A host or a process that gives no sign of life for so long is taken for lost, though it may be in the middle of a long step."""

    @model_validator(mode="after")
    def _fits(self) -> Train:
        if self.strategy == "one_device" and self.workers != 1:
            raise ValueError(f"strategy one_device has exactly 1 worker, got workers: {self.workers}; use multi_worker_mirrored")
        if self.global_batch < self.most_workers:
            raise ValueError(f"global_batch must be at least the number of workers ({self.most_workers}), got {self.global_batch}")
        if not self.fewest_workers <= self.workers <= self.most_workers:
            raise ValueError(f"min_workers ({self.fewest_workers}), workers ({self.workers}) and max_workers ({self.most_workers}) must not go down")
        if (self.strategy == "parameter_server") != bool(self.parameter_servers):
            raise ValueError(f"parameter_servers must be at least 1 with strategy parameter_server, and 0 elsewhere; got {self.parameter_servers} "
                             f"with {self.strategy}")
        return self

    @property
    def fewest_workers(self) -> int:
        return self.min_workers or self.workers

    @property
    def most_workers(self) -> int:
        return self.max_workers or self.workers
