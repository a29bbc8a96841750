"""How a task of a run ended, for everybody who is not Airflow: the command line, the report, the UI."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contracts.files import read_json, write_json


class TaskRecord(BaseModel):
    """Written by the operator into the run's folder; `attempt` is the folder of the last job process, if one was started."""

    model_config = ConfigDict(frozen=True)

    state: Literal["success", "failed", "skipped"]
    cached: bool = False
    reason: str = ""
    """Why the job ran, or why it did not have to."""
    manifest: str | None = None
    message: str = ""
    attempt: str | None = None
    exit_code: int | None = None


def write_record(path: Path, record: TaskRecord) -> None:
    write_json(path, record.model_dump(mode="json"))


def read_record(path: Path) -> TaskRecord | None:
    value = read_json(path)
    return None if value is None else TaskRecord.model_validate(value)
