"""`evaluate` of a pipeline config: the challenger against the champion, and the gate."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from pipeline_ops.config.base import READ_WITH_THE_DAG, Section, TaskSection, fixed, per_run

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
DetectionMetric = Literal["map", "map_50", "map_75", "map_small", "map_medium", "map_large"]
"""COCO's metrics, for a detector."""
Measure = Literal["latency_milliseconds", "model_bytes", "drift"]
"""Measures of the model as it is served, or of its data. `latency_milliseconds` is the median for
one image. `drift` is the largest Jensen-Shannon distance of the training data to the reference
data, which `preprocess.drift` describes."""

LOWER_IS_BETTER = frozenset({"calibration_error", *get_args(Measure)})
_RESAMPLED = frozenset({*get_args(CountedMetric), "precision", "recall", "f1"})
_WITHOUT_LIMIT = frozenset({"latency_milliseconds", "model_bytes"})


class Rule(Section):
    """One rule of the gate, on the test split, with at least one bound."""

    metric: Literal[CountedMetric, ScoreMetric, ClassMetric, DetectionMetric, Measure]
    of_class: str | None = None
    """The class for which the metric has to hold, or `*` for each class. Only for the metrics of a
    class, such as recall."""
    of_slice: str | None = None
    """The name of one of `evaluate.slices`, for each of its values (`folder`), or one value of it
    (`folder=night`)."""
    min_examples: int = Field(1, ge=1)
    """A class, or a value of a slice, with fewer test examples is not checked. The verdict says
    so."""
    at_least: float | None = Field(None, ge=0)
    at_most: float | None = Field(None, ge=0)
    not_worse_than_champion_by_more_than: float | None = Field(None, ge=0)
    """Holds without a comparison while there is no champion."""
    better_than_champion_by_more_than: float | None = Field(None, ge=0)
    """Holds without a comparison while there is no champion."""
    confidence: float | None = Field(None, gt=0.5, lt=1)
    """The confidence at which the rule must hold in a comparison with the champion, by a paired
    bootstrap over the test examples."""
    within_noise: Literal["fails", "passes"] = "fails"
    """The outcome of a comparison that the test split is too small to decide at the
    `confidence`."""

    @model_validator(mode="after")
    def _bounded(self) -> Rule:
        if all(bound is None for bound in (self.at_least, self.at_most, *self._comparisons)):
            raise ValueError(
                "a rule needs at_least, not_worse_than_champion_by_more_than, "
                "better_than_champion_by_more_than, or at_most"
            )
        for name in (
            "at_least",
            "at_most",
            "not_worse_than_champion_by_more_than",
            "better_than_champion_by_more_than",
        ):
            if self.metric not in _WITHOUT_LIMIT and (getattr(self, name) or 0) > 1:
                raise ValueError(
                    f"{name} of {self.metric} lies between 0 and 1, got {getattr(self, name):g}"
                )
        wrong = "at_least" if self.metric in LOWER_IS_BETTER else "at_most"
        if getattr(self, wrong) is not None:
            raise ValueError(
                f"of {self.metric}, {'less' if wrong == 'at_least' else 'more'} is better: "
                f"bound it with {'at_most' if wrong == 'at_least' else 'at_least'}, got {wrong}"
            )
        return self

    @model_validator(mode="after")
    def _comparable(self) -> Rule:
        is_compared = any(bound is not None for bound in self._comparisons)
        if self.metric == "drift" and is_compared:
            raise ValueError(
                "drift is a distance to the champion's data already: bound it with at_most"
            )
        if self.confidence is not None and not is_compared:
            raise ValueError(
                "confidence is for a comparison with the champion, and this rule has none"
            )
        if self.confidence is not None and self.metric not in _RESAMPLED:
            raise ValueError(
                "confidence needs a metric that is made of counts "
                f"({', '.join(sorted(_RESAMPLED))}), got {self.metric}"
            )
        if self.within_noise == "passes" and self.confidence is None:
            raise ValueError(
                "within_noise says what happens below the confidence, "
                "and this rule has no confidence"
            )
        return self

    @model_validator(mode="after")
    def _of_something(self) -> Rule:
        if (self.metric in get_args(ClassMetric)) != (self.of_class is not None):
            raise ValueError(
                f"of_class is for the metrics of a class ({', '.join(get_args(ClassMetric))}), and "
                "they need it; got "
                f"{self.metric} {'with' if self.of_class is not None else 'without'} it"
            )
        if self.of_slice is not None and self.metric not in get_args(CountedMetric):
            raise ValueError(
                f"of_slice is for {', '.join(get_args(CountedMetric))}, got it with {self.metric}"
            )
        return self

    @property
    def _comparisons(self) -> tuple[float | None, float | None]:
        return self.not_worse_than_champion_by_more_than, self.better_than_champion_by_more_than


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
    def _fits(self) -> Slice:
        if self.folder_depth is not None and self.by != "folder":
            raise ValueError(f"folder_depth is for `by: folder`, got it with by: {self.by}")
        if self.by == "folder" and self.edges:
            raise ValueError("edges cut numbers into ranges, and a folder is none")
        if self.by == "image_bytes" and not self.edges:
            raise ValueError(
                "`by: image_bytes` needs edges: nearly every image has a size of its own"
            )
        if self.edges != sorted(set(self.edges)):
            raise ValueError(f"edges must rise, got {self.edges}")
        return self

    @property
    def title(self) -> str:
        return self.name or self.by


class Bootstrap(Section):
    """Intervals of all metrics that are made of counts.

    Each sample draws the test examples again with replacement.
    """

    samples: int = Field(1000, ge=100, le=100_000)
    seed: int = Field(1, ge=0)


class Approval(Section):
    """Approval by a person in Airflow's UI, after the gate and before the publication."""

    timeout_seconds: int = Field(7 * 24 * 3600, ge=1)
    """The time that the run waits. Other runs of the pipeline go on."""
    without_answer: Literal["reject", "approve"] = "reject"
    """The decision if there is no answer by then."""


class Evaluate(TaskSection):
    """The challenger against the champion, on the same test examples."""

    gate: list[Rule] = Field(min_length=1)
    batch: int = per_run(256, ge=1)
    """Number of test examples in one call of the model."""
    top_k: int = Field(5, ge=1)
    """The k of `top_k_accuracy`, which counts an answer as right if the label is among the k most
    probable classes."""
    calibration_bins: int = Field(15, ge=2, le=100)
    slices: list[Slice] = []
    bootstrap: Bootstrap = Bootstrap()
    allowed_leaks: int = Field(0, ge=0)
    """Number of test examples that may have an equal image in the training split. With more, the
    test split is refused."""
    worst_mistakes: int = Field(24, ge=0, le=500)
    """Number of mistakes, and of surprises, that the report shows as pictures."""
    approval: Approval | None = fixed(None, READ_WITH_THE_DAG, is_operational=True)

    @model_validator(mode="after")
    def _fits(self) -> Evaluate:
        titles = [part.title for part in self.slices]
        if twice := {title for title in titles if titles.count(title) > 1}:
            raise ValueError(f"slices must have different names, got {min(twice)!r} twice")
        for rule in self.gate:
            if rule.of_slice is not None and rule.of_slice.partition("=")[0] not in titles:
                raise ValueError(
                    f"gate: of_slice {rule.of_slice!r} names no slice; "
                    f"evaluate.slices has {', '.join(titles) or 'none'}"
                )
        return self

    @property
    def measures_latency(self) -> bool:
        return any(rule.metric == "latency_milliseconds" for rule in self.gate)
