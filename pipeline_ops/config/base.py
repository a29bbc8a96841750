"""The base of every part of a pipeline config, and the declarations that a field carries. Used by the config's classes only.

A field is the author's unless it is declared `per_run`. From that one declaration come the trigger form, the check of a
run's conf and the reference (`leaves.py`).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SELECTS_A_PROGRAM = "it selects a program to execute"
READ_WITH_THE_DAG = "Airflow reads it when it makes the DAG, before there is a run"
SAME_FOR_ALL_RUNS = "pages, the orphan reaper and other runs need it to be the same for all runs"


def declared(default: Any, *, is_operational: bool = False, is_per_run: bool = False, rank: int = 0, fixed: str = "",
             is_path: bool = False, run_pattern: str = "", run_words: str = "", selects_program: bool = False, **constraints: Any) -> Any:
    """A field with declarations; `Leaf` in `leaves.py` says what each of them means."""
    marks = {"operational": is_operational, "per_run": is_per_run, "rank": rank, "fixed": fixed, "path": is_path,
             "run_pattern": run_pattern, "run_words": run_words, "selects_program": selects_program}
    return Field(default, json_schema_extra={name: value for name, value in marks.items() if value}, **constraints)


def operational(default: Any, **declarations: Any) -> Any:
    """A field that cannot change what comes out, only where, when or how patiently it is made."""
    return declared(default, is_operational=True, **declarations)


def per_run(default: Any, **declarations: Any) -> Any:
    """A field that a single run may set."""
    return declared(default, is_per_run=True, **declarations)


def fixed(default: Any, why: str, **declarations: Any) -> Any:
    """A field that a run can never set, whatever the author opens."""
    return declared(default, fixed=why, **declarations)


class FieldError(ValueError):
    """A rule over several fields that one of them breaks; `key` is that field's, dotted, below the section that checks."""

    def __init__(self, key: str, rule: str):
        super().__init__(rule)
        self.location = tuple(int(part) if part.isdecimal() else part for part in key.split("."))


class Section(BaseModel):
    """Base of every part of the config: frozen, strict about types, and without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

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

    retries: int = fixed(2, READ_WITH_THE_DAG, is_operational=True, ge=0, le=20)
    """How often Airflow tries again after a machine failure: at once, then after half a minute or more, then after minutes, so that an Airflow which
    comes back slowly does not use them up. Errors in the config or the data are never retried."""

    python: str | None = fixed(None, SELECTS_A_PROGRAM, is_operational=True, min_length=1)
    """The interpreter that runs this task's job, such as `/opt/tensorflow/bin/python`; it needs the packages of the job, and not Airflow.
    The versions that are installed there are part of the fingerprint. Null: Airflow's own."""

    pool: str | None = fixed(None, READ_WITH_THE_DAG, is_operational=True, min_length=1)
    """One of Airflow's pools, so that no more tasks run than there are hosts for. Make it with `airflow pools set NAME SLOTS TEXT
    --include-deferred`: a task whose job runs is deferred, and would not count otherwise."""

    priority: int = fixed(1, READ_WITH_THE_DAG, is_operational=True, ge=1, le=1_000_000)
    """Of several tasks that wait for the same pool, that with the highest comes first."""

    executor: str | None = fixed(None, READ_WITH_THE_DAG, is_operational=True, min_length=1)
    """One of Airflow's executors, where it has several; null: its first."""
