"""Makes an artifact: a job fills a local folder, which becomes visible as a whole.

In a folder, the draft is a staging folder that is renamed. In a bucket, the files of the draft are
uploaded below the token of the job's lease, so that two jobs never write the same object. Then the
lease commits the manifest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.manifest import NAME, Manifest, ManifestFile, list_files, write_manifest
from pipeline_ops.errors import MachineError
from pipeline_ops.jobs.request import Request
from pipeline_ops.storage.atomic import format_json
from pipeline_ops.storage.snapshot import map_requests
from pipeline_ops.storage.staging import staging_folder
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import Lease


@dataclasses.dataclass
class ArtifactDraft:
    """Files below `folder`, and other content of the manifest.

    `described` are those files below `folder` whose checksums are known, because whoever wrote them
    has computed them. `references` are files that other artifacts of the job hold.
    """

    folder: Path
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, int] = dataclasses.field(default_factory=dict)
    described: list[ManifestFile] = dataclasses.field(default_factory=list)
    references: list[ManifestFile] = dataclasses.field(default_factory=list)

    def make_manifest(self, request: Request, artifact: StorePath) -> Manifest:
        """Describes the draft as it is now. Reads every file that is not described.

        Raises:
          MachineError: a file was damaged or removed in the meantime.
        """
        own = list_files(self.folder, self.described)
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


@contextlib.contextmanager
def open_draft(artifact: StorePath, request: Request, lease: Lease) -> Iterator[ArtifactDraft]:
    """Yields a draft. Leaving the block adds the manifest and makes the artifact visible.

    Raises:
      MachineError: the store failed, or another job has taken over the artifact.
      FileExistsError: another job has made the artifact in the meantime.
    """
    if artifact.is_local:
        with staging_folder(artifact.local, NAME) as staging:
            draft = ArtifactDraft(staging)
            yield draft
            write_manifest(staging, draft.make_manifest(request, artifact))
        return
    with tempfile.TemporaryDirectory(prefix="artifact-") as folder:
        draft = ArtifactDraft(Path(folder))
        yield draft
        manifest = _upload(draft, request, artifact, f"{artifact.name}/{lease.token:08d}")
        lease.commit(artifact / NAME, format_json(manifest.model_dump(mode="json")))


def _upload(
    draft: ArtifactDraft, request: Request, artifact: StorePath, stored_below: str
) -> Manifest:
    """Uploads the files of a draft. Returns a manifest that says where each one is."""
    manifest = draft.make_manifest(request, artifact)
    files = [_store_below(file, stored_below) for file in manifest.files]
    own = [file for file, before in zip(files, manifest.files, strict=True) if file is not before]

    def upload(file: ManifestFile) -> None:
        (artifact.parent / f"{stored_below}/{file.path}").upload(draft.folder / file.path)

    map_requests(upload, own)
    return manifest.model_copy(update={"files": files})


def _store_below(file: ManifestFile, folder: str) -> ManifestFile:
    """A file of the draft with its place in the bucket. References keep theirs."""
    if file.stored_at:
        return file
    return file.model_copy(update={"stored_at": f"{folder}/{file.path}"})
