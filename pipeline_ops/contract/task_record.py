"""The record of how a task of a run ended, for readers outside Airflow.

Readers are the command line, the report and the UI.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from pipeline_ops.contract.explanation import Explanation
from pipeline_ops.contract.layout import Layout, parse_artifact_uri
from pipeline_ops.contract.manifest import Maker, find_file, read_manifest
from pipeline_ops.contract.results import REPORT
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath, StoreUsage


class TaskRecord(Explanation):
    """The record that the operator writes into the run's folder."""

    state: Literal["success", "failed", "skipped", "pruned"]
    cached: bool = False
    reason: str = ""
    """The reason why the job ran, or why it was not necessary."""
    manifest: str | None = Field(None, max_length=8192)
    attempt: str | None = Field(None, max_length=8192)
    """The folder of the last job process, if one was started."""
    artifact: str | None = Field(None, max_length=8192)
    """The folder of the artifact that the failed job was to make."""
    config_folder: str = Field("", max_length=4096)
    """The folder of the pipeline's YAML on Airflow's host."""
    exit_code: int | None = Field(None, ge=-1000, le=1000)
    made_by: Maker | None = None
    """The run whose result was found, if `cached`."""
    unpublished: Literal["refused", "rejected", "unanswered"] | None = None
    """For export: why it was skipped."""
    rejected_by: str = ""
    try_number: int | None = None
    """Airflow's number of the try. None if another task has written the record."""
    store: StoreUsage = StoreUsage()
    """The requests of the task and of its job to a bucket, without those of the triggerer."""

    def hide_folders(self, text: str, root: str) -> str:
        """Returns a text with short paths: without the storage root and other known folders."""
        folders = [root, self.config_folder, self.attempt or ""]
        folders += [self.location.folder] if self.location else []
        for folder in sorted(folders, key=len, reverse=True):
            if len(folder) > 1:  # more than "/"
                text = re.sub(rf"(?<![\w./-]){re.escape(folder)}/", "", text)
        return text

    def is_of_try(self, number: int | None) -> bool:
        """Returns whether it is the record of a task's try, as far as the number is known."""
        return None in (number, self.try_number) or number == self.try_number


def write_record(path: StorePath, record: TaskRecord) -> None:
    path.write(format_json(record.model_dump(mode="json")))


def read_record(path: StorePath) -> TaskRecord | None:
    """The record in a file, or None if there is none. Raises DataError if it is not a record."""
    return read_json_as(TaskRecord, path)


def find_recorded_manifest(layout: Layout, run_id: str, task: str, job: str) -> StorePath | None:
    """The manifest that a task of a run has left or found, below the present storage root.

    Raises DataError if the record is damaged, or names no artifact of that job of the pipeline.
    """
    record = read_record(layout.task_record(run_id, task))
    if record is None or record.state != "success" or record.manifest is None:
        return None
    if (place := parse_artifact_uri(record.manifest)) and place[:2] == (layout.pipeline, job):
        return layout.manifest(job, place[2])
    return layout.check_manifest(job, record.manifest)


def find_report(evaluate: StorePath | None, export: StorePath | None) -> StorePath | None:
    """The page of a run, by the manifests of its evaluation and its export.

    The export's page, with the published models, counts if it is about this evaluation.
    """
    if evaluate is None:
        return None
    manifest = evaluate
    if export and export.exists():
        evaluated = read_manifest(export).inputs.get("evaluate")
        if evaluated and evaluated.uri == str(evaluate):
            manifest = export
    return find_file(manifest, REPORT)
