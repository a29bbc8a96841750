"""What viewers see of a config: never the arguments of a notifier or the options of a runner."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.reading import YamlCopy, find_yaml, format_yaml, hide_secrets

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


HIDDEN = """
notify: [{notifier: a.Mail, events: [failed], arguments: {password: hunter2}}]
"""


def test_what_is_shown_is_a_config_on_a_host_without_the_file(tmp_path):
    """The API server reads it from the documentation of the DAG."""
    text = DIGITS.read_text().replace(
        "preprocess:\n",
        "preprocess:\n  runner: {name: spark, endpoint: 'a:1', shared_disk: true, options: "
        "{token: hunter2}}\n",
    )
    documentation = f"# digits\n\n{format_yaml(hide_secrets(text + HIDDEN))}"
    elsewhere = tmp_path / "elsewhere" / "digits.yaml"
    copy = YamlCopy(elsewhere, find_yaml(documentation))
    config = load_config(copy)
    assert "hunter2" not in copy.text and config.file == elsewhere
    file = tmp_path / "digits.yaml"
    file.write_text(text + HIDDEN)
    assert config.train == load_config(file).train
    assert config.notify == [] and config.preprocess.runner.options == {}
    assert load_config(copy, {"train.epochs": 7}).train.epochs == 7


def test_the_copy_of_a_config_needs_no_hosts_file(tmp_path):
    text = DIGITS.read_text().replace("train:\n", "train:\n  hosts: lab\n")
    assert load_config(YamlCopy(tmp_path / "digits.yaml", text)).train.hosts == "lab"


def test_a_documentation_without_a_config_has_none():
    assert find_yaml("# digits is broken\n") == ""
