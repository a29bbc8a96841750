"""What viewers see of a config: never the arguments of a notifier or the options of a runner."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline_ops.config.reading import hide_secrets

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
BLOCK = """\
pipeline: digits
notify:
  - notifier: a.Mail
    arguments:
      to: team
      # a comment
      password: hunter2
    events: [failed]
  - notifier: a.Slack
    events: [late]
    arguments:
      token: |
        hunter2
        hunter2

preprocess:
  runner:
    name: flink
    options:
      token: hunter2
  shards: 8  # eight
"""


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        (
            "notify: [{notifier: a.b, events: [failed], arguments: {token: hunter2}}]\n"
            "pipeline: digits\n"
        ),
        (
            "notify:\n- notifier: a.b\n  arguments: {token: hunter2}  # why\n  events: [failed]\n"
            "pipeline: digits"
        ),
        (
            "notify:\n- &base {arguments: {token: hunter2}, notifier: a.b}\n- {<<: *base}\n"
            "pipeline: digits"
        ),
        (
            "base: &base {token: hunter2}\nnotify:\n- {arguments: *base, notifier: a.b}\n"
            "pipeline: digits"
        ),
    ],
)
def test_secrets_are_not_shown(text):
    """F17."""
    shown = hide_secrets(text)
    assert "hunter2" in text and "hunter2" not in shown
    assert "pipeline: digits" in shown and "(not shown)" in shown


def test_everything_else_stays_as_it_is():
    shown = hide_secrets(BLOCK)
    assert "  shards: 8  # eight\n" in shown
    value = yaml.safe_load(shown)
    assert [entry["arguments"] for entry in value["notify"]] == ["(not shown)", "(not shown)"]
    assert value["preprocess"] == {
        "runner": {"name": "flink", "options": "(not shown)"},
        "shards": 8,
    }


def test_a_config_without_secrets_is_shown_as_it_is():
    text = "pipeline: digits  # a comment\n\ntrain: {epochs: 3}\n"
    assert hide_secrets(text) == text
