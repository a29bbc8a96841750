"""`notify` of a pipeline config: the events that Airflow's notifiers report.

    notify:
      - notifier: airflow.providers.smtp.notifications.smtp.SmtpNotifier
        arguments:
          to: team@example.org
          subject: "{{ notification.title }}"
          html_content: "{{ notification.html }}"
        events: [failed, gate_not_passed, drift]

Airflow reads DAG files every few seconds, so a notifier is imported only when it is used, and by
`trainyard validate`.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline_ops.config.fields import Section
from pipeline_ops.config.reading import locate_in_file
from pipeline_ops.errors import ConfigError

Event = Literal["failed", "gate_not_passed", "drift"]


class NotifierConfig(Section):
    """One notifier of Airflow, and the events that it gets."""

    notifier: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    """The class, by its module: one of a provider of Airflow, or your own that derives from
    `airflow.sdk.BaseNotifier`."""
    arguments: dict[str, Any] = {}
    """Arguments of the class. In its templates, `{{ notification.title }}`,
    `{{ notification.text }}` and `{{ notification.html }}` stand for the message, and
    `{{ notification.link }}` for the report in Airflow's UI. Its `notify` finds the whole
    notification in the context."""
    events: list[Event] = Field(min_length=1)
    """`failed`: the run has failed for good. `gate_not_passed`: the run publishes no model.
    `drift`: the data is further from the champion's than `preprocess.drift` allows, or the requests
    that `evaluate.serving_skew` compares are that far from the data. With `action: fail` the run
    fails by a drift of the data, which is `failed`."""


def make_notifier(config: NotifierConfig) -> Any:
    """Imports the class of a notifier and makes one. Raises whatever the class raises."""
    module, _, name = config.notifier.rpartition(".")
    return getattr(importlib.import_module(module), name)(**copy.deepcopy(config.arguments))


def check_notifiers(notifiers: Sequence[NotifierConfig], file: Path) -> None:
    """Makes each notifier. Raises ConfigError: one cannot be imported, or made like this."""
    problems = []
    for index, notify in enumerate(notifiers):
        try:
            make_notifier(notify)
        except Exception as error:  # of code that is not ours
            where = locate_in_file(file, ("notify", index, "notifier"))
            problems.append(
                f"{where}: notify.{index}.notifier: {notify.notifier} cannot be used: "
                f"{type(error).__name__}: {error}. Correct it or its arguments, or install its "
                "package."
            )
    if problems:
        raise ConfigError("\n".join(problems))
