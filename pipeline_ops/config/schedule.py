"""`schedule` of a pipeline config: the triggers of a run.

    schedule: "0 3 * * *"                                  the clock, in UTC
    schedule: {cron: "0 3 * * *", timezone: Europe/Berlin} the clock of a time zone
    schedule: {assets: [raw_digits]}                       another DAG has an event of this asset
    schedule: {assets: [raw_digits], cron: "0 3 * * *"}    the event or the clock, the first of them
    schedule: {watch_seconds: 60}                          raw files were added, removed or changed
    schedule: null                                         no trigger: runs by hand only

Cron expressions and time zones are checked with croniter and zoneinfo, as in Airflow. croniter
comes with Airflow. An interpreter without Airflow reads only configs that were checked before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import zoneinfo
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pipeline_ops.config.fields import (
    FieldError,
    JsonSchema,
    Section,
    add_forms,
    advanced_field,
)
from pipeline_ops.config.reading import suggest_name

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")

_FORM = f"five fields (minute hour day month weekday), such as '0 3 * * *', or {', '.join(PRESETS)}"
_RANDOM = re.compile(r"(?i)(?<![a-z])[hr](?![a-z])")
"""Times that croniter chooses at random, at each parse of the DAG file again."""
_START = dt.datetime(2024, 1, 1)


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

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        add_forms(schema, {"type": "string"})

    @field_validator("name", "uri")
    @classmethod
    def _validate_name(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if value.isspace() or value in _RESERVED_NAMES or value.startswith("airflow:"):
            raise ValueError(
                f"{value!r} cannot name an asset: it is blank, or reserved by Airflow. "
                "Choose another name."
            )
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
    files. It starts one run per change, once two successive checks agree, and uses no worker
    slot."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        return {"cron": value} if isinstance(value, str) else {} if value is None else value

    @classmethod
    def extend_json_schema(cls, schema: JsonSchema) -> None:
        add_forms(schema, {"type": ["string", "null"]})

    @field_validator("cron")
    @classmethod
    def _validate_cron(cls, value: str | None) -> str | None:
        """Rejects an expression that is not valid, or never occurs."""
        if value is None or value in PRESETS:
            return value
        problem = ""
        if len(value.split()) != 5 or _RANDOM.search(value):
            problem = f"got {value[:100]!r}"
        else:
            with contextlib.suppress(ImportError):
                # It takes 40 ms. Airflow has imported it already.
                from croniter import croniter

                try:
                    croniter(value, _START).get_next(dt.datetime)
                except (ValueError, ArithmeticError, LookupError) as error:
                    problem = str(error)
        if problem:
            raise ValueError(f"{problem}. Give {_FORM}.")
        return value

    @field_validator("timezone")
    @classmethod
    def _validate_timezone(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            found = suggest_name(value, zoneinfo.available_timezones())
            cure = found if found.startswith("the nearest") else "name one as in Europe/Berlin"
            raise ValueError(f"there is no time zone {value[:100]!r}; {cure}") from None
        return value

    @model_validator(mode="after")
    def _validate_timezone_has_cron(self) -> Schedule:
        if self.cron is None and "timezone" in self.model_fields_set:
            raise FieldError(
                "timezone",
                "is for a cron expression, and there is none. Give cron, or remove the time zone.",
            )
        return self
