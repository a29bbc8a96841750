"""`notify` of a pipeline config: the events that Airflow's notifiers report.

notify:
  - notifier: airflow.providers.smtp.notifications.smtp.SmtpNotifier
    arguments:
      to: team@example.org
      subject: "{{ notification.title }}"
      html_content: "{{ notification.html }}"
    events: [failed, gate_not_passed, drift]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline_ops.config.base import Section
from pipeline_ops.config.class_check import check_class
from pipeline_ops.config.yaml_source import locate_in_file
from pipeline_ops.errors import ConfigError

Event = Literal["failed", "gate_not_passed", "drift", "late"]


class NotifierConfig(Section):
    """One notifier of Airflow, and the events that it gets, each once per run."""

    notifier: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    """The class, by its module: one of a provider of Airflow, or your own that derives from
    `airflow.sdk.BaseNotifier`."""
    arguments: dict[str, Any] = {}
    """Arguments of the class. In its templates, `{{ notification.title }}`,
    `{{ notification.text }}` and `{{ notification.html }}` stand for the message, and
    `{{ notification.link }}` for the report in Airflow's UI. Its `notify` finds the whole
    notification in the context."""
    events: list[Event] = Field(min_length=1)
    """`failed`: the run has failed for good. `gate_not_passed`: the run publishes no model. `late`:
    the run has not ended by the pipeline's `deadline_seconds`. `drift`: the data is further from
    the champion's than `preprocess.drift` allows. With `action: fail` the run fails by it, which is
    `failed`."""


def check_notifiers(notifiers: Sequence[NotifierConfig], file: Path) -> None:
    """Checks the classes of all notifiers, when a DAG is made or checked.

    Raises:
      ConfigError: a class does not exist, or does not take its arguments.
    """
    problems = []
    for index, notify in enumerate(notifiers):
        try:
            check_class(notify.notifier, notify.arguments)
        except ValueError as problem:
            problems.append(
                f"{locate_in_file(file, ('notify', index, 'notifier'))}: "
                f"notify.{index}.notifier: {problem}"
            )
    if problems:
        raise ConfigError("\n".join(problems))
