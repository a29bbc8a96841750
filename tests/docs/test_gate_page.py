"""The page on evaluation: its example is a config that works, and names every metric that a rule
may have."""

from __future__ import annotations

import re
from typing import get_args

import yaml

from pipeline_ops.config.evaluate import Evaluate, Rule
from pipeline_ops.contract.source_code import CODE_ROOT

PAGE = (CODE_ROOT / "docs" / "gate.md").read_text()


def test_the_example_is_a_config():
    text, section = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = Evaluate.model_validate(yaml.safe_load(text)["evaluate"])
    assert len(config.gate) == 13 and len(config.slices) == 3 and config.approval is not None
    values = yaml.safe_load(text)["evaluate"] | yaml.safe_load(section)["evaluate"]
    assert Evaluate.model_validate(values).serving_skew is not None


def test_every_metric_and_every_bound_is_named():
    metrics = get_args(Rule.model_fields["metric"].annotation)
    assert len(metrics) == 30 and [name for name in metrics if f"`{name}`" not in PAGE] == []
    assert [name for name in Rule.model_fields if name not in PAGE] == []
