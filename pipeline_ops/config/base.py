"""The base of every section of a pipeline config, and the declarations that a field carries.

Used by the config's classes only. Only the author may set a field, unless it is declared `per_run`.
The trigger form, the check of a run's conf and the reference follow from that one declaration
(`fields.py`).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SELECTS_A_PROGRAM = "it selects a program to execute"
READ_WITH_THE_DAG = "Airflow reads it when it makes the DAG, before there is a run"
SAME_FOR_ALL_RUNS = "pages, the orphan reaper and other runs need it to be the same for all runs"


def declared(
    default: Any,
    *,
    is_operational: bool = False,
    is_per_run: bool = False,
    rank: int = 0,
    fixed: str = "",
    is_path: bool = False,
    run_pattern: str = "",
    run_words: str = "",
    selects_program: bool = False,
    **constraints: Any,
) -> Any:
    """A field with declarations. `Leaf` in `fields.py` describes each of them."""
    marks = {
        "operational": is_operational,
        "per_run": is_per_run,
        "rank": rank,
        "fixed": fixed,
        "path": is_path,
        "run_pattern": run_pattern,
        "run_words": run_words,
        "selects_program": selects_program,
    }
    return Field(
        default,
        json_schema_extra={name: value for name, value in marks.items() if value},
        **constraints,
    )


def operational(default: Any, **declarations: Any) -> Any:
    """A field that changes where, when or how patiently a result is made, and not the result."""
    return declared(default, is_operational=True, **declarations)


def per_run(default: Any, **declarations: Any) -> Any:
    """A field that a single run may set."""
    return declared(default, is_per_run=True, **declarations)


def fixed(default: Any, why: str, **declarations: Any) -> Any:
    """A field that a run can never set, even if the author lists it in `per_run`."""
    return declared(default, fixed=why, **declarations)


class FieldError(ValueError):
    """A rule over several fields that one of them breaks.

    `key` is the dotted path of that field, below the section that checks.
    """

    def __init__(self, key: str, rule: str):
        super().__init__(rule)
        self.location = tuple(int(part) if part.isdecimal() else part for part in key.split("."))


class Section(BaseModel):
    """Base of every part of the config: frozen, strict about types, and without unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    def fingerprinted(self) -> dict[str, Any]:
        """Returns this section as JSON, without its operational fields."""
        kept = {}
        for name, field in type(self).model_fields.items():
            if not (field.json_schema_extra or {}).get("operational"):
                value = getattr(self, name)
                kept[name] = (
                    value.fingerprinted()
                    if isinstance(value, Section)
                    else self.model_dump(mode="json", include={name})[name]
                )
        return kept


class TaskSection(Section):
    """The fields that every task's section has."""

    timeout_seconds: int = operational(24 * 3600, ge=1)
    """The job ends itself after this long, whatever happens to Airflow."""

    retries: int = fixed(2, READ_WITH_THE_DAG, is_operational=True, ge=0, le=20)
    """Number of further attempts after a machine failure. The first follows at once, the next after
    half a minute or more, later ones after minutes, so that a slow restart of Airflow does not use
    them up. Errors in the config or the data are never retried."""

    python: str | None = fixed(None, SELECTS_A_PROGRAM, is_operational=True, min_length=1)
    """The interpreter that runs this task's job, such as `/opt/tensorflow/bin/python`. It needs the
    packages of the job. It does not need Airflow. The versions that are installed there are part of
    the fingerprint. Null is Airflow's own interpreter."""

    pool: str | None = fixed(None, READ_WITH_THE_DAG, is_operational=True, min_length=1)
    """One of Airflow's pools, which keeps the number of running tasks within the number of hosts.
    Create it with `airflow pools set NAME SLOTS TEXT --include-deferred`. A task whose job runs is
    deferred, and only counts with this option."""

    priority: int = fixed(1, READ_WITH_THE_DAG, is_operational=True, ge=1, le=1_000_000)
    """Priority among the tasks that wait for the same pool. The highest comes first."""

    executor: str | None = fixed(None, READ_WITH_THE_DAG, is_operational=True, min_length=1)
    """One of Airflow's executors, if it has several. Null is its first one."""
