"""The values of `train` that a strategy cannot run, or that the other task has no use for.

`REFUSALS` is the table, and `refuse_values` its only reader, called when `config/train.py` checks
the section. Rules that calculate or compare two keys are methods of `Train`.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

from pipeline_ops.config.fields import FieldError, Section, collect_fields, get_value
from pipeline_ops.config.model_catalogue import Task, find_model, is_user_function

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
LAYERS: tuple[Strategy, ...] = ("device_placement", "dtensor")
UNDIVIDED: tuple[Strategy, ...] = ("parameter_server", *LAYERS)
"""Strategies whose steps compute a batch as a whole, not in parts by replica."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A rule: some values of some keys are not for some strategies, or not for one of the tasks.

    Attributes:
      keys: dotted, below `train`.
      refused_by: strategies, or a task.
      because: a clause about these.
      instead: what to do.
      applies: whether the rule is about a value. None is about all values but the default.
    """

    keys: Collection[str]
    refused_by: Collection[Strategy | Task]
    because: str
    instead: str = "Leave it out"
    applies: Callable[[Any], bool] | None = None

    def is_about(self, train: Section, key: str) -> bool:
        value = get_value(train, key)
        if self.applies:
            return self.applies(value)
        # The trigger form sends every value, also unchanged ones.
        return bool(value != collect_fields(type(train))[key].fields[0].get_default())


def _all_but(*strategies: Strategy) -> Collection[Strategy]:
    return [name for name in get_args(Strategy) if name not in strategies]


def _is(value: Any) -> Callable[[Any], bool]:
    return lambda given: bool(given == value)


def _is_several(number: int | None) -> bool:
    return (number or 1) > 1


def _is_detector(model: str) -> bool:
    return find_model(model).task == "detection"


_ONE_WORKER = _all_but("auto", "multi_worker_mirrored", "parameter_server")
_SERVERS_OR_DTENSOR: Collection[Strategy] = ["parameter_server", "dtensor"]
_ITS_KEY: Mapping[str, Strategy] = {
    "placement": "device_placement",
    "sharding": "dtensor",
    "parameter_servers": "parameter_server",
}
"""Keys that one strategy needs, and that no other one has."""

# Two or three lines a rule: keys and strategies or task, then the reason, then the cure.
REFUSALS = (
    Refusal(["workers", "max_workers"], _ONE_WORKER,
            "which has exactly 1 worker", "Use multi_worker_mirrored", _is_several),
    Refusal(["devices_per_worker"], ["one_device", "parameter_server"],
            "which uses 1 device of each worker", "Use mirrored or multi_worker_mirrored"),
    Refusal(["devices_per_worker"], ["mirrored", *LAYERS],
            "which is for several devices", "Use one_device", _is(1)),
    Refusal(["communication"], _all_but("auto", "multi_worker_mirrored"),
            "which has another exchange than multi_worker_mirrored"),
    *(Refusal([key], [strategy], "which needs at least one", "Give one", operator.not_)
      for key, strategy in _ITS_KEY.items()),
    *(Refusal([key], _all_but(strategy),
              "which has no use for it", f"Use {strategy}, or leave it out")
      for key, strategy in {**_ITS_KEY, "tpu": "tpu"}.items()),
    Refusal(["batch_size_per_replica"], UNDIVIDED,
            "which does not divide a batch between replicas", "Use global_batch_size"),
    Refusal(["micro_batches"], ["dtensor"],
            "which needs all shapes when a step is compiled, and micro-batches are cut while it "
            "runs"),
    Refusal(["synchronized_batch_normalization"], ["parameter_server"],
            "whose workers do not wait for one another, so there is nothing to synchronise and "
            "each step normalises over its batch"),
    Refusal(["xla"], UNDIVIDED,
            "whose steps have variables on several devices, and XLA compiles for one"),
    Refusal(["xla"], ["auto", "mirrored", "multi_worker_mirrored"],
            "whose steps exchange gradients between replicas, which XLA cannot compile here",
            "Use xla: gradients, or the strategy one_device or tpu", _is("step")),
    Refusal(["xla"], ["tpu"],
            "where it has no meaning, because the whole step is always compiled",
            applies=_is("gradients")),
    Refusal(["precision"], ["parameter_server"],
            "whose workers would all change its loss scale at once", "Use bfloat16",
            _is("float16")),
    Refusal(["precision"], ["dtensor"],
            "whose optimizer has no loss scale", "Use bfloat16", _is("float16")),
    Refusal(["optimizer.name"], _SERVERS_OR_DTENSOR,
            "which divides weights, and so has optimizers of its own",
            "Use adam, adamw, rmsprop or sgd", is_user_function),
    Refusal(["freeze_epochs", "freeze"], _SERVERS_OR_DTENSOR,
            "whose weights are sharded", "Use multi_worker_mirrored, or leave it out"),
    Refusal(["loss", "metrics", "label_smoothing", "dataset"], ["detection"],
            "and the key is for classification"),
    Refusal(["input.augment.mosaic"], ["classification"],
            "which gives one label, and four images have four", "Leave it out, or use a detector"),
    Refusal(["input.augment.mixup", "input.augment.cutmix"], ["detection"],
            "which gives boxes, and the key mixes the classes of two images",
            "Leave it out, or use mosaic"),
    Refusal(["input.augment.min_visible"], ["classification"], "which gives no boxes"),
    Refusal(["model"], _SERVERS_OR_DTENSOR,
            "whose loop does not divide the loss by the number of boxes",
            "Use one_device, mirrored or multi_worker_mirrored", _is_detector),
    Refusal(["model"], ["tpu"],
            "whose shapes are fixed, and images have different numbers of boxes",
            "Use one_device, mirrored or multi_worker_mirrored", _is_detector),
)  # fmt: skip


def refuse_values(train: Section, subjects: Mapping[str, str]) -> None:
    """Raises FieldError for the first value that is not for the strategy or for the task.

    `subjects` are these two, each with its words for a message.
    """
    for rule in REFUSALS:
        for name in subjects.keys() & set(rule.refused_by):
            for key in rule.keys:
                if rule.is_about(train, key):
                    raise FieldError(key, _explain(rule, subjects[name], get_value(train, key)))


def _explain(rule: Refusal, subject: str, value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"{shown} is not for the {subject}, {rule.because}. {rule.instead}."
