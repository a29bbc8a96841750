"""The gate: judges the challenger by the rules, in sentences with the numbers.

A pure function of the config's rules and of the figures of both models. Acting on the verdict is
the caller's part.

A comparison at a confidence has three outcomes. If the draws of the difference lie above the bound
(at the confidence), the rule holds. If they lie below, it does not. If they lie on both sides, the
test split is too small for a decision, and `within_noise` decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from pipeline_ops.artifacts.results import ClassFigures, ModelEvaluation, RuleVerdict
from pipeline_ops.config.evaluate import LOWER_IS_BETTER, ClassMetric, Measure, Rule
from pipeline_ops.config.yaml_source import nearest
from pipeline_ops.errors import ConfigError
from pipeline_ops.evaluation.groups import Group

_NOISE = 1e-9
"""Tolerance of floating-point comparisons.

0.98 is not worse than 0.985 by more than 0.005, even if binary fractions say so.
"""

NO_CHAMPION = "there is no champion to compare it with"


@dataclasses.dataclass(frozen=True)
class Subject:
    """The subject of one verdict: a metric of the whole split, of a class or of a slice.

    Values are None where they are undefined. `differences` are draws of challenger minus champion,
    if the metric has any.
    """

    name: str
    num_examples: int
    value: float | None
    champion: float | None
    differences: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The evidence for all rules.

    `why_no_champion` is the end of a sentence. `drift` is None without a reference.
    """

    whole: Group
    slices: Sequence[Group] = ()
    drift: float | None = None
    why_no_champion: str = NO_CHAMPION


def judge(rules: Sequence[Rule], evidence: Evidence) -> list[RuleVerdict]:
    """Returns a verdict for each bound of each rule and each of its subjects.

    The order is that of the config. The gate is passed if all verdicts are.

    Raises:
      ConfigError: a rule names a class or a value of a slice that does not exist.
    """
    return [
        verdict
        for rule in rules
        for subject in _subjects(rule, evidence)
        for verdict in _judge_subject(rule, subject, evidence)
    ]


def _subjects(rule: Rule, evidence: Evidence) -> Iterator[Subject]:
    whole = evidence.whole
    if rule.metric == "drift":
        yield Subject("", whole.num_examples, evidence.drift, None)
    elif rule.metric in get_args(Measure):
        yield Subject(
            "",
            whole.num_examples,
            *(
                model and model.measures.get(rule.metric)
                for model in (whole.challenger, whole.champion)
            ),
        )
    elif rule.of_class is not None:
        yield from _class_subjects(rule, whole)
    elif rule.of_slice is not None:
        yield from (
            _group_subject(rule, group) for group in _groups_of(rule.of_slice, evidence.slices)
        )
    else:
        yield _group_subject(rule, whole)


def _class_subjects(rule: Rule, whole: Group) -> Iterator[Subject]:
    names = [figures.name for figures in whole.challenger.classes]
    if rule.of_class != "*" and rule.of_class not in names:
        raise ConfigError(
            f"evaluate.gate: of_class: there is no class {rule.of_class!r}; "
            f"{nearest(rule.of_class, names)}"
        )
    for index, figures in enumerate(whole.challenger.classes):
        if rule.of_class in ("*", figures.name):
            champion = whole.champion.classes[index] if whole.champion else None
            draws = [
                d.classes[rule.metric][:, index]
                for d in (whole.draws, whole.champion_draws)
                if d and rule.metric in d.classes
            ]
            yield Subject(
                f"class {figures.name}",
                figures.support,
                _of_class(figures, rule.metric),
                _of_class(champion, rule.metric),
                _paired(draws),
            )


def _of_class(figures: ClassFigures | None, metric: ClassMetric) -> float | None:
    return None if figures is None else getattr(figures, metric)


def _groups_of(wanted: str, groups: Sequence[Group]) -> list[Group]:
    """Returns all values of `folder`, or the one of `folder=night`."""
    name, _, value = wanted.partition("=")
    found = [
        group for group in groups if group.slice == name and (not value or group.value == value)
    ]
    if not found:
        raise ConfigError(
            f"evaluate.gate: of_slice: no test example has {wanted}; "
            f"{nearest(wanted, [group.name for group in groups])}"
        )
    return found


def _group_subject(rule: Rule, group: Group) -> Subject:
    draws = [
        d.metrics[rule.metric]
        for d in (group.draws, group.champion_draws)
        if d and rule.metric in d.metrics
    ]
    return Subject(
        group.name,
        group.num_examples,
        _metric(group.challenger, rule.metric),
        _metric(group.champion, rule.metric),
        _paired(draws),
    )


def _metric(model: ModelEvaluation | None, name: str) -> float | None:
    return None if model is None else model.metrics.get(name)


def _paired(draws: Sequence[np.ndarray]) -> np.ndarray | None:
    return draws[0] - draws[1] if len(draws) == 2 else None


def _judge_subject(rule: Rule, subject: Subject, evidence: Evidence) -> Iterator[RuleVerdict]:
    say = _Speaker(rule.metric, subject)
    if rule.metric == "drift" and subject.value is None:
        yield say.verdict(True, "can't be told: the data set has nothing to be compared with")
    elif rule.metric not in get_args(Measure) and subject.num_examples < rule.min_examples:
        yield say.verdict(
            True,
            f"is not judged: {subject.num_examples} "
            f"test example{'s' if subject.num_examples != 1 else ''}, "
            f"and the rule is for {rule.min_examples} or more",
        )
    elif subject.value is None:
        yield say.verdict(False, "can't be told from these test examples")
    else:
        yield from _judge_bounds(rule, subject, evidence, say)


def _judge_bounds(
    rule: Rule, subject: Subject, evidence: Evidence, say: _Speaker
) -> Iterator[RuleVerdict]:
    if rule.at_least is not None:
        passed = subject.value >= rule.at_least - _NOISE
        value, bound = _apart(subject.value, rule.at_least, rule.metric)
        yield say.verdict(
            passed, f"{value} is {'at least' if passed else 'below'} {bound}", bound=rule.at_least
        )
    if rule.at_most is not None:
        passed = subject.value <= rule.at_most + _NOISE
        value, bound = _apart(subject.value, rule.at_most, rule.metric)
        yield say.verdict(
            passed, f"{value} is {'at most' if passed else 'above'} {bound}", bound=rule.at_most
        )
    margins = {
        "loss": rule.not_worse_than_champion_by_more_than,
        "gain": rule.better_than_champion_by_more_than,
    }
    for kind, margin in margins.items():
        if margin is not None and subject.champion is None:
            yield say.verdict(
                True,
                f"{_number(subject.value, rule.metric)} stands alone: {evidence.why_no_champion}",
                bound=margin,
            )
        elif margin is not None:
            judged = _judge_surely if rule.confidence is not None else _judge_plainly
            yield judged(rule, subject, kind, margin, say)


def _judge_plainly(
    rule: Rule, subject: Subject, kind: str, margin: float, say: _Speaker
) -> RuleVerdict:
    """Judges by the figures alone.

    The gain is positive if the challenger is better, whether the metric is higher-is-better or not.
    """
    gain = _gain(rule, subject)
    value, champion = _apart(subject.value, subject.champion, rule.metric)
    size, allowed = _apart(abs(gain), margin, rule.metric)
    is_above = subject.value > subject.champion
    where = (
        f"is {size} {'above' if is_above else 'below'} the champion's {champion}"
        if abs(gain) > _NOISE
        else "equals the champion's"
    )
    if kind == "gain":
        return say.verdict(
            gain > margin + _NOISE,
            f"{value} {where}; {'more' if rule.metric not in LOWER_IS_BETTER else 'less'} "
            f"by over {allowed} is asked",
            bound=margin,
        )
    limit = (
        f"at most {allowed} is allowed"
        if gain < -_NOISE
        else f"a loss of at most {allowed} is allowed"
    )
    return say.verdict(gain >= -margin - _NOISE, f"{value} {where}; {limit}", bound=margin)


def _judge_surely(
    rule: Rule, subject: Subject, kind: str, margin: float, say: _Speaker
) -> RuleVerdict:
    """Judges by the draws of the difference.

    Each end of their interval holds at the rule's confidence by itself.
    """
    low, high = (
        float(end)
        for end in np.quantile(subject.differences, [1 - rule.confidence, rule.confidence])
    )
    threshold = margin if kind == "gain" else -margin
    is_sure = low > threshold + _NOISE if kind == "gain" else low >= threshold - _NOISE
    is_refuted = high <= threshold + _NOISE if kind == "gain" else high < threshold - _NOISE
    is_noise = not is_sure and not is_refuted
    asked = (
        f"a gain of over {margin:.4f} is asked"
        if kind == "gain"
        else f"a loss of at most {margin:.4f} is allowed"
    )
    verdict = (
        "shown"
        if is_sure
        else "refuted"
        if is_refuted
        else f"within noise, which {rule.within_noise}"
    )
    value, champion = _apart(subject.value, subject.champion, rule.metric)
    text = (
        f"{value} to the champion's {champion}: "
        f"the difference is at least {_signed(low)} and at most {_signed(high)}, "
        f"each with {100 * rule.confidence:g} % confidence; {asked}: {verdict}"
    )
    return say.verdict(
        is_sure or (is_noise and rule.within_noise == "passes"),
        text,
        bound=margin,
        low=low,
        high=high,
        is_within_noise=is_noise,
    )


def _gain(rule: Rule, subject: Subject) -> float:
    gain = subject.value - subject.champion
    return -gain if rule.metric in LOWER_IS_BETTER else gain


@dataclasses.dataclass(frozen=True)
class _Speaker:
    """Begins the sentence of each verdict and keeps its numbers."""

    metric: str
    subject: Subject

    def verdict(self, passed: bool, text: str, **numbers: float | bool) -> RuleVerdict:
        about = f" of {self.subject.name}" if self.subject.name else ""
        return RuleVerdict(
            metric=self.metric,
            passed=passed,
            text=f"{self.metric}{about} {text}",
            subject=self.subject.name,
            value=self.subject.value,
            champion=self.subject.champion,
            **numbers,
        )


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _number(value: float, metric: str) -> str:
    return f"{value:,.0f}" if metric == "model_bytes" else f"{value:.4f}"


def _apart(first: float, second: float, metric: str) -> tuple[str, str]:
    """Formats both with four decimals, or with as many as are needed to tell them apart."""
    if metric == "model_bytes":
        return _number(first, metric), _number(second, metric)
    for decimals in range(4, 10):
        texts = f"{first:.{decimals}f}", f"{second:.{decimals}f}"
        if texts[0] != texts[1] or abs(first - second) <= _NOISE:
            break
    return texts
