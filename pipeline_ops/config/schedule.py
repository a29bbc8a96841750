"""Checks of cron expressions and time zones, with croniter and zoneinfo, as in Airflow.

Used by `schedule.py`. croniter comes with Airflow. An interpreter without Airflow reads only
configs that were checked before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import zoneinfo
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pipeline_ops.config.fields import FieldError, Section, advanced_field
from pipeline_ops.config.reading import suggest_name

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")

_FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of the month", "1 to 31, or L"),
    ("month", "1 to 12, or jan to dec"),
    ("day of the week", "0 to 7, or sun to sat; 0 and 7 are Sunday"),
)
_MAX_LENGTH = 200
_RANDOM_EXPRESSION = re.compile(r"(?i)(?<![a-z])[hr](?![a-z])")
_START = dt.datetime(2024, 1, 1)


def check_cron(value: str) -> str:
    """Returns the expression.

    Raises:
      ValueError: the expression is not valid. The message names the part that is wrong and the
        allowed values.
    """
    if value.startswith("@"):
        if value not in PRESETS:
            raise ValueError(f"unknown preset {value!r}; {suggest_name(value, PRESETS)}")
        return value
    if len(value.split()) != len(_FIELDS) or len(value) > _MAX_LENGTH:
        raise ValueError(
            f"got {value[:_MAX_LENGTH]!r}. Give five fields (minute hour day month weekday), such "
            f"as '0 3 * * *', or one of {', '.join(PRESETS)}."
        )
    with contextlib.suppress(ImportError):
        _check_fields(value.split())
    return value


def _check_fields(fields: list[str]) -> None:
    for number, (name, allowed) in enumerate(_FIELDS):
        probe = ["*"] * len(_FIELDS)
        probe[number] = fields[number]
        if _RANDOM_EXPRESSION.search(fields[number]) or not _is_valid(probe):
            raise ValueError(
                f"the {name} {fields[number]!r} of {' '.join(fields)!r} is not valid. "
                f"Give {allowed}, or * for each."
            )
    if not _is_valid(fields, must_occur=True):
        raise ValueError(
            f"{' '.join(fields)!r} names a day that does not exist. Change the day or the month."
        )


def _is_valid(fields: list[str], must_occur: bool = False) -> bool:
    from croniter import (
        croniter,  # takes 40 ms; needed for cron expressions only, and already imported in Airflow
    )

    try:
        found = croniter(" ".join(fields), _START)
        if must_occur:
            found.get_next(dt.datetime)
    except (ValueError, ArithmeticError, LookupError):  # croniter's own errors are ValueErrors
        return False
    return True


def check_time_zone(value: str) -> str:
    """Returns the name of a time zone. Raises ValueError with the nearest name."""
    try:
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        found = suggest_name(value, known)
        suggestion = found if found.startswith("the nearest") else "name one as in Europe/Berlin"
        raise ValueError(f"there is no time zone {value[:_MAX_LENGTH]!r}; {suggestion}") from None
    return value


_RESERVED_NAMES = ("self", "context")
"""Names of assets that Airflow reserves."""


class AssetName(Section):
    """An asset of Airflow, named as in the DAG that makes it.

    `name` alone stands for an asset whose URI is its name.
    """

    name: str = Field(min_length=1, max_length=1500)
    uri: str | None = Field(None, min_length=1, max_length=1500)

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("name", "uri")
    @classmethod
    def _validate_name(cls, value: str | None) -> str | None:
        if value is not None and (
            value.isspace() or value in _RESERVED_NAMES or value.startswith("airflow:")
        ):
            raise ValueError(
                f"{value!r} cannot name an asset: it is blank, or reserved by Airflow. "
                "Choose another name."
            )
        if value is not None:
            urlsplit(value)
        return value


class Schedule(Section):
    """The triggers of a run. The first that occurs starts it.

    They are the clock, an event of any of the assets, and a change of the raw files.
    """

    cron: str | None = None
    timezone: str = advanced_field("UTC")
    """The time zone of the cron expression, such as `Europe/Berlin`. Data intervals in
    `preprocess.source.path` need UTC."""
    assets: list[AssetName] = advanced_field([])
    watch_seconds: int | None = advanced_field(None, ge=1, le=86_400)
    """The interval at which Airflow's triggerer looks at the names, sizes and times of the raw
    files. A run starts once for each change, after a look that finds no further change. It holds no
    worker."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        return {"cron": value} if isinstance(value, str) else {} if value is None else value

    @field_validator("cron")
    @classmethod
    def _validate_cron(cls, value: str | None) -> str | None:
        return value if value is None else check_cron(value)

    @field_validator("timezone")
    @classmethod
    def _validate_timezone(cls, value: str) -> str:
        return check_time_zone(value)

    @model_validator(mode="after")
    def _validate_timezone_has_cron(self) -> Schedule:
        if self.cron is None and "timezone" in self.model_fields_set:
            raise FieldError(
                "timezone",
                "is for a cron expression, and there is none. Give cron, or remove the time zone.",
            )
        return self
