"""The gate: judges the challenger by the rules, in sentences with the numbers.

A pure function of the config's rules and of the figures of both models. The caller acts on the
verdict.

A comparison at a confidence has three outcomes. If the draws of the difference lie above the bound
(at the confidence), the rule holds. If they lie below, it does not. If they lie on both sides, the
test split is too small for a decision, and `within_noise` decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from pipeline_ops.artifacts.results import ModelEvaluation, RuleVerdict
from pipeline_ops.config.evaluate import LOWER_IS_BETTER, Measure, Rule
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.errors import ConfigError
from pipeline_ops.evaluation.groups import Group

_TOLERANCE = 1e-9
"""Tolerance of floating-point comparisons.

0.98 is not worse than 0.985 by more than 0.005, even if the binary fractions are.
"""


@dataclasses.dataclass(frozen=True)
class Subject:
    """The subject of a verdict: a metric of the whole split, of a class or of a slice.

    Values are None where they are undefined. `differences` are draws of challenger minus champion,
    if the metric has any.
    """

    metric: str
    name: str
    num_examples: int
    value: float | None
    champion: float | None
    differences: np.ndarray | None = None
    baseline: float | None = None

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


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The evidence for all rules.

    `no_champion_reason` is the end of a sentence. `drift` is None without a reference.
    """

    whole: Group
    slices: Sequence[Group] = ()
    drift: float | None = None
    no_champion_reason: str = ""


def judge(rules: Sequence[Rule], evidence: Evidence) -> list[RuleVerdict]:
    """Returns a verdict for each bound of each rule and each of its subjects.

    The order is that of the config. The gate is passed if all verdicts are.

    Raises:
      ConfigError: a rule names a class or a value of a slice that does not exist.
    """
    return [
        verdict
        for rule in rules
        for subject in _select_subjects(rule, evidence)
        for verdict in _judge_subject(rule, subject, evidence.no_champion_reason)
    ]


def _select_subjects(rule: Rule, evidence: Evidence) -> Iterator[Subject]:
    whole = evidence.whole
    if rule.metric == "drift":
        yield Subject(rule.metric, "", whole.num_examples, evidence.drift, None)
    elif rule.of_class is not None:
        yield from _select_class_subjects(rule, rule.of_class, whole)
    else:
        groups = _find_groups(rule.of_slice, evidence.slices) if rule.of_slice else [whole]
        for group in groups:
            yield Subject(
                rule.metric,
                group.name,
                group.num_examples,
                _read_metric(group.challenger, rule.metric),
                _read_metric(group.champion, rule.metric),
                group.differences.get(rule.metric),
                group.baseline.get(rule.metric),
            )


def _select_class_subjects(rule: Rule, requested: str, whole: Group) -> Iterator[Subject]:
    names = [figures.name for figures in whole.challenger.classes]
    if requested not in ("*", *names):
        raise ConfigError(
            f"evaluate.gate: of_class: there is no class {requested!r} "
            f"({suggest_name(requested, names)})."
        )
    differences = whole.differences.get(rule.metric)
    for index, figures in enumerate(whole.challenger.classes):
        if requested in ("*", figures.name):
            champion = whole.champion.classes[index] if whole.champion else None
            yield Subject(
                rule.metric,
                f"class {figures.name}",
                figures.support,
                getattr(figures, rule.metric),
                getattr(champion, rule.metric, None),
                None if differences is None else differences[:, index],
            )


def _find_groups(requested: str, groups: Sequence[Group]) -> list[Group]:
    """Returns all values of `folder`, or the one of `folder=night`."""
    found = [group for group in groups if requested in (group.slice, group.name)]
    if not found:
        raise ConfigError(
            f"evaluate.gate: of_slice: no test example has {requested} "
            f"({suggest_name(requested, [group.name for group in groups])})."
        )
    return found


def _read_metric(model: ModelEvaluation | None, name: str) -> float | None:
    return None if model is None else (model.metrics | model.measures).get(name)


def _judge_subject(rule: Rule, subject: Subject, no_champion_reason: str) -> Iterator[RuleVerdict]:
    if rule.metric == "drift" and subject.value is None:
        yield subject.build_verdict(True, "is unknown: the data set has no reference")
    elif rule.metric not in get_args(Measure) and subject.num_examples < rule.min_examples:
        yield subject.build_verdict(
            True,
            f"is not judged: {subject.num_examples} "
            f"test example{'s' if subject.num_examples != 1 else ''}, "
            f"the rule needs {rule.min_examples} or more",
        )
    elif subject.value is None:
        yield subject.build_verdict(False, "is undefined on these test examples")
    else:
        yield from _judge_bounds(rule, subject, subject.value)
        if rule.min_skill is not None:
            yield _judge_skill(rule.metric, rule.min_skill, subject, subject.value)
        yield from _judge_margins(rule, subject, subject.value, no_champion_reason)


def _judge_bounds(rule: Rule, subject: Subject, value: float) -> Iterator[RuleVerdict]:
    for limit, sign, held, broken in (
        (rule.at_least, 1, "at least", "below"),
        (rule.at_most, -1, "at most", "above"),
    ):
        if limit is not None:
            passed = sign * (value - limit) >= -_TOLERANCE
            text, bound = _format_distinct(rule.metric, value, limit)
            yield subject.build_verdict(
                passed, f"{text} is {held if passed else broken} {bound}", bound=limit
            )


def _judge_skill(metric: str, min_skill: float, subject: Subject, value: float) -> RuleVerdict:
    """Judges by the part of the way from the baseline to a perfect score."""
    if subject.baseline is None or subject.baseline > 1 - _TOLERANCE:
        reached = "has no value" if subject.baseline is None else "is perfect"
        return subject.build_verdict(
            False,
            f"{value:.4f} cannot show skill: on this test split, a model that has not looked at "
            f"the images {reached}. Add test images of other classes, or use at_least",
            bound=min_skill,
        )
    skill = (value - subject.baseline) / (1 - subject.baseline)
    passed = skill >= min_skill - _TOLERANCE
    shown, baseline = _format_distinct(metric, value, subject.baseline)
    reached, bound = _format_distinct(metric, skill, min_skill)
    return subject.build_verdict(
        passed,
        f"{shown} is {'' if skill > _TOLERANCE else 'not '}better than a model that has not "
        f"looked at the images ({baseline}): skill {reached.replace('-', '−')} is "
        f"{'at least' if passed else 'below'} {bound}",
        bound=min_skill,
    )


def _judge_margins(
    rule: Rule, subject: Subject, value: float, no_champion_reason: str
) -> Iterator[RuleVerdict]:
    """Judges by the comparison with the champion.

    A gain is positive if the challenger is better, also for a lower-is-better metric.
    """
    for margin, sign, terms in (
        (rule.max_regression, -1, "allowed loss: {}"),
        (rule.min_improvement, 1, "required gain: more than {}"),
    ):
        if margin is None:
            continue
        threshold = sign * (margin + _TOLERANCE)
        if subject.champion is None:
            text, _ = _format_distinct(rule.metric, value, value)
            yield subject.build_verdict(
                True, f"{text} is not compared: {no_champion_reason}", bound=margin
            )
            continue
        texts = _format_distinct(rule.metric, value, subject.champion)
        difference = value - subject.champion
        if rule.confidence is not None and subject.differences is not None:
            # Each end of the interval holds at the rule's confidence by itself.
            quantiles = [1 - rule.confidence, rule.confidence]
            low, high = np.quantile(subject.differences, quantiles).tolist()
            passed, outcome = _judge_interval(rule, low, high, threshold)
            yield subject.build_verdict(
                passed,
                f"{texts[0]} to the champion's {texts[1]}: the difference is "
                f"at least {_format_signed(low)} and at most {_format_signed(high)}, "
                f"each with {100 * rule.confidence:g} % confidence "
                f"({terms.format(f'{margin:.4f}')}): {outcome}",
                bound=margin,
                low=low,
                high=high,
                is_within_noise=low <= threshold < high,
            )
        else:
            size, allowed = _format_distinct(rule.metric, abs(difference), margin)
            comparison = (
                f"is {size} {'above' if difference > 0 else 'below'} the champion's {texts[1]}"
                if abs(difference) > _TOLERANCE
                else "equals the champion's"
            )
            gain = -difference if rule.metric in LOWER_IS_BETTER else difference
            yield subject.build_verdict(
                gain > threshold, f"{texts[0]} {comparison} ({terms.format(allowed)})", bound=margin
            )


def _judge_interval(rule: Rule, low: float, high: float, threshold: float) -> tuple[bool, str]:
    if low <= threshold < high:
        return rule.within_noise == "passes", f"within noise, which {rule.within_noise}"
    return low > threshold, "shown" if low > threshold else "refuted"


def _format_signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _format_distinct(metric: str, first: float, second: float) -> tuple[str, str]:
    """Formats both with four decimals, or with as many as distinguish them."""
    texts = f"{first:,.0f}", f"{second:,.0f}"
    for decimals in () if metric == "model_bytes" else range(4, 10):
        texts = f"{first:,.{decimals}f}", f"{second:,.{decimals}f}"
        if texts[0] != texts[1] or abs(first - second) <= _TOLERANCE:
            break
    return texts
