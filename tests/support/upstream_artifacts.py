"""The artifact of an earlier task of a run, in its folder, and its record."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import NAME, read_manifest
from pipeline_ops.contract.task_record import TaskRecord, write_record


def copy_artifacts(
    layout: Layout, run_id: str, manifests: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Copies artifacts to where tasks of those names would have made them, and writes the records.

    Returns:
      The URIs of the manifests there, by task: what the tasks would have put into XCom.
    """
    return {task: uri and _hand_over(layout, run_id, task, uri) for task, uri in manifests.items()}


def _hand_over(layout: Layout, run_id: str, task: str, uri: str) -> str:
    folder = layout.artifact(task, read_manifest(uri).fingerprint_digest).local
    if not folder.exists():
        shutil.copytree(Path(uri).parent, folder)
    manifest = str(folder / NAME)
    write_record(layout.task_record(run_id, task), TaskRecord(state="success", manifest=manifest))
    return manifest
