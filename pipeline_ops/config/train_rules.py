"""Rules over several keys of `train`, each with its reason, checked before a process starts."""

from __future__ import annotations

from pipeline_ops.config.model_catalogue import CATALOGUE, is_own, task_of
from pipeline_ops.config.train_options import TrainOptions

_SEVERAL_WORKERS = ("auto", "multi_worker_mirrored", "parameter_server")
_LAYERS = ("placed_layers", "sharded_layers")


def refuse_impossible(train: TrainOptions) -> None:
    """Raises ValueError if one option makes another impossible or void."""
    for refuse in (
        _refuse_workers,
        _refuse_keys,
        _refuse_batch,
        _refuse_normalization,
        _refuse_xla,
        _refuse_parameter_servers,
        _refuse_sharding,
        _refuse_labels,
        _refuse_for_detection,
        _refuse_parameters,
        _refuse_monitors,
    ):
        refuse(train)


def _refuse_workers(train: TrainOptions) -> None:
    if not train.fewest_workers <= train.workers <= train.most_workers:
        raise ValueError(
            f"min_workers ({train.fewest_workers}), workers ({train.workers}) and "
            f"max_workers ({train.most_workers}) must not go down"
        )
    if train.strategy not in _SEVERAL_WORKERS and train.most_workers != 1:
        raise ValueError(
            f"strategy {train.strategy} has exactly 1 worker, got workers: {train.most_workers}; "
            "use multi_worker_mirrored"
        )
    if train.strategy in ("one_device", "parameter_server") and train.devices_per_worker != 1:
        raise ValueError(
            f"strategy {train.strategy} uses 1 device of each worker, "
            f"got devices_per_worker: {train.devices_per_worker}; "
            "use mirrored or multi_worker_mirrored"
        )
    if train.strategy in ("mirrored", *_LAYERS) and train.devices_per_worker == 1:
        raise ValueError(
            f"strategy {train.strategy} is for several devices, "
            "got devices_per_worker: 1; use one_device"
        )


def _refuse_keys(train: TrainOptions) -> None:
    """Refuses a key for another strategy, and a strategy without its key.

    The first is a mistake. The second cannot be carried out.
    """
    for name, strategy in (
        ("placement", "placed_layers"),
        ("sharding", "sharded_layers"),
        ("parameter_servers", "parameter_server"),
    ):
        value = getattr(train, name)
        if bool(value) != (train.strategy == strategy):
            problem = (
                f"needs {name}"
                if train.strategy == strategy
                else f"has no use for {name} ({value}), which is for {strategy}"
            )
            raise ValueError(f"strategy {train.strategy} {problem}")
    if train.tpu and train.strategy != "tpu":
        raise ValueError(f"strategy {train.strategy} has no use for tpu ({train.tpu})")


def _refuse_batch(train: TrainOptions) -> None:
    replicas = (
        1
        if train.strategy in ("parameter_server", *_LAYERS)
        else train.most_workers * train.devices_per_worker
    )
    if train.global_batch < replicas * train.micro_batches:
        raise ValueError(
            "global_batch must be at least workers x devices_per_worker x micro_batches "
            f"({replicas * train.micro_batches}), got {train.global_batch}"
        )
    if train.strategy == "tpu" and train.global_batch % (replicas * train.micro_batches):
        raise ValueError(
            "global_batch must be a multiple of devices_per_worker x micro_batches "
            f"({replicas * train.micro_batches}) for tpu, whose shapes are fixed when a step is "
            f"compiled; got {train.global_batch}"
        )


def _refuse_normalization(train: TrainOptions) -> None:
    if not train.synchronized_batch_normalization:
        return
    if not is_own(train.model) and not CATALOGUE[train.model].has_batch_normalization:
        raise ValueError(
            f"synchronized_batch_normalization: the model {train.model} has no batch normalisation"
        )
    if train.model_parameters.get("frozen_batch_normalization"):
        raise ValueError(
            "synchronized_batch_normalization: with model_parameters.frozen_batch_normalization "
            "there are no statistics to synchronise; use one of the two"
        )
    if train.strategy == "parameter_server":
        raise ValueError(
            "synchronized_batch_normalization: the workers of parameter_server don't wait for one "
            "another, so there is nothing to synchronise; each step normalises over its whole batch"
        )


def _refuse_xla(train: TrainOptions) -> None:
    if train.xla == "none":
        return
    if train.strategy in ("parameter_server", *_LAYERS):
        raise ValueError(
            f"xla: {train.xla} compiles for one device, and under {train.strategy} a step's "
            "variables are on several; use xla: none"
        )
    if train.synchronized_batch_normalization and train.strategy not in ("one_device", "tpu"):
        raise ValueError(
            f"xla: {train.xla} can't compile the exchange between replicas that "
            "synchronized_batch_normalization makes in the forward pass; use one of the two"
        )
    if train.xla == "step" and train.strategy not in ("one_device", "tpu"):
        raise ValueError(
            f"xla: step is for one_device and tpu: under {train.strategy} a step exchanges "
            "gradients between replicas, which XLA can't compile here; use xla: gradients"
        )
    if train.xla == "gradients" and train.strategy == "tpu":
        raise ValueError(
            "xla: gradients has no meaning for tpu, where the whole step is always compiled; "
            "leave xla out"
        )


def _refuse_parameter_servers(train: TrainOptions) -> None:
    if train.strategy != "parameter_server":
        return
    if train.precision == "float16":
        raise ValueError(
            "precision: float16 is not for parameter_server: its loss scale would be changed by "
            "all workers at once; use bfloat16"
        )


def _refuse_sharding(train: TrainOptions) -> None:
    if train.strategy != "sharded_layers":
        return
    if train.precision == "float16":
        raise ValueError(
            "precision: float16 is not for sharded_layers, whose optimizer has no loss scale; "
            "use bfloat16"
        )
    if train.micro_batches > 1:
        raise ValueError(
            "micro_batches is not for sharded_layers: DTensor has to know all shapes when a step "
            "is compiled, and micro-batches are cut while it runs"
        )


def _refuse_labels(train: TrainOptions) -> None:
    if train.loss is None:
        return
    for name in ("class_weights", "label_smoothing"):
        if getattr(train, name):
            raise ValueError(
                f"{name} belongs to the cross-entropy; "
                f"with a loss of your own ({train.loss}), put it in there"
            )


def _refuse_for_detection(train: TrainOptions) -> None:
    if task_of(train.model) != "detection":
        if train.input.augment.mosaic:
            raise ValueError(
                f"input.augment.mosaic: four images have four labels, and {train.model} gives one; "
                "it is for detectors"
            )
        augment = train.input.augment
        if (
            augment.least_visible != type(augment).model_fields["least_visible"].default
        ):  # the trigger form sends every value, also unchanged ones
            raise ValueError(
                f"input.augment.least_visible is about boxes, and {train.model} is no detector"
            )
        return
    for name in ("loss", "metrics", "class_weights", "label_smoothing"):
        if getattr(train, name):
            raise ValueError(f"{name} is for classification, and {train.model} is a detector")
    if train.strategy in ("parameter_server", "sharded_layers", "tpu"):
        why = (
            "whose shapes are fixed, and images have different numbers of boxes"
            if train.strategy == "tpu"
            else "whose loop does not divide by the number of boxes"
        )
        raise ValueError(
            f"the detector {train.model} does not train under {train.strategy}, {why}; "
            "use one_device, mirrored or multi_worker_mirrored"
        )


def _refuse_parameters(train: TrainOptions) -> None:
    if is_own(train.model):
        return
    parameters = CATALOGUE[train.model].parameters
    if unknown := sorted(set(train.model_parameters) - set(parameters)):
        raise ValueError(
            f"the model {train.model} has no parameter {', '.join(unknown)}; "
            f"it has {', '.join(parameters) or 'none'}"
        )


def _refuse_monitors(train: TrainOptions) -> None:
    known = [f"validation_{name}" for name in ("loss", *train.metric_names)]
    for name in ("early_stopping", "reduce_learning_rate", "best_checkpoint"):
        section = getattr(train, name)
        if section is not None and section.monitor not in (None, *known):
            raise ValueError(
                f"{name}.monitor must be one of {', '.join(known)}, got {section.monitor}"
            )
