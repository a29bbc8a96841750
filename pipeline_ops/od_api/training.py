"""The section `train` of a `pipeline.config`.

It covers batch, steps, optimizer, learning rate over the steps, and random changes of images.
`model.py` converts the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipeline_ops.config.train import Clip, Cosine, Crop, Exponential, Optimizer, Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.model import has_exact_backbone
from pipeline_ops.od_api.text_proto import ConfigReader, describe_values
from pipeline_ops.registry.weights import find_checkpoint_fault

_OPTIMIZERS = {
    "momentum_optimizer": "sgd",
    "adam_optimizer": "adam",
    "rms_prop_optimizer": "rmsprop",
}
_ADVICE = {
    "crop": "train.input.augment.crops, scale with shift, or mosaic also varies size and place.",
    "pad": "train.input.augment.scale with shift, or mosaic, also varies size and place.",
    "image_scale": "The content does not move in it, as it does in train.input.augment.scale.",
    "color": "train.input.augment has brightness, contrast and saturation.",
    "hue": "Hues stay as they are, unless train.input.augment.own changes them.",
}
"""What may replace a random change of the API that we do not have, by a part of its name."""
_DEFAULT_RATE = 0.002
_MIN_VISIBLE = 0.001
"""The API keeps a box as long as a part of it is in the image."""
_FLIPPED = 0.5
"""The share of the images that our random flips turn."""
_TRAIN, _OPTIMIZER = Train.model_fields, Optimizer.model_fields
_EXPONENTIAL, _COSINE = Exponential.model_fields, Cosine.model_fields
_NOT_NEGATIVE = _EXPONENTIAL["warmup_factor"]
_POSITIVE = Clip.model_fields["value"]


def convert_training(
    config: ConfigReader, model: ConfigReader, backbone: str | None
) -> dict[str, Any]:
    """Returns the keys of `train`, except those of the model.

    `model` is the API's, and `backbone` that of ours. Raises ConfigError, with the place in the
    file, if a value is not possible.
    """
    section = config.message("train_config")
    batch = section.take("batch_size", int, 32, _TRAIN["global_batch_size"])
    converted = {"strategy": "auto", "global_batch_size": batch, **_convert_steps(section)}
    converted["optimizer"] = _convert_optimizer(config, section)
    section.take_equal("sync_replicas", True)  # all our steps are synchronous
    if section.take("use_bfloat16", bool, False):
        converted["precision"] = "bfloat16"
    if augmentation := _convert_augmentation(section):
        converted["input"] = {"augment": augmentation}
    converted |= _convert_checkpoint(section, model, backbone)
    if config.has("graph_rewriter"):
        config.message("graph_rewriter").take_rest()
        config.note_loss(
            "graph_rewriter: quantization-aware training has no counterpart. "
            "export.formats has TFLite with eight bits."
        )
    return converted


def _convert_checkpoint(
    section: ConfigReader, model: ConfigReader, backbone: str | None
) -> dict[str, str]:
    """Returns a warm start if the checkpoint exists, and we have exactly its network."""
    if not (checkpoint := section.take("fine_tune_checkpoint", str, "")):
        return {}
    place = f"{section.path('fine_tune_checkpoint')}: '{checkpoint}'"
    if backbone is None or not has_exact_backbone(model):
        network = model.message("feature_extractor").take("type", str, "")
        problem = f"no backbone of ours is that of {network}"
    elif not (problem := find_checkpoint_fault(os.path.expanduser(checkpoint))):
        section.note_loss(
            f"{place} fills the backbone {backbone} (train.warm_start). The pyramid and the heads "
            "start from random weights, because ours are other networks"
        )
        return {"warm_start": os.path.abspath(os.path.expanduser(checkpoint))}
    section.note_loss(
        f"{place} is not used, so the training starts from random weights, because {problem}. "
        "train.warm_start takes one of the same backbone, or weights of keras.applications."
    )
    return {}


def _convert_steps(section: ConfigReader) -> dict[str, int]:
    if section.take("num_steps", int, 0):
        return {"steps": section.take("num_steps", int, 0, _TRAIN["steps"])}
    section.note_loss(
        f"{section.path('num_steps')} is 0 or missing, which means an endless training. "
        "It became 10 epochs."
    )
    return {"epochs": 10}


def _convert_optimizer(config: ConfigReader, section: ConfigReader) -> dict[str, Any]:
    optimizer = section.message("optimizer")
    kind = optimizer.find_present(*_OPTIMIZERS)
    if kind is None:
        section.note_loss(
            f"{section.path('optimizer')}: no optimizer that has a counterpart. "
            "It became adam with our learning rate."
        )
        return {"name": "adam"}
    inner = optimizer.message(kind)
    converted: dict[str, Any] = {"name": _OPTIMIZERS[kind]}
    if kind != "adam_optimizer":
        converted["momentum"] = inner.take(
            "momentum_optimizer_value", float, 0.9, _OPTIMIZER["momentum"]
        )
    if kind == "rms_prop_optimizer":
        converted["rho"] = inner.take("decay", float, 0.9, _OPTIMIZER["rho"])
    if kind != "momentum_optimizer":
        default = 1e-8 if kind == "adam_optimizer" else 1.0
        converted["epsilon"] = inner.take("epsilon", float, default, _OPTIMIZER["epsilon"])
    converted |= _convert_learning_rate(inner.message("learning_rate"))
    clip = section.take("gradient_clipping_by_norm", float, 0.0)
    if clip > 0:
        bounds = Clip.model_fields["global_norm"]
        clip = section.take("gradient_clipping_by_norm", float, clip, bounds)
        converted["clip"] = {"global_norm": clip}
    has_average = optimizer.take("use_moving_average", bool, True)
    decay = optimizer.take("moving_average_decay", float, 0.9999)
    if config.message("eval_config").take("use_moving_averages", bool, False) and has_average:
        bounds = _OPTIMIZER["average_weights"]
        converted["average_weights"] = optimizer.take("moving_average_decay", float, decay, bounds)
    elif optimizer.has("moving_average_decay"):
        section.note(
            f"{optimizer.path('moving_average_decay')}: {decay:g} has no effect, because the API "
            "evaluates and exports averages only with eval_config.use_moving_averages"
        )
    return converted | _convert_regularizer(config, converted)


def _convert_regularizer(config: ConfigReader, optimizer: dict[str, Any]) -> dict[str, float]:
    """Returns the weight decay that is about the penalty of the API's L2 regularizers.

    With momentum m, a penalty of w * |weights|**2 / 2 moves a weight by 1 / (1 - m) times the rate.
    """
    regularizers = [
        message.message("l2_regularizer")
        for message in config.message("model").iterate_messages()
        if message.has("l2_regularizer")
    ]
    weights = {each.take("weight", float, 1.0): each for each in regularizers}
    weights.pop(0.0, None)
    section = config.message("train_config")
    if not section.take("add_regularization_loss", bool, True) or not weights:
        return {}
    listed = " and ".join(f"{weight:g}" for weight in sorted(weights))
    if optimizer["name"] == "adam":
        config.note_loss(
            f"the L2 regularizers with the weight {listed}: adam has no weight decay. "
            "Consider adamw."
        )
        return {}
    decay = _round(max(weights) / (1 - optimizer["momentum"]))
    if not 0 < decay < 1:
        raise ConfigError(
            f"{weights[max(weights)].format_location('weight')} makes a weight decay of {decay:g}, "
            "divided by 1 - momentum, and this must be above 0 and below 1. Correct the weight."
        )
    config.note(
        f"the L2 regularizers with the weight {listed} become a weight decay of {decay:g} for all "
        "weights: divided by 1 - momentum"
    )
    return {"weight_decay": decay}


def _take_rate(inner: ConfigReader, name: str) -> float:
    return inner.take(name, float, _DEFAULT_RATE, _OPTIMIZER["learning_rate"])


def _convert_exponential(inner: ConfigReader) -> dict[str, Any]:
    rate = _take_rate(inner, "initial_learning_rate")
    schedule: dict[str, Any] = {
        "type": "exponential",
        "decay_steps": inner.take("decay_steps", int, 4_000_000, _EXPONENTIAL["decay_steps"]),
        "factor": inner.take("decay_factor", float, 0.95, _EXPONENTIAL["factor"]),
        "staircase": inner.take("staircase", bool, True),
    }
    if least := inner.take("min_learning_rate", float, 0.0, _EXPONENTIAL["min_factor"]):
        schedule["min_factor"] = _round(least / rate)
    burnin = inner.take("burnin_learning_rate", float, 0.0, _NOT_NEGATIVE) or rate
    if steps := inner.take("burnin_steps", int, 0, _EXPONENTIAL["warmup_steps"]):
        schedule |= {"warmup_steps": steps, "warmup_factor": _round(burnin / rate)}
        schedule["warmup_type"] = "constant"
    return {"learning_rate": rate, "schedule": schedule}


def _convert_manual_steps(inner: ConfigReader) -> dict[str, Any]:
    """Converts rates from given steps on, which must ascend.

    A rate from step 0 on, as in old configs, replaces the initial one.
    """
    items = list(inner.messages("schedule"))
    steps = [item.take("step", int, 0) for item in items]
    rates = [inner.take("initial_learning_rate", float, _DEFAULT_RATE, _NOT_NEGATIVE)]
    rates += [item.take("learning_rate", float, _DEFAULT_RATE, _NOT_NEGATIVE) for item in items]
    if steps != sorted(set(steps)) or min(steps, default=0) < 0:
        raise ConfigError(f"{inner.format_location('schedule')}: the steps must ascend")
    schedule: dict[str, Any] = {"type": "constant"}
    has_warmup = inner.take("warmup", bool, False) and bool(steps)
    if has_warmup or 0 in steps:
        rate = _take_rate(items[0], "learning_rate")
        if warmup := steps.pop(0):
            schedule |= {"warmup_steps": warmup, "warmup_factor": _round(rates[0] / rate)}
        del rates[0]
    else:
        rate = _take_rate(inner, "initial_learning_rate")
    if steps:
        factors = [_round(value / rate) for value in rates[1:]]
        schedule |= {"type": "piecewise", "boundaries_steps": steps, "factors": factors}
    return {"learning_rate": rate} | ({"schedule": schedule} if len(schedule) > 1 else {})


def _round(factor: float) -> float:
    return float(f"{factor:.12g}")


def _convert_cosine(inner: ConfigReader) -> dict[str, Any]:
    rate = _take_rate(inner, "learning_rate_base")
    total = inner.take("total_steps", int, 4_000_000, _COSINE["decay_steps"])
    warmup = inner.take("warmup_steps", int, 10_000, _COSINE["warmup_steps"])
    begin = inner.take("warmup_learning_rate", float, 2e-4, _NOT_NEGATIVE)
    hold = inner.take("hold_base_rate_steps", int, 0, _COSINE["hold_steps"])
    schedule = {"type": "cosine", "warmup_steps": warmup, "decay_steps": total - warmup - hold}
    if total <= warmup + hold:  # the rate is the whole one after the warm-up, until total_steps
        num_steps = inner.root.message("train_config").take("num_steps", int, 0)
        if total < warmup or not 0 < num_steps <= total:
            raise ConfigError(
                f"{inner.format_location('total_steps')} must be above warmup_steps (10000 by "
                f"default) and hold_base_rate_steps together, {warmup + hold}, or the training "
                f"(num_steps) must end by then and after the warm-up, got {total}"
            )
        schedule, hold = {"type": "constant", "warmup_steps": warmup}, 0
    if warmup:
        if begin > rate:
            raise ConfigError(
                f"{inner.format_location('warmup_learning_rate')} must be at most "
                f"learning_rate_base, {rate:g}, got {begin:g}"
            )
        schedule["warmup_factor"] = _round(begin / rate)
    if hold:
        schedule["hold_steps"] = hold
    return {"learning_rate": rate, "schedule": schedule}


_LEARNING_RATES = {
    "constant_learning_rate": lambda inner: {"learning_rate": _take_rate(inner, "learning_rate")},
    "exponential_decay_learning_rate": _convert_exponential,
    "manual_step_learning_rate": _convert_manual_steps,
    "cosine_decay_learning_rate": _convert_cosine,
}


def _convert_learning_rate(rate: ConfigReader) -> dict[str, Any]:
    if kind := rate.find_present(*_LEARNING_RATES):
        rate.mark_taken(kind)
        return _LEARNING_RATES[kind](rate.message(kind))
    rate.note_loss(
        "train_config.optimizer: no learning rate that has a counterpart. "
        f"It became a constant {_DEFAULT_RATE}."
    )
    return {"learning_rate": _DEFAULT_RATE}


def _convert_augmentation(section: ConfigReader) -> dict[str, Any]:
    """Returns the random changes that `train.input.augment` also has."""
    augmentation: dict[str, Any] = {}
    for option in section.messages("data_augmentation_options"):
        for name in option.field_names[-1:]:  # the last member of a oneof counts
            change, path = option.message(name), option.path(name)
            option.mark_taken(name)
            is_new = not {"crops", "scale"} & augmentation.keys()
            match name:
                case "random_horizontal_flip" | "random_vertical_flip":
                    axis = "left_right" if "horizontal" in name else "top_bottom"
                    if share := change.take("probability", float, _FLIPPED):
                        augmentation[f"flip_{axis}"] = True
                    if share not in (0.0, _FLIPPED):
                        place = change.path("probability")
                        change.note_loss(f"{place}: {share:g}, and {_FLIPPED} here")
                case "random_adjust_brightness":
                    augmentation["brightness"] = min(
                        1.0, change.take("max_delta", float, 0.2, _NOT_NEGATIVE)
                    )
                case "random_crop_image" if is_new:
                    augmentation["crops"] = [_convert_crop(change, _CROP_DEFAULTS)]
                case "ssd_random_crop" if is_new:
                    operations = change.messages("operations")
                    augmentation["crops"] = [
                        _convert_crop(each, _CROP_DEFAULTS | _OPERATION) for each in operations
                    ] or [
                        _CROP_DEFAULTS | _SSD_CROP | dict.fromkeys(_SSD_COVERED, covered)
                        for covered in _SSD_SHARES
                    ]
                case "random_square_crop_by_scale" | "random_scale_crop_and_pad_to_square" if (
                    is_new
                ):
                    augmentation["scale"] = _convert_square_crop(change, name, path)
                    augmentation["min_visible"] = _MIN_VISIBLE
                case "random_adjust_contrast" | "random_adjust_saturation":
                    key = name.removeprefix("random_adjust_")
                    augmentation[key] = _convert_factor_range(change, path)
                case _:
                    values = describe_values(change.take_rest())
                    advice = next((text for part, text in _ADVICE.items() if part in name), "")
                    option.note_loss(f"{path} {{{values}}} is not done. {advice}".rstrip())
    return augmentation


_CROP_DEFAULTS = Crop(min_object_covered=1.0).model_dump()
"""Those of `random_crop_image`."""
_OPERATION = {"min_object_covered": 0.0, "min_overlap": 0.0}
"""Those of an operation of `ssd_random_crop`. The API refuses one without the sizes."""
_CROP_FIELDS = {"min_overlap": "overlap_thresh", "keep_whole": "random_coef"}
_SSD_CROP = {"min_aspect_ratio": 0.5, "max_aspect_ratio": 2.0, "keep_whole": 0.15}
_SSD_COVERED = ("min_object_covered", "min_overlap")
_SSD_SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""The seven operations of an `ssd_random_crop` that names none."""


def _convert_crop(inner: ConfigReader, defaults: Mapping[str, float]) -> dict[str, float]:
    inner.take_equal("clip_boxes", True)
    return {
        key: inner.take(_CROP_FIELDS.get(key, key), float, default, Crop.model_fields[key])
        for key, default in defaults.items()
    }


def _convert_square_crop(inner: ConfigReader, name: str, path: str) -> dict[str, float]:
    """Returns the range of factors by which the image appears larger.

    One of the two options gives it, and the other one the side of the crop, its inverse.
    """
    is_side = name == "random_square_crop_by_scale"
    low = inner.take("scale_min", float, 0.6 if is_side else 0.1, _POSITIVE)
    high = inner.take("scale_max", float, 1.3 if is_side else 2.0, _POSITIVE)
    if is_side:
        low, high = 1 / high, 1 / low
    scale = {"min": _round(min(1.0, max(0.1, low))), "max": _round(max(1.0, min(10.0, high)))}
    inner.note(
        f"{path}: the image appears {scale['min']:g} to {scale['max']:g} times as large, at a "
        "random place, in the size of the model. What is beside it is grey, and black in the API"
    )
    return scale


def _convert_factor_range(inner: ConfigReader, path: str) -> float:
    """Returns the half width of our range of factors, which is symmetric around 1.

    The API draws a factor from any range.
    """
    low, high = inner.take("min_delta", float, 0.8), inner.take("max_delta", float, 1.25)
    stretch = min(0.99, max(0.0, round(max(1 - low, high - 1), 6)))
    inner.note(f"{path}: a factor of {low:g} to {high:g} became 1 -/+ {stretch:g}")
    return stretch
