"""The base of every section of a pipeline config, and the declarations that a field carries.

Used by the config's classes only. Only the author may set a field, unless it is declared `per_run`.
The trigger form, the check of a run's conf and the reference follow from that one declaration
(`fields.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

SELECTS_A_PROGRAM = "it selects a program to execute"
READ_WITH_THE_DAG = "Airflow reads it when it makes the DAG, before there is a run"
SAME_FOR_ALL_RUNS = "pages, the orphan reaper and other runs need it to be the same for all runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declarations:
    """The declarations of a field besides its type and its bounds.

    Attributes:
      is_operational: the value cannot change the result.
      is_per_run: a run may set it.
      is_advanced: few pipelines need it. The form and the reference mark it.
      rank: the position at the top of the form, for fields that change often. 0 for other fields.
      fixed: the reason why a run can never set it. Empty if the author may open it.
      is_path: a path or a URI, for which `per_run` takes globs.
      run_pattern: the values that a run may set it to. Empty for any valid value.
      run_pattern_description: a description of `run_pattern` in words.
      selects_program: the value selects the code that a host runs.
    """

    is_operational: bool = False
    is_per_run: bool = False
    is_advanced: bool = False
    rank: int = 0
    fixed: str = ""
    is_path: bool = False
    run_pattern: str = ""
    run_pattern_description: str = ""
    selects_program: bool = False


_DECLARATIONS = frozenset(field.name for field in dataclasses.fields(Declarations))


def config_field(default: Any, **options: Any) -> Any:
    """A field with `Declarations`. The other options go to pydantic."""
    declared = {name: options.pop(name) for name in _DECLARATIONS & options.keys()}
    return Field(default, json_schema_extra=declared, **options)


def get_declarations(field: FieldInfo) -> Mapping[str, Any]:
    """The declarations of a field that are not at their defaults, by name."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def operational_field(default: Any, **declarations: Any) -> Any:
    """A field about resources or timeouts. It cannot change the result."""
    return config_field(default, is_operational=True, **declarations)


def advanced_field(default: Any, **declarations: Any) -> Any:
    """A field that few pipelines need. No shipped config sets it."""
    return config_field(default, is_advanced=True, **declarations)


def per_run_field(default: Any, **declarations: Any) -> Any:
    """A field that a single run may set."""
    return config_field(default, is_per_run=True, **declarations)


def fixed_field(default: Any, reason: str, **declarations: Any) -> Any:
    """A field that a run can never set, even if the author lists it in `per_run`."""
    return config_field(default, fixed=reason, **declarations)


class FieldError(ValueError):
    """A rule over several fields that one of them breaks.

    `key` is the dotted path of that field, below the section that checks.
    """

    def __init__(self, key: str, rule: str):
        super().__init__(rule)
        self.location = tuple(int(part) if part.isdecimal() else part for part in key.split("."))


class Section(BaseModel):
    """Base of every part of the config: frozen, strict about types, and without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def to_fingerprint_dict(self) -> dict[str, Any]:
        """Returns this section as JSON, without its operational fields."""
        values = {}
        for name, field in type(self).model_fields.items():
            if not get_declarations(field).get("is_operational"):
                value = getattr(self, name)
                values[name] = (
                    value.to_fingerprint_dict()
                    if isinstance(value, Section)
                    else self.model_dump(mode="json", include={name})[name]
                )
        return values


class TaskSection(Section):
    """The fields that every task's section has."""

    timeout_seconds: int = operational_field(24 * 3600, ge=1)
    """The job ends itself after this long, whatever happens to Airflow."""

    retries: int = fixed_field(
        2, READ_WITH_THE_DAG, is_operational=True, ge=0, le=20, is_advanced=True
    )
    """Number of further attempts after a machine failure. The first follows at once, the next after
    half a minute or more, later ones after minutes, so that a slow restart of Airflow does not use
    them up. Errors in the config or the data are never retried."""

    python: str | None = fixed_field(
        None, SELECTS_A_PROGRAM, is_operational=True, min_length=1, is_advanced=True
    )
    """The interpreter that runs this task's job, such as `/opt/tensorflow/bin/python`. It needs the
    packages of the job. It does not need Airflow. The versions that are installed there are part of
    the fingerprint. Null is Airflow's own interpreter."""

    runs_on: str | None = fixed_field(
        None, SELECTS_A_PROGRAM, is_operational=True, min_length=1, is_advanced=True
    )
    """A file in the folder `hosts/` next to the pipeline's YAML, without `.yaml`. It says where
    this task's job runs: on a host over ssh, in a container, in a pod, or in a Slurm job. Null is
    the host of the Airflow worker."""

    pool: str | None = fixed_field(
        None, READ_WITH_THE_DAG, is_operational=True, min_length=1, is_advanced=True
    )
    """One of Airflow's pools, which keeps the number of running tasks within the number of hosts.
    Create it with `airflow pools set NAME SLOTS TEXT --include-deferred`. A task whose job runs is
    deferred, and only counts with this option."""

    priority: int = fixed_field(
        1, READ_WITH_THE_DAG, is_operational=True, ge=1, le=1_000_000, is_advanced=True
    )
    """Priority among the tasks that wait for the same pool. The highest comes first."""

    executor: str | None = fixed_field(
        None, READ_WITH_THE_DAG, is_operational=True, min_length=1, is_advanced=True
    )
    """One of Airflow's executors, if it has several. Null is its first one."""
