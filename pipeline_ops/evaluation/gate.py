"""The gate: judges the challenger by the rules of the config.

Each verdict is a sentence with its numbers. The gate is a pure function of the rules and of the
figures of both models. The caller acts on the verdict.

A comparison at a confidence has three outcomes. If the draws of the difference lie above the bound
(at the confidence), the rule holds. If they lie below, it does not. If they lie on both sides, the
test split is too small for a decision, and `within_noise` decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from pipeline_ops.config.evaluate import DetectionMetric, Measure, Rule
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.contract.features import LABELS
from pipeline_ops.contract.results import RuleVerdict, ServingFigures
from pipeline_ops.errors import ConfigError
from pipeline_ops.evaluation.metrics import ExampleGroup

_TOLERANCE = 1e-9
"""Tolerance of floating-point comparisons.

0.98 is not worse than 0.985 by more than 0.005, even if the binary fractions are.
"""


@dataclasses.dataclass(frozen=True)
class Subject:
    """The subject of a verdict: a metric of the whole split, of a class or of a slice.

    Undefined values are None. `differences` are draws of challenger minus champion, or None for a
    metric without draws.
    """

    metric: str
    name: str
    num_examples: int
    value: float | None
    champion: float | None = None
    differences: np.ndarray | None = None
    baseline: float | None = None
    unknown: str = ""
    """The reason why there is no value, as the end of a sentence."""

    def build_verdict(self, passed: bool, text: str, **numbers: float | bool) -> RuleVerdict:
        """Returns the verdict. `text` follows the metric and the subject in its sentence."""
        about = f" of {self.name}" if self.name else ""
        return RuleVerdict(
            metric=self.metric,
            passed=passed,
            text=f"{self.metric}{about} {text}",
            subject=self.name,
            value=self.value,
            champion=self.champion,
            **numbers,
        )


def judge(
    rules: Sequence[Rule],
    whole: ExampleGroup,
    slices: Sequence[ExampleGroup] = (),
    drift: float | None = None,
    no_champion_reason: str = "",
    serving: ServingFigures | None = None,
) -> list[RuleVerdict]:
    """Returns a verdict for each bound of each rule and each of its subjects, in their order.

    The gate passes if all verdicts do. `drift` is None without a reference, and `serving` is None
    without requests. `no_champion_reason` is the end of a sentence.

    Raises:
      ConfigError: a rule names a class or a value of a slice that does not exist.
    """
    return [
        verdict
        for rule in rules
        for subject in _select_subjects(rule, whole, slices, drift, serving)
        for verdict in _judge_subject(rule, subject, no_champion_reason)
    ]


def judge_answers(whole: ExampleGroup) -> list[RuleVerdict]:
    """Returns a verdict on each model with answers that are not finite.

    A challenger with such answers fails, whatever the rules. For a champion they are only reported.
    """
    models = ("challenger", whole.challenger), ("champion", whole.champion)
    cure = ". Make the model return numbers for every image, or take these out of the data set"
    return [
        RuleVerdict(
            metric="finite_answers",
            passed=name == "champion",
            text=f"the answers of the {name} to {model.not_finite.describe(whole.num_examples)} "
            f"and count as wrong{cure * (name == 'challenger')}",
            subject=name,
            value=float(model.not_finite.count),
        )
        for name, model in models
        if model and model.not_finite.count
    ]


def _select_subjects(
    rule: Rule,
    whole: ExampleGroup,
    slices: Sequence[ExampleGroup],
    drift: float | None,
    serving: ServingFigures | None,
) -> Iterator[Subject]:
    metric = rule.name
    if metric == "drift":
        yield Subject(metric, "", whole.num_examples, drift)
        return
    if metric == "serving_skew":
        yield _select_skew(metric, serving or ServingFigures(num_images=0))
        return
    if rule.of_class is not None:
        yield from _select_classes(metric, rule.of_class, whole)
        return
    groups = [whole]
    if rule.of_slice:  # all values of `folder`, or the one of `folder=night`
        groups = [each for each in slices if rule.of_slice in (each.slice, each.name)]
    if not groups:
        nearest = suggest_name(rule.of_slice or "", [group.name for group in slices])
        raise ConfigError(
            f"evaluate.gate: of_slice: no test example has {rule.of_slice} ({nearest})."
        )
    for group in groups:
        value, champion = (
            (model.metrics | model.measures).get(metric) if model else None
            for model in (group.challenger, group.champion)
        )
        yield Subject(
            metric,
            group.name,
            group.num_examples,
            value,
            champion,
            group.differences.get(metric),
            group.baseline.get(metric),
        )


def _select_skew(metric: str, serving: ServingFigures) -> Subject:
    """Returns the feature with the largest skew, or the reason why nothing was compared."""
    if not serving.distances:
        return Subject(metric, "", serving.num_images, None, unknown=serving.problem)
    largest = serving.distances[0]
    name = "classes" if largest.feature == LABELS else largest.feature.replace("_", " ")
    return Subject(metric, name, serving.num_images, largest.jensen_shannon)


def _select_classes(metric: str, requested: str, whole: ExampleGroup) -> Iterator[Subject]:
    classes = whole.challenger.classes
    names = [figures.name for figures in classes]
    if requested not in ("*", *names):
        raise ConfigError(
            f"evaluate.gate: of_class: there is no class {requested!r} "
            f"({suggest_name(requested, names)})."
        )
    differences = whole.differences.get(metric)
    for index, figures in enumerate(classes):
        if requested in ("*", figures.name):
            champion = whole.champion.classes[index] if whole.champion else None
            yield Subject(
                metric,
                f"class {figures.name}",
                figures.support,
                getattr(figures, metric),
                getattr(champion, metric, None),
                None if differences is None else differences[:, index],
            )


def _judge_subject(rule: Rule, subject: Subject, no_champion_reason: str) -> Iterator[RuleVerdict]:
    value, count = subject.value, subject.num_examples
    if rule.metric == "drift" and value is None:
        yield subject.build_verdict(True, "is unknown: the data set has no reference")
    elif rule.metric == "serving_skew" and value is None:
        reason = subject.unknown or "no requests to the model in service were counted"
        yield subject.build_verdict(True, f"is unknown: {reason}")
    elif rule.metric not in get_args(Measure) and count < rule.min_examples:
        found = f"{count} test example{'s' if count != 1 else ''}"
        text = f"is not judged: {found}, the rule needs {rule.min_examples} or more"
        yield subject.build_verdict(True, text)
    elif value is None:
        text = f"is undefined on these test examples{_explain_undefined(rule.name)}"
        yield subject.build_verdict(False, text)
    elif not math.isfinite(value):
        text = f"is not finite ({value}), which counts as the worst value"
        yield subject.build_verdict(False, text)
    else:
        for limit, sign, held, broken in (
            (rule.at_least, 1, "at least", "below"),
            (rule.at_most, -1, "at most", "above"),
        ):
            if limit is not None:
                passed = sign * (value - limit) >= -_TOLERANCE
                text, bound = _format_distinct(rule.metric, value, limit)
                text = f"{text} is {held if passed else broken} {bound}"
                yield subject.build_verdict(passed, text, bound=limit)
        if rule.min_skill is not None:
            yield _judge_skill(rule.min_skill, subject, value)
        for margin, sign in ((rule.max_regression, -1), (rule.min_improvement, 1)):
            if margin is not None:
                yield _judge_margin(rule, margin, sign, subject, value, no_champion_reason)


def _explain_undefined(metric: str) -> str:
    """Explains an undefined metric of a detector: no true box has its size."""
    if metric not in get_args(DetectionMetric):
        return ""
    size = metric.partition("_")[2]
    box = f"{size} box" if size in ("small", "medium", "large") else "box"
    return (
        f": no image has a {box} that a detector has to find. Correct the annotations, or add "
        "annotated images (preprocess.split)"
    )


def _judge_skill(min_skill: float, subject: Subject, value: float) -> RuleVerdict:
    """Judges the skill: the share of the way from the baseline to a perfect score."""
    metric, baseline = subject.metric, subject.baseline
    if baseline is None or baseline > 1 - _TOLERANCE:
        passed = False
        text = (
            f"{value:.4f} cannot show skill: on this test split, a model that has not looked at "
            f"the images {'has no value' if baseline is None else 'is perfect'}. "
            "Add test images of other classes, or use at_least"
        )
    else:
        skill = (value - baseline) / (1 - baseline)
        passed = skill >= min_skill - _TOLERANCE
        shown, compared = _format_distinct(metric, value, baseline)
        reached, bound = _format_distinct(metric, skill, min_skill)
        text = (
            f"{shown} is {'' if skill > _TOLERANCE else 'not '}better than a model that has not "
            f"looked at the images ({compared}): skill {reached.replace('-', '−')} is "
            f"{'at least' if passed else 'below'} {bound}"
        )
    return subject.build_verdict(passed, text, bound=min_skill)


def _judge_margin(
    rule: Rule, margin: float, sign: int, subject: Subject, value: float, no_champion_reason: str
) -> RuleVerdict:
    """Judges the difference from the champion.

    A gain is positive if the challenger is better, also for a lower-is-better metric. `sign` is 1
    for a required gain of more than the margin, -1 for an allowed loss of up to the margin.
    """
    threshold = sign * (margin + _TOLERANCE)
    terms = "required gain: more than {}" if sign > 0 else "allowed loss: {}"
    if subject.champion is None:
        text, _ = _format_distinct(rule.metric, value, value)
        text = f"{text} is not compared: {no_champion_reason}"
        return subject.build_verdict(True, text, bound=margin, is_compared=False)
    if not math.isfinite(subject.champion):
        text, _ = _format_distinct(rule.metric, value, value)
        text = f"{text} is better than the champion's, which is not finite ({subject.champion})"
        return subject.build_verdict(True, text, bound=margin)
    shown, champion = _format_distinct(rule.metric, value, subject.champion)
    if rule.confidence is not None and subject.differences is not None:
        # Each end of the interval holds at the rule's confidence by itself.
        quantiles = [1 - rule.confidence, rule.confidence]
        low, high = np.quantile(subject.differences, quantiles).tolist()
        least, most = (-high, -low) if rule.better == "min" else (low, high)
        is_within_noise = least <= threshold < most
        if is_within_noise:
            passed = rule.within_noise == "passes"
            outcome = f"within noise, which {rule.within_noise}"
        else:
            passed = least > threshold
            outcome = "shown" if passed else "refuted"
        return subject.build_verdict(
            passed,
            f"{shown} to the champion's {champion}: the difference is "
            f"at least {_format_signed(low)} and at most {_format_signed(high)}, "
            f"each with {100 * rule.confidence:g} % confidence "
            f"({terms.format(f'{margin:.4f}')}): {outcome}",
            bound=margin,
            low=low,
            high=high,
            is_within_noise=is_within_noise,
        )
    difference = value - subject.champion
    size, allowed = _format_distinct(rule.metric, abs(difference), margin)
    comparison = "equals the champion's"
    if abs(difference) > _TOLERANCE:
        side = "above" if difference > 0 else "below"
        comparison = f"is {size} {side} the champion's {champion}"
    gain = -difference if rule.better == "min" else difference
    text = f"{shown} {comparison} ({terms.format(allowed)})"
    return subject.build_verdict(gain > threshold, text, bound=margin)


def _format_signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _format_distinct(metric: str, first: float, second: float) -> tuple[str, str]:
    """Formats both with four decimals, or with more if they would look equal."""
    texts = f"{first:,.0f}", f"{second:,.0f}"
    for decimals in () if metric == "model_bytes" else range(4, 10):
        texts = f"{first:,.{decimals}f}", f"{second:,.{decimals}f}"
        if texts[0] != texts[1] or abs(first - second) <= _TOLERANCE:
            break
    return texts
