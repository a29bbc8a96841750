"""Rules over several keys of `train`, each with its reason, checked before a process starts."""

from __future__ import annotations

from pipeline_ops.config.model_catalogue import CATALOGUE, get_model_task, is_user_function
from pipeline_ops.config.train_options import TrainOptions

_SEVERAL_WORKERS = ("auto", "multi_worker_mirrored", "parameter_server")
_LAYERS = ("device_placement", "dtensor")


def validate_options(train: TrainOptions) -> None:
    """Raises ValueError if one option makes another impossible or void."""
    for validate in (
        _validate_workers,
        _validate_keys,
        _validate_batch,
        _validate_normalization,
        _validate_xla,
        _validate_parameter_servers,
        _validate_sharding,
        _validate_freezing,
        _validate_labels,
        _validate_for_detection,
        _validate_parameters,
        _validate_monitors,
    ):
        validate(train)


def _validate_workers(train: TrainOptions) -> None:
    if not train.effective_min_workers <= train.workers <= train.effective_max_workers:
        raise ValueError(
            "need min_workers <= workers <= max_workers, got "
            f"{train.effective_min_workers}, {train.workers}, {train.effective_max_workers}"
        )
    if train.strategy not in _SEVERAL_WORKERS and train.effective_max_workers != 1:
        raise ValueError(
            f"strategy {train.strategy} has exactly 1 worker, "
            f"got workers: {train.effective_max_workers}. Use multi_worker_mirrored."
        )
    if train.strategy in ("one_device", "parameter_server") and train.devices_per_worker != 1:
        raise ValueError(
            f"strategy {train.strategy} uses 1 device of each worker, "
            f"got devices_per_worker: {train.devices_per_worker}. "
            "Use mirrored or multi_worker_mirrored."
        )
    if train.strategy in ("mirrored", *_LAYERS) and train.devices_per_worker == 1:
        raise ValueError(
            f"strategy {train.strategy} is for several devices, "
            "got devices_per_worker: 1. Use one_device."
        )


def _validate_keys(train: TrainOptions) -> None:
    """Rejects a key for another strategy, and a strategy without its key.

    The first is a mistake. The second cannot be carried out.
    """
    for name, strategy in (
        ("placement", "device_placement"),
        ("sharding", "dtensor"),
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


def _validate_batch(train: TrainOptions) -> None:
    replicas = (
        1
        if train.strategy in ("parameter_server", *_LAYERS)
        else train.effective_max_workers * train.devices_per_worker
    )
    if train.global_batch_size < replicas * train.micro_batches:
        raise ValueError(
            "global_batch_size must be at least workers x devices_per_worker x micro_batches "
            f"({replicas * train.micro_batches}), got {train.global_batch_size}"
        )
    if train.strategy == "tpu" and train.global_batch_size % (replicas * train.micro_batches):
        raise ValueError(
            "global_batch_size must be a multiple of devices_per_worker x micro_batches "
            f"({replicas * train.micro_batches}) for tpu, whose shapes are fixed when a step is "
            f"compiled, got {train.global_batch_size}"
        )
    if train.xla != "none" and train.micro_batches > 1:
        for workers in range(train.effective_min_workers, train.effective_max_workers + 1):
            parts = workers * train.devices_per_worker * train.micro_batches
            if train.global_batch_size % parts:
                raise ValueError(
                    f"xla: {train.xla} needs micro_batches of one size, and global_batch_size "
                    f"{train.global_batch_size} is no multiple of workers x devices_per_worker x "
                    f"micro_batches ({parts})"
                )


def _validate_normalization(train: TrainOptions) -> None:
    if not train.synchronized_batch_normalization:
        return
    if not is_user_function(train.model) and not CATALOGUE[train.model].has_batch_normalization:
        raise ValueError(
            f"synchronized_batch_normalization: the model {train.model} has no batch normalisation"
        )
    if train.model_parameters.get("frozen_batch_normalization"):
        raise ValueError(
            "synchronized_batch_normalization: with model_parameters.frozen_batch_normalization "
            "there are no statistics to synchronise. Use one of the two."
        )
    if train.strategy == "parameter_server":
        raise ValueError(
            "synchronized_batch_normalization: the workers of parameter_server do not wait for one "
            "another, so there is nothing to synchronise. Each step normalises over its batch."
        )


def _validate_xla(train: TrainOptions) -> None:
    if train.xla == "none":
        return
    for switch in ("numerics", "eager", "dump"):
        if switch in train.debug:
            raise ValueError(
                f"debug: {switch} looks at single operations, and xla: {train.xla} compiles them "
                "into one. Use one of the two."
            )
    if train.strategy in ("parameter_server", *_LAYERS):
        raise ValueError(
            f"xla: {train.xla} compiles for one device, and under {train.strategy} a step's "
            "variables are on several. Use xla: none."
        )
    if train.synchronized_batch_normalization and train.strategy not in ("one_device", "tpu"):
        raise ValueError(
            f"xla: {train.xla} cannot compile the exchange between replicas that "
            "synchronized_batch_normalization makes in the forward pass. Use one of the two."
        )
    if train.xla == "step" and train.strategy not in ("one_device", "tpu"):
        raise ValueError(
            f"xla: step is for one_device and tpu: under {train.strategy} a step exchanges "
            "gradients between replicas, which XLA cannot compile here. Use xla: gradients."
        )
    if train.xla == "gradients" and train.strategy == "tpu":
        raise ValueError(
            "xla: gradients has no meaning for tpu, where the whole step is always compiled. "
            "Leave xla out."
        )


def _validate_parameter_servers(train: TrainOptions) -> None:
    if train.strategy != "parameter_server":
        return
    if train.precision == "float16":
        raise ValueError(
            "precision: float16 is not for parameter_server: its loss scale would be changed by "
            "all workers at once. Use bfloat16."
        )


def _validate_sharding(train: TrainOptions) -> None:
    if train.strategy != "dtensor":
        return
    if train.precision == "float16":
        raise ValueError(
            "precision: float16 is not for dtensor, whose optimizer has no loss scale. "
            "Use bfloat16."
        )
    if train.micro_batches > 1:
        raise ValueError(
            "micro_batches is not for dtensor. DTensor needs all shapes when a step is compiled, "
            "and micro-batches are cut while it runs."
        )


def _validate_freezing(train: TrainOptions) -> None:
    frozen = train.freeze_epochs
    if not frozen:
        return
    if train.warm_start is None:
        raise ValueError(
            f"freeze_epochs: {frozen} keeps the weights that warm_start sets, and there are none. "
            "Set warm_start, or freeze_epochs: 0."
        )
    if frozen >= train.epochs:
        raise ValueError(
            f"freeze_epochs must be smaller than epochs ({train.epochs}), got {frozen}. "
            "All weights learn in the epochs after it."
        )
    if train.strategy in ("parameter_server", "dtensor"):
        raise ValueError(
            f"freeze_epochs is not for {train.strategy}, whose weights are sharded. "
            "Use multi_worker_mirrored, or freeze_epochs: 0."
        )


def _validate_labels(train: TrainOptions) -> None:
    if train.loss is None:
        return
    for name in ("class_weights", "label_smoothing"):
        if getattr(train, name):
            raise ValueError(
                f"{name} belongs to the cross-entropy. Apply it inside your own loss, {train.loss}."
            )


def _validate_for_detection(train: TrainOptions) -> None:
    if get_model_task(train.model) != "detection":
        if train.input.augment.mosaic:
            raise ValueError(
                f"input.augment.mosaic: four images have four labels, and {train.model} gives one. "
                "Remove it, or use a detector."
            )
        augment = train.input.augment
        if (
            augment.min_visible != type(augment).model_fields["min_visible"].default
        ):  # the trigger form sends every value, also unchanged ones
            raise ValueError(
                f"input.augment.min_visible is for boxes, and {train.model} is not a detector"
            )
        return
    for name in ("loss", "metrics", "class_weights", "label_smoothing"):
        if getattr(train, name):
            raise ValueError(f"{name} is for classification, and {train.model} is a detector")
    if train.strategy in ("parameter_server", "dtensor", "tpu"):
        why = (
            "whose shapes are fixed, and images have different numbers of boxes"
            if train.strategy == "tpu"
            else "whose loop does not divide by the number of boxes"
        )
        raise ValueError(
            f"the detector {train.model} does not train under {train.strategy}, {why}. "
            "Use one_device, mirrored or multi_worker_mirrored."
        )


def _validate_parameters(train: TrainOptions) -> None:
    if is_user_function(train.model):
        return
    parameters = CATALOGUE[train.model].parameters
    if unknown := sorted(set(train.model_parameters) - set(parameters)):
        raise ValueError(
            f"the model {train.model} has no parameter {', '.join(unknown)}. "
            f"It has {', '.join(parameters) or 'none'}."
        )


def _validate_monitors(train: TrainOptions) -> None:
    known = [f"validation_{name}" for name in ("loss", *train.metric_names)]
    for name in ("early_stopping", "reduce_learning_rate", "best_checkpoint"):
        section = getattr(train, name)
        if section is not None and section.monitor not in (None, *known):
            raise ValueError(
                f"{name}.monitor must be one of {', '.join(known)}, got {section.monitor}"
            )
