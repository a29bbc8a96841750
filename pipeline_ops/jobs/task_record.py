"""The record of how a task of a run ended, for readers outside Airflow.

Readers are the command line, the report and the UI.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import REPORT
from pipeline_ops.storage.atomic import write_json
from pipeline_ops.storage.parsing import read_json_as


class TaskRecord(BaseModel):
    """The record that the operator writes into the run's folder.

    `attempt` is the folder of the last job process, if one was started.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["success", "failed", "skipped"]
    cached: bool = False
    reason: str = ""
    """The reason why the job ran, or why it was not necessary."""
    manifest: str | None = Field(None, max_length=8192)
    message: str = ""
    attempt: str | None = Field(None, max_length=8192)
    exit_code: int | None = Field(None, ge=-1000, le=1000)


def write_record(path: Path, record: TaskRecord) -> None:
    write_json(path, record.model_dump(mode="json"))


def read_record(path: Path, root: Path | None = None) -> TaskRecord | None:
    """The record in a file, or None if there is none.

    Args:
      path: the file.
      root: a trusted folder above it, below which no link is followed. By default the file's own
        folder.

    Raises:
      DataError: the file is not a record.
    """
    root = root or path.parent
    return read_json_as(TaskRecord, root, str(path.relative_to(root)))


def recorded_manifest(layout: Layout, run_id: str, task: str, job: str) -> str | None:
    """The manifest that a task of a run has left or found. None if there is none.

    Raises:
      DataError: the record is damaged, or does not name an artifact of that job of the pipeline.
    """
    record = read_record(layout.task_record(run_id, task), layout.root)
    if record is None or record.state != "success" or record.manifest is None:
        return None
    return layout.check_manifest(job, record.manifest)


def find_report(evaluate: str | None, export: str | None) -> Path | None:
    """The page of a run, by the manifests of its evaluation and its export.

    It is the export's page, which also shows the published models, if it is about this evaluation,
    and otherwise the evaluation's own. None if there is none.
    """
    if evaluate is None:
        return None
    made_from = (
        read_manifest(export).inputs.get("evaluate") if export and Path(export).exists() else None
    )
    file = Path(export if made_from and made_from.uri == evaluate else evaluate).parent / REPORT
    return file if file.is_file() else None
