"""`schedule` of a pipeline config: what starts a run by itself.

    schedule: "0 3 * * *"                                  the clock, in UTC
    schedule: {assets: [raw_digits]}                       another DAG has an event of this asset
    schedule: {assets: [raw_digits], cron: "0 3 * * *"}    whichever comes first
    schedule: {watch_seconds: 60}                          files have come, gone or changed where the raw data lie
    schedule: null                                         nothing: runs by hand only
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from pipeline_ops.contracts.section import Section


class AssetName(Section):
    """An asset of Airflow, as the DAG that makes it names it; `name` alone stands for an asset whose URI is its name."""

    name: str = Field(min_length=1, max_length=1500)
    uri: str | None = Field(None, min_length=1, max_length=1500)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Schedule(Section):
    """What starts a run: the clock, an event of any of the assets, a change of the raw files, or whichever comes first."""

    cron: str | None = None
    assets: list[AssetName] = []
    watch_seconds: int | None = Field(None, ge=1, le=86_400)
    """How often Airflow's triggerer looks at the names, sizes and times of the raw files. When they have changed, and then not any more from one look
    to the next, a run starts: once for each change. No worker is held by it."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"cron": value} if isinstance(value, str) else {} if value is None else value

    @field_validator("cron")
    @classmethod
    def _five_fields(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("@") and len(value.split()) != 5:
            raise ValueError(f"schedule must be a cron expression of five fields, an @preset or null, got {value!r}")
        return value
