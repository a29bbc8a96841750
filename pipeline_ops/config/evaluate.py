"""`evaluate` of a pipeline config: the challenger against the champion, and the gate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PlainSerializer, ValidationInfo, WrapValidator, model_validator

from pipeline_ops.config.fields import (
    READ_WITH_THE_DAG,
    FieldError,
    FilePattern,
    Section,
    TaskSection,
    advanced_field,
    fixed_field,
    operational_field,
    per_run_field,
)
from pipeline_ops.config.model_catalogue import (
    Task,
    check_function,
    find_model,
    is_user_function,
    name_or_function,
)
from pipeline_ops.config.reading import suggest_name

CountedMetric = Literal[
    "accuracy",
    "top_k_accuracy",
    "macro_precision",
    "macro_recall",
    "macro_f1",
    "worst_class_recall",
]
"""Metrics that follow from counts of right and wrong answers, so they can be resampled."""
ScoreMetric = Literal["macro_roc_auc", "macro_average_precision", "calibration_error"]
"""Metrics that follow from the probabilities of all examples."""
ClassMetric = Literal["precision", "recall", "f1", "roc_auc", "average_precision"]
DetectionMetric = Literal[
    "map",
    "map_50",
    "map_75",
    "map_small",
    "map_medium",
    "map_large",
    "mar_1",
    "mar_10",
    "mar_100",
    "mar_small",
    "mar_medium",
    "mar_large",
]
"""COCO's metrics in its order, for a detector. All of them can be resampled."""
Measure = Literal["latency_milliseconds", "model_bytes", "drift", "serving_skew"]
"""Measures of the model as it is served, or of its data. `latency_milliseconds` is the median for
one image. `drift` is the largest Jensen-Shannon distance of the training data to the reference
data, which `preprocess.drift` describes. `serving_skew` is that of the training data to the
requests, which `evaluate.serving_skew` describes."""
Metric = Literal[CountedMetric, ScoreMetric, ClassMetric, DetectionMetric, Measure]
_DISTANCES = {"drift": "the champion's data", "serving_skew": "the requests in production"}

_METRICS: dict[Task, tuple[str, ...]] = {
    "classification": get_args(Literal[CountedMetric, ScoreMetric, ClassMetric, Measure]),
    "detection": get_args(Literal[DetectionMetric, Measure]),
}
_BUILT_IN_METRICS = frozenset().union(*_METRICS.values())


Mode = Literal["min", "max"]
"""The better direction of a figure, as Keras names it: lower is better, or higher."""
_LOWER_IS_BETTER = frozenset(
    {"loss", "heat_loss", "class_loss", "calibration_error", *get_args(Measure)}
)
_HIGHER_IS_BETTER = _BUILT_IN_METRICS - _LOWER_IS_BETTER | {"box_iou"}
_TOP_K = re.compile(r"top_\d+_accuracy")
_SPLIT = re.compile(r"^val(idation)?_")
_NO_MODES: Mapping[str, Mode | None] = MappingProxyType({})


def remove_split(figure: str) -> str:
    """Returns the name of the metric of a figure of an epoch, or of Keras's logs."""
    return _SPLIT.sub("", figure)


def find_mode(figure: str, own: Mapping[str, Mode | None] = _NO_MODES) -> Mode | None:
    """Returns the better direction of a figure, None if nothing says it.

    The figure is one of the gate, of an epoch (`validation_loss`), or of Keras's logs (`val_loss`).
    `own` has the directions of the author's own metrics, by name.
    """
    name = remove_split(figure)
    if name in own:
        return own[name]
    if name in _LOWER_IS_BETTER:
        return "min"
    return "max" if name in _HIGHER_IS_BETTER or _TOP_K.fullmatch(name) else None


def rank_figure(value: float, mode: Mode) -> float:
    """Returns a number that is larger for a better figure. A figure that is not finite is the worst
    one, whatever its sign.
    """
    if not math.isfinite(value):
        return -math.inf
    return -value if mode == "min" else value


def explain_mode(path: str) -> str:
    """Says how an author gives the better direction of the metric `path`."""
    return (
        f"Nothing says whether {path} is better when it is lower or when it is higher. Write "
        f"{{{path}: {{mode: min}}}} (lower is better) or {{{path}: {{mode: max}}}} into "
        "train.metrics"
    )


def _check_metric(value: Any, check: Callable[[Any], str], info: ValidationInfo) -> str:
    """Checks the name of a metric, or the path of a function of the user's own."""
    if not isinstance(value, str) or value in _BUILT_IN_METRICS:
        return check(value)
    if not is_user_function(value):  # the context, if there is one, has all values of the YAML
        train = (info.context or {}).get("train")
        model = train.get("model") if isinstance(train, dict) else None
        task = find_model(model).task if isinstance(model, str) else None
        names = _METRICS[task] if task else _BUILT_IN_METRICS
        similar = sorted(name for name in names if name.startswith(value.lower()))
        hint = f"valid names are {', '.join(similar)}"
        if len(similar) < 2:
            hint = suggest_name(value.lower(), names)
        if task != "detection":
            hint += ", and a metric of your own is named as my_package.my_module:metric"
        raise ValueError(f"unknown name {value!r:.100}; {hint}")
    name = check_function(value).partition(":")[2]
    if name in _BUILT_IN_METRICS:
        raise ValueError(f"{name} is a metric of the gate. Give {value} another name")
    return value


_SLICED_METRICS = (*get_args(CountedMetric), *get_args(DetectionMetric))
_RESAMPLED_METRICS = frozenset({*_SLICED_METRICS, "precision", "recall", "f1"})
_SKILL_METRICS = (
    *get_args(CountedMetric),
    "macro_roc_auc",
    "macro_average_precision",
    # A perfect detector has less than 1 where an image has more boxes than these count.
    *(name for name in get_args(DetectionMetric) if name not in ("mar_1", "mar_10")),
)
"""Metrics of the whole test split that have a baseline, and 1 as their best value."""
_UNBOUNDED_METRICS = frozenset({"latency_milliseconds", "model_bytes"})


class Rule(Section):
    """One rule of the gate, on the test split, with at least one bound."""

    metric: Annotated[
        Metric,
        WrapValidator(_check_metric),
        PlainSerializer(str),
        name_or_function(get_args(Metric)),
    ]
    """For a classifier also `my_package.my_module:metric`, a function as in `train.metrics`. The
    value is the mean over the examples."""
    mode: Mode | None = advanced_field(None)
    """The better direction of a metric of your own: min (lower is better) or max. A comparison with
    the champion needs it. Null is the mode that `train.metrics` has for it."""
    of_class: str | None = advanced_field(None)
    """The class for which the metric has to hold, or `*` for each class. Only for the metrics of a
    class, such as recall."""
    of_slice: str | None = advanced_field(None)
    """The name of one of `evaluate.slices`, for each of its values (`folder`), or one value of it
    (`folder=night`)."""
    min_examples: int = advanced_field(1, ge=1)
    """A class, or a value of a slice, with fewer test examples is not checked. The verdict says
    so."""
    at_least: float | None = Field(None, ge=0)
    at_most: float | None = advanced_field(None, ge=0)
    min_skill: float | None = Field(None, gt=0, le=1)
    """The smallest skill score, (value - baseline) / (1 - baseline): the part of the way from the
    baseline to a perfect score. The baseline is the best answer of a model that has not looked at
    the images."""
    max_regression: float | None = Field(None, ge=0)
    """Holds without a comparison while there is no champion."""
    min_improvement: float | None = advanced_field(None, ge=0)
    """Holds without a comparison while there is no champion."""
    confidence: float | None = advanced_field(None, gt=0.5, lt=1)
    """The confidence at which the rule must hold in a comparison with the champion, by a paired
    bootstrap over the test examples."""
    within_noise: Literal["fails", "passes"] = advanced_field("fails")
    """The outcome of a comparison that the test split is too small to decide at the
    `confidence`."""

    @model_validator(mode="before")
    @classmethod
    def _take_mode(cls, values: Any, info: ValidationInfo) -> Any:
        """Takes the mode of an own metric from `train.metrics`, if the whole YAML is known."""
        if not isinstance(values, dict) or values.get("mode") is not None:
            return values
        train = (info.context or {}).get("train")
        entries = train.get("metrics") if isinstance(train, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            for path, arguments in entry.items() if isinstance(entry, dict) else ():
                if path == values.get("metric") and isinstance(arguments, dict):
                    values = values | {"mode": arguments.get("mode")}
        return values

    @model_validator(mode="after")
    def _validate_mode(self) -> Rule:
        if self.mode is not None and not self.own_metric:
            raise FieldError(
                "mode",
                f"is for a metric of your own, and {self.metric} is one of ours. Remove it.",
            )
        is_compared = any(bound is not None for bound in self._comparisons)
        if self.own_metric and self.mode is None and is_compared:
            raise FieldError(
                "mode",
                "a comparison with the champion needs it. "
                f"{explain_mode(self.own_metric)}, or mode: min or mode: max into this rule.",
            )
        return self

    @model_validator(mode="after")
    def _validate_bounds(self) -> Rule:
        bounds = (self.at_least, self.at_most, self.min_skill, *self._comparisons)
        if all(bound is None for bound in bounds):
            raise ValueError(
                "a rule needs at_least, max_regression, min_skill, min_improvement, or at_most"
            )
        for name in ("at_least", "at_most", "max_regression", "min_improvement"):
            is_bounded = self.metric not in _UNBOUNDED_METRICS and not self.own_metric
            if is_bounded and (getattr(self, name) or 0) > 1:
                raise ValueError(
                    f"{name} of {self.metric} lies between 0 and 1, got {getattr(self, name):g}"
                )
        reason = " (its mode)" if self.mode else " (its at_least)" if self.own_metric else ""
        if self.at_least is not None and self.better == "min":
            raise ValueError(
                f"{self.metric} is lower-is-better{reason}. Use at_most, not at_least."
            )
        if self.at_most is not None and self.better == "max":
            raise ValueError(
                f"{self.metric} is higher-is-better{reason}. Use at_least, not at_most."
            )
        return self

    @model_validator(mode="after")
    def _validate_comparison(self) -> Rule:
        is_compared = any(bound is not None for bound in self._comparisons)
        if self.metric in _DISTANCES and is_compared:
            raise ValueError(
                f"{self.metric} is already a distance to {_DISTANCES[self.metric]}. Use at_most."
            )
        if self.confidence is not None and not is_compared:
            raise ValueError("confidence needs max_regression or min_improvement in the same rule")
        is_resampled = self.metric in _RESAMPLED_METRICS or self.own_metric
        if self.confidence is not None and not is_resampled:
            raise ValueError(
                "confidence needs a metric that is made of counts or of COCO "
                f"({', '.join(sorted(_RESAMPLED_METRICS))}), got {self.metric}"
            )
        if self.within_noise == "passes" and self.confidence is None:
            raise ValueError(
                "within_noise is the outcome below the confidence, and this rule has none. "
                "Add one, or remove within_noise."
            )
        return self

    @model_validator(mode="after")
    def _validate_subject(self) -> Rule:
        if (self.metric in get_args(ClassMetric)) != (self.of_class is not None):
            raise ValueError(
                f"got {self.metric} {'with' if self.of_class is not None else 'without'} of_class. "
                f"The metrics of a class ({', '.join(get_args(ClassMetric))}) need it, "
                "and the others do not take it."
            )
        is_sliced = self.metric in _SLICED_METRICS or self.own_metric
        if self.of_slice is not None and not is_sliced:
            raise ValueError(
                f"of_slice is for {', '.join(_SLICED_METRICS)}, got it with {self.metric}"
            )
        if self.min_skill is not None and (
            self.metric not in _SKILL_METRICS or self.of_slice is not None
        ):
            raise ValueError(
                "min_skill is for metrics of the whole test split whose best value is 1 "
                f"({', '.join(_SKILL_METRICS)}), got it with {self.metric}"
                f"{' and of_slice' if self.of_slice is not None else ''}. "
                f"Use {'at_most' if self.better == 'min' else 'at_least'}."
            )
        return self

    @property
    def own_metric(self) -> str:
        """The path of the user's function, or ""."""
        return self.metric if is_user_function(self.metric) else ""

    @property
    def better(self) -> Mode | None:
        """The better direction of the metric. A bound says that of an own one without a mode."""
        if not self.own_metric:
            return find_mode(self.metric)
        bound: Mode | None = "max" if self.at_least is not None else None
        return self.mode or bound or ("min" if self.at_most is not None else None)

    @property
    def name(self) -> str:
        """The metric's name in reports. For a user metric, the name of its function."""
        return self.metric.rpartition(":")[2]

    @property
    def _comparisons(self) -> tuple[float | None, float | None]:
        return self.max_regression, self.min_improvement


class Slice(Section):
    """A part of the test split that is evaluated by itself, one for each value or range."""

    by: str = Field(min_length=1)
    """`folder` (of the example's key), `image_bytes` (the size of its file), or any feature of the
    stored examples, such as `image/width`."""
    name: str = Field("", pattern="^[^=]*$")
    """The name of the slice in rules and in the report. If empty, the value of `by`."""
    folder_depth: int | None = Field(None, ge=1)
    """Number of folders from the left, for `by: folder`. Without it, the whole path."""
    edges: list[float] = []
    """Bounds that cut numbers into ranges. [32, 96] makes below 32, 32 to 96, and 96 and more."""

    @model_validator(mode="after")
    def _validate_combination(self) -> Slice:
        if self.folder_depth is not None and self.by != "folder":
            raise ValueError(f"folder_depth is for `by: folder`, got it with by: {self.by}")
        if self.by == "folder" and self.edges:
            raise ValueError("edges are for numbers, and a folder is not a number. Remove them.")
        if self.by == "image_bytes" and not self.edges:
            raise ValueError(
                "`by: image_bytes` needs edges, because nearly every image has a different size"
            )
        if self.edges != sorted(set(self.edges)):
            raise ValueError(f"edges must be ascending, got {self.edges}")
        return self

    @property
    def title(self) -> str:
        return self.name or self.by


class ServingSkew(Section):
    """The comparison of the training data with the requests to the model in service."""

    days: int = Field(7, ge=1, le=30)
    """The requests of so many days count, up to the plan of the evaluation. Servers keep 30 days.
    """


class Approval(Section):
    """Approval by a person in Airflow's UI, after the gate and before the publication."""

    timeout_seconds: int = Field(7 * 24 * 3600, ge=1)
    """The time that the run waits. Other runs of the pipeline go on."""
    on_timeout: Literal["reject", "approve"] = "reject"
    """The decision if there is no answer by then."""


class Evaluate(TaskSection):
    """The challenger against the champion, on the same test examples."""

    gate: list[Rule] = Field(min_length=1)
    files: list[FilePattern] = operational_field([], is_advanced=True)
    """Files that functions in `gate` open, like `train.files`."""
    batch_size: int = per_run_field(256, ge=1, is_advanced=True)
    """Number of test examples in one call of the model."""
    top_k: int = advanced_field(5, ge=1)
    """The k of `top_k_accuracy`, which counts an answer as right if the label is among the k most
    probable classes."""
    slices: list[Slice] = advanced_field([])
    allowed_leaks: int = advanced_field(0, ge=0)
    """Number of test examples that may have an equal image in the training split. With more, the
    test split is refused."""
    serving_skew: ServingSkew | None = advanced_field(None)
    """Compares the training data with the requests that `trainyard serve` and the clients of
    `RequestStatistics` have counted, for the report and for notifications. A rule of the metric
    `serving_skew` does the same with 7 days. The evaluation is repeated when there are new
    requests."""
    approval: Approval | None = fixed_field(
        None, READ_WITH_THE_DAG, is_operational=True, is_advanced=True
    )

    @model_validator(mode="after")
    def _validate_combination(self) -> Evaluate:
        titles = [part.title for part in self.slices]
        if duplicates := {title for title in titles if titles.count(title) > 1}:
            raise ValueError(f"slices must have different names, got {min(duplicates)!r} twice")
        for rule in self.gate:
            if rule.own_metric and rule.own_metric != self.own_metrics[rule.name]:
                raise ValueError(
                    f"gate: {rule.own_metric} and {self.own_metrics[rule.name]} have the same "
                    "name. Give one of the functions another one."
                )
            if rule.of_slice is not None and rule.of_slice.partition("=")[0] not in titles:
                raise ValueError(
                    f"gate: of_slice {rule.of_slice!r} names no slice. "
                    f"The slices are {', '.join(titles) or 'none'}."
                )
        return self

    @property
    def own_metrics(self) -> dict[str, str]:
        """The paths of the user's functions in the gate, by name."""
        return {rule.name: rule.own_metric for rule in self.gate if rule.own_metric}

    @property
    def own_modes(self) -> dict[str, Mode]:
        """The better directions of the user's functions in the gate, by name."""
        return {rule.name: rule.better for rule in self.gate if rule.own_metric and rule.better}

    @property
    def serving_comparison(self) -> ServingSkew | None:
        """The comparison with requests that the section, or a rule, asks for."""
        is_needed = any(rule.metric == "serving_skew" for rule in self.gate)
        return self.serving_skew or (ServingSkew() if is_needed else None)

    @property
    def needs_latency(self) -> bool:
        return any(rule.metric == "latency_milliseconds" for rule in self.gate)
