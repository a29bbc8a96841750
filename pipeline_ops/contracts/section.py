"""The base of every part of a pipeline config, and the mark of what can't change what comes out. Used by the config's classes only."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def operational(default: Any, **constraints: Any) -> Any:
    """A field that cannot change what comes out, only where, when or how patiently it is made."""
    return Field(default, json_schema_extra={"operational": True}, **constraints)


class Section(BaseModel):
    """Base of every part of the config: frozen, strict about types, and without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    def fingerprinted(self) -> dict[str, Any]:
        """This section as JSON, without what is operational."""
        kept = {}
        for name, field in type(self).model_fields.items():
            if not (field.json_schema_extra or {}).get("operational"):
                value = getattr(self, name)
                kept[name] = value.fingerprinted() if isinstance(value, Section) else self.model_dump(mode="json", include={name})[name]
        return kept


class TaskSection(Section):
    """What every task's section has."""

    timeout_seconds: int = operational(24 * 3600, ge=1)
    """The job ends itself after this long, whatever happens to Airflow."""

    retries: int = operational(2, ge=0, le=20)
    """How often Airflow tries again after a machine failure: at once, then after half a minute or more, then after minutes, so that an Airflow which
    comes back slowly does not use them up. Errors in the config or the data are never retried."""

    python: str | None = operational(None, min_length=1)
    """The interpreter that runs this task's job, such as `/opt/tensorflow/bin/python`; it needs the packages of the job, and not Airflow.
    The versions that are installed there are part of the fingerprint. Null: Airflow's own."""

    pool: str | None = operational(None, min_length=1)
    """One of Airflow's pools, so that no more tasks run than there are hosts for. Make it with `airflow pools set NAME SLOTS TEXT
    --include-deferred`: a task whose job runs is deferred, and would not count otherwise."""

    priority: int = operational(1, ge=1, le=1_000_000)
    """Of several tasks that wait for the same pool, that with the highest comes first."""

    executor: str | None = operational(None, min_length=1)
    """One of Airflow's executors, where it has several; null: its first."""
