"""How a task of a run ended, for everybody who is not Airflow: the command line, the report, the UI."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contracts.figures import REPORT
from pipeline_ops.contracts.files import read_json, write_json
from pipeline_ops.contracts.manifest import read_manifest


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


def find_report(evaluate: str | None, export: str | None) -> Path | None:
    """The page of a run, by the URIs of the manifests of its evaluation and its export: export's, which also says what was published, if it is
    about this very evaluation, and else the evaluation's own. None where there is none."""
    if evaluate is None:
        return None
    is_of_this = export is not None and Path(export).exists() and read_manifest(export).inputs["evaluate"].uri == evaluate
    file = Path(export if is_of_this else evaluate).parent / REPORT
    return file if file.is_file() else None
