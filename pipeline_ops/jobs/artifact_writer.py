"""Makes an artifact: a job fills a local folder, which becomes visible as a whole.

In a folder, the draft is a staging folder that is renamed. In a bucket, its files are below the
token of the job's lease, so that two jobs never write the same object. Workers store large ones
there themselves, the others are uploaded at the end. Then the lease commits the manifest.

A kept draft outlives a try that was killed, or failed for a reason that is gone at the next one.
In a folder, it is below the job's work folder. In a bucket, the next try has another token, and
refers to the files below the earlier one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.layout import work_folder
from pipeline_ops.artifacts.manifest import (
    NAME,
    Manifest,
    ManifestFile,
    list_files,
    write_manifest,
)
from pipeline_ops.errors import ExitCode, MachineError, TrainyardError
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.atomic import format_json
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.read_errors import to_exit_code
from pipeline_ops.storage.snapshot import map_requests
from pipeline_ops.storage.staging import staging_folder
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import Lease


@dataclasses.dataclass
class ArtifactDraft:
    """Files below `folder`, and other content of the manifest.

    Attributes:
      folder: a folder of this host.
      target: where any process stores files of the artifact itself: the same folder, or a place in
        the bucket.
      stored: these files. Their writers have computed the checksums. In a bucket, each says where
        it is.
      references: files that other artifacts of the job hold.
    """

    folder: Path
    target: StorePath
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, int] = dataclasses.field(default_factory=dict)
    stored: list[ManifestFile] = dataclasses.field(default_factory=list)
    references: list[ManifestFile] = dataclasses.field(default_factory=list)

    def make_manifest(self, request: Request, artifact: StorePath) -> Manifest:
        """Describes the draft as it is now. Reads every file that is not in `stored`.

        Raises:
          MachineError: a file was damaged or removed in the meantime.
        """
        if self.target.is_local:
            own = list_files(self.folder, self.stored)
        else:
            own = list_files(self.folder) + self._find_stored()
        manifest = Manifest(
            job=request.job,
            pipeline=request.pipeline,
            fingerprint=request.fingerprint,
            fingerprint_digest=request.fingerprint.digest,
            inputs=request.inputs,
            seeds=self.seeds,
            files=sorted(own + self.references, key=lambda file: file.path),
            figures=self.figures,
        )
        referenced = manifest.model_copy(update={"files": self.references})
        if damage := find_damage(artifact / NAME, referenced):
            raise MachineError(
                f"{damage[0]}. It was removed or damaged after this run was planned. Retry."
            )
        return manifest

    def remove_others(self) -> None:
        """Removes what earlier tries have left in the folder, except files in `stored`."""
        if self.target.is_local:
            stored = {file.path for file in self.stored}
            for entry in self.target.walk():
                if entry.name not in stored:
                    (self.target / entry.name).remove()

    def _find_stored(self) -> list[ManifestFile]:
        """The stored files. Raises MachineError if one of them is not as it was stored."""
        artifact, jobs = self.target.parent, self.target.parent.parent
        entries = artifact.walk() if self.stored else []
        sizes = {f"{artifact.name}/{entry.name}": entry.num_bytes for entry in entries}
        for file in self.stored:
            if sizes.get(file.stored_at or "") != file.num_bytes:
                raise MachineError(
                    f"{jobs}/{file.stored_at} was removed or damaged after it was stored. Retry."
                )
        return self.stored


@contextlib.contextmanager
def open_draft(
    artifact: StorePath, request: Request, lease: Lease, is_kept: bool = False
) -> Iterator[ArtifactDraft]:
    """Yields a draft. Leaving the block adds the manifest and makes the artifact visible.

    After an error that no other try can mend, the draft and the work folder are removed.

    Raises:
      MachineError: the store failed, or another job has taken over the artifact.
      FileExistsError: another job has made the artifact in the meantime.
    """
    target = artifact / f"{lease.token:08d}"
    try:
        if artifact.is_local:
            kept = work_folder(artifact).local / "draft" if is_kept else None
            with staging_folder(artifact.local, NAME, kept) as staging:
                draft = ArtifactDraft(staging, open_root(staging))
                yield draft
                write_manifest(staging, draft.make_manifest(request, artifact))
            return
        with tempfile.TemporaryDirectory(prefix="artifact-") as folder:
            draft = ArtifactDraft(Path(folder), target)
            yield draft
            manifest = _upload(draft, request, artifact)
    except Exception as error:  # `gc` removes what is left by a job that was killed
        if not is_kept or to_exit_code(error) not in (ExitCode.RETRY, ExitCode.CANCELLED):
            with contextlib.suppress(TrainyardError):
                if not artifact.is_local:
                    target.remove_tree()
                if is_kept:
                    work_folder(artifact).remove_tree()
        raise
    lease.commit(artifact / NAME, format_json(manifest.model_dump(mode="json")))


def _upload(draft: ArtifactDraft, request: Request, artifact: StorePath) -> Manifest:
    """Uploads the files in a draft's folder. Returns a manifest that says where each one is."""

    def place(file: ManifestFile) -> ManifestFile:
        if file.stored_at:
            return file
        (draft.target / file.path).upload(draft.folder / file.path)
        stored_at = f"{artifact.name}/{draft.target.name}/{file.path}"
        return file.model_copy(update={"stored_at": stored_at})

    manifest = draft.make_manifest(request, artifact)
    return manifest.model_copy(update={"files": map_requests(place, manifest.files)})
