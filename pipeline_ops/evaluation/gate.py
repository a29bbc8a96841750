"""The gate: which rules the challenger keeps, in sentences with the numbers.

A pure function of the config's rules and of the figures of both models. Who acts on the verdict is none of its
business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline_ops.contracts.config_evaluate import Rule
from pipeline_ops.contracts.figures import RuleVerdict

_NOISE = 1e-9
"""Of floating point: 0.98 is not worse than 0.985 by more than 0.005, whatever binary fractions say."""

NO_CHAMPION = "there is no champion to compare it with"


def judge(rules: Sequence[Rule], challenger: Mapping[str, float], champion: Mapping[str, float] | None,
          why_no_champion: str = NO_CHAMPION) -> list[RuleVerdict]:
    """A verdict for each bound of each rule, in the order of the config. The gate is passed if all of them are.

    Args:
      rules: from the config.
      challenger: its metrics by name.
      champion: its metrics on the same examples, or None where there is nothing to be compared with.
      why_no_champion: then, the reason, as the end of a sentence.
    """
    return [verdict for rule in rules for verdict in _judge_rule(rule, challenger, champion, why_no_champion)]


def _judge_rule(rule: Rule, challenger: Mapping[str, float], champion: Mapping[str, float] | None, why_no_champion: str) -> Iterator[RuleVerdict]:
    value = challenger[rule.metric]
    if rule.at_least is not None:
        yield _judge_minimum(rule.metric, value, rule.at_least)
    if rule.not_worse_than_champion_by_more_than is None:
        return
    if champion is None:
        yield RuleVerdict(metric=rule.metric, passed=True, text=f"{rule.metric} {value:.4f} stands alone: {why_no_champion}")
    else:
        yield _judge_loss(rule.metric, value, champion[rule.metric], rule.not_worse_than_champion_by_more_than)


def _judge_minimum(metric: str, value: float, minimum: float) -> RuleVerdict:
    passed = value >= minimum - _NOISE
    value_text, minimum_text = _apart(value, minimum)
    return RuleVerdict(metric=metric, passed=passed, text=f"{metric} {value_text} is {'at least' if passed else 'below'} {minimum_text}")


def _judge_loss(metric: str, value: float, champion: float, allowed: float) -> RuleVerdict:
    loss = champion - value
    value_text, champion_text = _apart(value, champion)
    loss_text, allowed_text = _apart(abs(loss), allowed)
    if abs(loss) <= _NOISE:
        comparison = f"equals the champion's; a loss of at most {allowed_text} is allowed"
    elif loss < 0:
        comparison = f"is {loss_text} above the champion's {champion_text}; a loss of at most {allowed_text} is allowed"
    else:
        comparison = f"is {loss_text} below the champion's {champion_text}; at most {allowed_text} is allowed"
    return RuleVerdict(metric=metric, passed=loss <= allowed + _NOISE, text=f"{metric} {value_text} {comparison}")


def _apart(first: float, second: float) -> tuple[str, str]:
    """Both with four decimals, or with as many as it takes to see which is the larger one."""
    for decimals in range(4, 10):
        texts = f"{first:.{decimals}f}", f"{second:.{decimals}f}"
        if texts[0] != texts[1] or abs(first - second) <= _NOISE:
            break
    return texts
