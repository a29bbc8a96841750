"""Checks of cron expressions and time zones, with croniter and zoneinfo, as in Airflow.

Used by `schedule.py`. croniter comes with Airflow. An interpreter without Airflow reads only
configs that were checked before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import zoneinfo

from pipeline_ops.config.yaml_source import suggest_name

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
