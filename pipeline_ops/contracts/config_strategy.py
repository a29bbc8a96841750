"""`train.strategy` of a pipeline config, and which of the training options can't go together: each with its reason, before a process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipeline_ops.contracts.model_catalogue import CATALOGUE, is_own
from pipeline_ops.contracts.section import Section

if TYPE_CHECKING:
    from pipeline_ops.contracts.config_train import Train

Strategy = Literal["auto", "one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "tpu", "placed_layers", "sharded_layers"]

_SEVERAL_WORKERS = ("auto", "multi_worker_mirrored", "parameter_server")
_LAYERS = ("placed_layers", "sharded_layers")


class ParameterServers(Section):
    """The processes that hold the weights, while workers compute gradients and a chief deals out the batches."""

    count: int = Field(1, ge=1, le=256)
    min_shard_bytes: int = Field(256 << 10, ge=1)
    """A variable is divided among the servers as long as no part gets smaller than this."""


def refuse_impossible(train: Train) -> None:
    """Raises ValueError for options of which one makes another impossible or void."""
    for refuse in (_refuse_workers, _refuse_sections, _refuse_batch, _refuse_normalization, _refuse_xla, _refuse_parameter_servers, _refuse_sharding,
                   _refuse_labels):
        refuse(train)


def _refuse_workers(train: Train) -> None:
    if train.strategy not in _SEVERAL_WORKERS and train.workers != 1:
        raise ValueError(f"strategy {train.strategy} has exactly 1 worker, got workers: {train.workers}; use multi_worker_mirrored")
    if train.strategy in ("one_device", "parameter_server") and (train.devices_per_worker or 1) != 1:
        raise ValueError(f"strategy {train.strategy} uses 1 device of each worker, got devices_per_worker: {train.devices_per_worker}; "
                         "use mirrored or multi_worker_mirrored")
    if train.strategy in ("mirrored", "sharded_layers") and train.devices_per_worker == 1:
        raise ValueError(f"strategy {train.strategy} is for several devices, got devices_per_worker: 1; use one_device")


def _refuse_sections(train: Train) -> None:
    """A section for another strategy is a mistake, and a strategy without its section can't be carried out."""
    for name, strategy in (("placement", "placed_layers"), ("sharding", "sharded_layers"), ("parameter_servers", "parameter_server")):
        if bool(getattr(train, name)) != (train.strategy == strategy):
            problem = f"needs {name}" if train.strategy == strategy else f"has no use for {name}, which is for {strategy}"
            raise ValueError(f"strategy {train.strategy} {problem}")
    if train.tpu and train.strategy != "tpu":
        raise ValueError(f"strategy {train.strategy} has no use for tpu: {train.tpu}")


def _refuse_batch(train: Train) -> None:
    devices = train.devices_per_worker or 1
    if train.strategy != "parameter_server" and train.global_batch % train.workers:
        raise ValueError(f"global_batch must be a multiple of workers ({train.workers}), got {train.global_batch}")
    parts = (1 if train.strategy == "parameter_server" else train.workers * (1 if train.strategy in _LAYERS else devices)) * train.micro_batches
    if train.global_batch % parts:
        raise ValueError(f"global_batch must be a multiple of workers x devices_per_worker x micro_batches ({parts}), got {train.global_batch}")


def _refuse_normalization(train: Train) -> None:
    if not train.synchronized_batch_normalization:
        return
    if not is_own(train.model) and not CATALOGUE[train.model].has_batch_normalization:
        raise ValueError(f"synchronized_batch_normalization: the model {train.model} has no batch normalisation")
    if train.strategy == "parameter_server":
        raise ValueError("synchronized_batch_normalization: the workers of parameter_server don't wait for one another, so there is nothing to "
                         "synchronise; each step normalises over its whole batch")


def _refuse_xla(train: Train) -> None:
    if train.xla == "none":
        return
    if train.strategy in ("parameter_server", *_LAYERS):
        raise ValueError(f"xla: {train.xla} compiles for one device, and under {train.strategy} a step's variables are on several; use xla: none")
    if train.synchronized_batch_normalization and train.strategy not in ("one_device", "tpu"):
        raise ValueError(f"xla: {train.xla} can't compile the exchange between replicas that synchronized_batch_normalization makes inside the forward "
                         "pass; use one of the two")
    if train.xla == "step" and train.strategy not in ("one_device", "tpu"):
        raise ValueError(f"xla: step is for one_device and tpu: under {train.strategy} a step exchanges gradients between replicas, which XLA can't "
                         "compile here; use xla: gradients")
    if train.xla == "gradients" and train.strategy == "tpu":
        raise ValueError("xla: gradients has no meaning for tpu, where the whole step is always compiled; leave xla out")


def _refuse_parameter_servers(train: Train) -> None:
    if train.strategy != "parameter_server":
        return
    if train.precision == "float16":
        raise ValueError("precision: float16 is not for parameter_server: its loss scale would be changed by all workers at once; use bfloat16")


def _refuse_sharding(train: Train) -> None:
    if train.strategy != "sharded_layers":
        return
    if train.precision == "float16":
        raise ValueError("precision: float16 is not for sharded_layers, whose optimizer has no loss scale; use bfloat16")
    if train.micro_batches > 1:
        raise ValueError("micro_batches is not for sharded_layers, which divides layers and not batches")


def _refuse_labels(train: Train) -> None:
    if train.loss is None:
        return
    for name in ("class_weights", "label_smoothing"):
        if getattr(train, name):
            raise ValueError(f"{name} belongs to the cross-entropy; with a loss of your own ({train.loss}), put it in there")
