"""Conversion of `train_config` to our section `train`.

Covers batch, epochs, optimizer, learning rate over the steps, and random changes of images.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.reader import ConfigReader

_OPTIMIZERS = {"momentum_optimizer": "sgd", "adam_optimizer": "adam", "rms_prop_optimizer": "adam"}
_DEFAULT_RATE = 0.002
_MAX_BOUNDARIES = 1000


def training(config: ConfigReader, num_examples: int | None, share: float) -> dict[str, Any]:
    """Returns the keys of `train`, except those of the model.

    Args:
      config: the whole file.
      num_examples: the number of training records, None if it is unknown.
      share: the fraction of them that is used for training.

    Raises:
      ConfigError: the number of steps cannot be converted to epochs.
    """
    section = config.message("train_config")
    batch, steps = section.take("batch_size", int, 32), section.take("num_steps", int, 0)
    made: dict[str, Any] = {
        "strategy": "auto",
        "global_batch": batch,
        "epochs": _epochs(config, section, batch, steps, num_examples, share),
    }
    made["optimizer"] = _optimizer(config, section, steps)
    section.take_equal("sync_replicas", True)  # all our steps are synchronous
    if section.take("use_bfloat16", bool, False):
        made["precision"] = "bfloat16"
    if changes := _changes(config, section):
        made["input"] = {"augment": changes}
    if section.has("fine_tune_checkpoint"):
        config.note(
            f"{section.path('fine_tune_checkpoint')}: a checkpoint holds the API's variables, "
            "which are not ours; give train.warm_start a SavedModel or a file of weights of our "
            "model, or of its backbone as keras.applications publishes it"
        )
    if config.has("graph_rewriter"):
        config.note(
            "graph_rewriter: quantisation while training has no counterpart; "
            "export.formats has TFLite with eight bits"
        )
    return made


def _epochs(
    config: ConfigReader,
    section: ConfigReader,
    batch: int,
    steps: int,
    num_examples: int | None,
    share: float,
) -> int:
    if not steps:
        config.note(
            f"{section.path('num_steps')} is 0 or missing, which means for ever; "
            "it became 10 epochs"
        )
        return 10
    if not num_examples:
        raise ConfigError(
            f"{section.place('num_steps')} is {steps}, and ours are epochs: "
            "no file of records is there to be counted; correct the paths of train_input_reader, "
            "or say how many there are: --num-examples N"
        )
    epochs = max(1, math.ceil(steps * batch / (num_examples * share)))
    config.note(
        f"{section.path('num_steps')}: {steps} steps of {batch} are {epochs} epochs of "
        f"{round(num_examples * share)} examples, the last one made whole"
    )
    return epochs


def _optimizer(config: ConfigReader, section: ConfigReader, steps: int) -> dict[str, Any]:
    optimizer = section.message("optimizer")
    kind = optimizer.one_of(*_OPTIMIZERS)
    if kind is None:
        config.note(
            f"{section.path('optimizer')}: none that has a counterpart; "
            "it became adam with our learning rate"
        )
        return {"name": "adam"}
    inner = optimizer.message(kind)
    made: dict[str, Any] = {"name": _OPTIMIZERS[kind]}
    if kind == "momentum_optimizer":
        made["momentum"] = inner.take("momentum_optimizer_value", float, 0.9)
    if kind == "rms_prop_optimizer":
        config.note(
            f"{optimizer.path(kind)}: becomes adam, the nearest; "
            "a learning rate that is right for one is seldom right for the other"
        )
    made |= _learning_rate(config, inner.message("learning_rate"), steps)
    clip = section.take("gradient_clipping_by_norm", float, 0.0)
    if clip > 0:
        made["clip"] = {"global_norm": clip}
    if optimizer.take("use_moving_average", bool, True):
        made["average_weights"] = optimizer.take("moving_average_decay", float, 0.9999)
        if not optimizer.has("use_moving_average"):
            config.note(
                f"{optimizer.path('use_moving_average')} is true where a file does not say it, "
                "so train.optimizer.average_weights is on"
            )
    return made


def _learning_rate(config: ConfigReader, rate: ConfigReader, steps: int) -> dict[str, Any]:
    kind = rate.one_of(
        "constant_learning_rate",
        "exponential_decay_learning_rate",
        "manual_step_learning_rate",
        "cosine_decay_learning_rate",
    )
    if kind is None:
        config.note(
            "train_config.optimizer: no learning rate that has a counterpart; "
            f"it became a constant {_DEFAULT_RATE}"
        )
        return {"learning_rate": _DEFAULT_RATE}
    inner = rate.message(kind)
    match kind:
        case "constant_learning_rate":
            rate.mark(kind)
            return {"learning_rate": inner.take("learning_rate", float, _DEFAULT_RATE)}
        case "exponential_decay_learning_rate":
            return _exponential(config, inner, steps)
        case "manual_step_learning_rate":
            return _manual(config, inner)
        case _:
            return _cosine(config, inner)


def _exponential(config: ConfigReader, inner: ConfigReader, steps: int) -> dict[str, Any]:
    """Returns an exponential schedule: in stairs, the API's default, or else smooth.

    The stairs end where the training ends.
    """
    rate, every, factor = (
        inner.take("initial_learning_rate", float, _DEFAULT_RATE),
        inner.take("decay_steps", int, 4_000_000),
        inner.take("decay_factor", float, 0.95),
    )
    if not inner.take("staircase", bool, True):
        return {
            "learning_rate": rate,
            "schedule": {"type": "exponential", "decay_steps": every, "factor": factor},
        }
    stairs = (steps or 10 * every) // every
    if not stairs:
        return {"learning_rate": rate}
    if stairs > _MAX_BOUNDARIES:
        config.note(f"{inner.path('staircase')}: {stairs} stairs became a smooth curve")
        return {
            "learning_rate": rate,
            "schedule": {"type": "exponential", "decay_steps": every, "factor": factor},
        }
    return {
        "learning_rate": rate,
        "schedule": {
            "type": "piecewise",
            "boundaries_steps": [every * number for number in range(1, stairs + 1)],
            "factors": [float(f"{factor**number:.12g}") for number in range(1, stairs + 1)],
        },
    }


def _manual(config: ConfigReader, inner: ConfigReader) -> dict[str, Any]:
    rate = inner.take("initial_learning_rate", float, _DEFAULT_RATE)
    stairs = [
        (each.take("step", int, 0), each.take("learning_rate", float, _DEFAULT_RATE))
        for each in inner.messages("schedule")
    ]
    stairs.sort()
    warmup = 0
    if inner.take("warmup", bool, False) and stairs:
        config.note(f"{inner.path('warmup')}: ours begins at nearly 0, and not at {rate:g}")
        (warmup, rate), *stairs = stairs
    if stairs and stairs[0][0] == 0:
        (_, rate), *stairs = stairs
    schedule = {"warmup_steps": warmup} if warmup else {}
    if stairs:
        factors = [float(f"{value / rate:.12g}") for _, value in stairs]
        steps = [step for step, _ in stairs]
        return {
            "learning_rate": rate,
            "schedule": {
                "type": "piecewise",
                **schedule,
                "boundaries_steps": steps,
                "factors": factors,
            },
        }
    return (
        {"learning_rate": rate, "schedule": {"type": "constant", **schedule}}
        if schedule
        else {"learning_rate": rate}
    )


def _cosine(config: ConfigReader, inner: ConfigReader) -> dict[str, Any]:
    rate, total = (
        inner.take("learning_rate_base", float, _DEFAULT_RATE),
        inner.take("total_steps", int, 4_000_000),
    )
    warmup = inner.take("warmup_steps", int, 10_000)
    if warmup:
        config.note(f"{inner.path('warmup_learning_rate')}: our warm-up begins at nearly 0")
    return {
        "learning_rate": rate,
        "schedule": {
            "type": "cosine",
            "warmup_steps": warmup,
            "decay_steps": max(1, total - warmup),
        },
    }


def _changes(config: ConfigReader, section: ConfigReader) -> dict[str, Any]:
    """Returns the random changes that `train.input.augment` also has."""
    changes: dict[str, Any] = {}
    for option in section.messages("data_augmentation_options"):
        if option.has("random_horizontal_flip"):
            option.mark("random_horizontal_flip")
            changes["flip_left_right"] = True
        if option.has("random_vertical_flip"):
            option.mark("random_vertical_flip")
            changes["flip_top_bottom"] = True
        if option.has("random_image_scale"):
            option.mark("random_image_scale")
            inner = option.message("random_image_scale")
            least, most = (
                inner.take("min_scale_ratio", float, 0.5),
                inner.take("max_scale_ratio", float, 2.0),
            )
            changes["scale"] = {
                "least": min(1.0, max(0.1, least)),
                "most": max(1.0, min(10.0, most)),
            }
        if option.has("random_adjust_brightness"):
            option.mark("random_adjust_brightness")
            changes["brightness"] = min(
                1.0, option.message("random_adjust_brightness").take("max_delta", float, 0.2)
            )
        for name in ("contrast", "saturation"):
            if option.has(f"random_adjust_{name}"):
                option.mark(f"random_adjust_{name}")
                changes[name] = _stretch(
                    config,
                    option.message(f"random_adjust_{name}"),
                    option.path(f"random_adjust_{name}"),
                )
    return changes


def _stretch(config: ConfigReader, inner: ConfigReader, path: str) -> float:
    """Returns the half width of our range of factors, which is symmetric around 1.

    The API draws a factor from any range.
    """
    least, most = inner.take("min_delta", float, 0.8), inner.take("max_delta", float, 1.25)
    stretch = min(0.99, max(0.0, round(max(1 - least, most - 1), 6)))
    config.note(f"{path}: a factor of {least:g} to {most:g} became 1 -/+ {stretch:g}")
    return stretch
