"""The learning rate of each step, as a table."""

from __future__ import annotations

import pytest

from pipeline_ops.contracts.config_optimizer import Constant, Cosine, Exponential, Piecewise


@pytest.mark.parametrize("schedule, factors", [
    (Constant(), {0: 1, 10: 1, 1000: 1}),
    (Constant(warmup_steps=3), {0: 1 / 4, 1: 2 / 4, 2: 3 / 4, 3: 1, 4: 1}),
    (Cosine(type="cosine"), {0: 1, 25: 0.853553, 50: 0.5, 75: 0.146447, 100: 0, 120: 0}),
    (Cosine(type="cosine", warmup_steps=20, end_factor=0.1), {0: 1 / 21, 19: 20 / 21, 20: 1, 60: 0.55, 100: 0.1}),
    (Cosine(type="cosine", decay_steps=10), {0: 1, 5: 0.5, 10: 0, 90: 0}),
    (Exponential(type="exponential", decay_steps=10, factor=0.5), {0: 1, 5: 0.5 ** 0.5, 10: 0.5, 30: 0.125}),
    (Exponential(type="exponential", decay_steps=10, factor=0.5, warmup_steps=10), {9: 10 / 11, 10: 1, 20: 0.5}),
    (Piecewise(type="piecewise", boundaries_steps=[10, 20], factors=[0.1, 0.01]), {0: 1, 9: 1, 10: 0.1, 19: 0.1, 20: 0.01, 99: 0.01}),
], ids=lambda value: getattr(value, "type", ""))
def test_the_learning_rate_is_a_function_of_the_step(schedule, factors):
    from pipeline_ops.training.optimizer import schedule_factor

    assert {step: schedule_factor(schedule, step, 100) for step in factors} == pytest.approx(factors, abs=1e-6)
