"""The folders that a job writes: its artifact, which appears as a whole, and its own folder.

In a folder, the draft of an artifact is a staging folder that is renamed. In a bucket, its files
are below the token of the job's lease, so that two jobs never write the same object. Workers store
large ones there themselves, the others are uploaded at the end. Then the lease commits the
manifest. A kept draft is continued by the next try: in a folder, below the job's work folder, and
in a bucket by references to the files below the earlier token.

If the attempt is in a bucket, all processes of the job on one host write to a local folder instead.
A thread copies new lines of logs and progress, and the page of refused data (`data.html`), to the
store once a second. After a killed job, the next process that finds the folder copies the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline_ops.contract.layout import Attempt, work_folder
from pipeline_ops.contract.manifest import (
    NAME,
    Maker,
    Manifest,
    ManifestFile,
    find_damage,
    list_files,
    write_manifest,
)
from pipeline_ops.contract.request import Request, compute_request_digest, read_request
from pipeline_ops.errors import DataError, ExitCode, MachineError, TrainyardError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import (
    format_json,
    make_write_error,
    open_private_folder,
    remove_own_folder,
    staging_folder,
    write_atomically,
)
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.read_errors import to_exit_code
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import LogWriter, StoreAway, StorePath
from pipeline_ops.system.lease import Lease


@dataclasses.dataclass
class ArtifactDraft:
    """Files below `folder` on this host, and other content of the manifest."""

    folder: Path
    target: StorePath
    """Where any process stores files itself: the same folder, or a place in the bucket."""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, int] = dataclasses.field(default_factory=dict)
    stored: list[ManifestFile] = dataclasses.field(default_factory=list)
    """The files at `target`. Their writers have computed the checksums."""
    references: list[ManifestFile] = dataclasses.field(default_factory=list)
    """Files that other artifacts of the job hold."""

    def make_manifest(self, request: Request, artifact: StorePath) -> Manifest:
        """Describes the draft as it is now. Reads every file that is not in `stored`."""
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
            made_by=Maker.of(request.run_id),
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

    After an error that no other try can mend, the draft and the work folder are removed. Raises
    MachineError if another job has taken over the artifact, and FileExistsError if it has made it.
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
            manifest = draft.make_manifest(request, artifact)

            def place(file: ManifestFile) -> ManifestFile:
                if file.stored_at:
                    return file
                (target / file.path).upload(draft.folder / file.path)
                stored_at = f"{artifact.name}/{target.name}/{file.path}"
                return file.model_copy(update={"stored_at": stored_at})

            files = map_requests(place, manifest.files)
            manifest = manifest.model_copy(update={"files": files})
    except Exception as error:  # `gc` removes what is left by a job that was killed
        if not is_kept or to_exit_code(error) not in (ExitCode.RETRY, ExitCode.CANCELLED):
            with contextlib.suppress(TrainyardError):
                if not artifact.is_local:
                    target.remove_tree()
                if is_kept:
                    work_folder(artifact).remove_tree()
        raise
    lease.commit(artifact / NAME, format_json(manifest.model_dump(mode="json")))


LOCAL_FOLDER_VARIABLE = "TRAINYARD_LOCAL_FOLDER"
REQUEST_VARIABLE = "TRAINYARD_REQUEST"
"""The variable with the digest of the request, in the processes of a job on all hosts."""
_SHIP_SECONDS = 1.0
_CHUNK_BYTES = 4 << 20
_APPENDED = (".log", ".jsonl", ".html")
_log = logging.getLogger(__name__)


def find_local_folder(place: StorePath) -> Path:
    """The folder of this host that stands for a place in the store. It need not exist."""
    if place.is_local:
        return place.local
    return find_jobs_folder() / compute_digest(str(place))


def find_jobs_folder() -> Path:
    """The folder of this host that holds the local folders of this user's jobs."""
    local = Path(os.environ.get(LOCAL_FOLDER_VARIABLE) or "~/.cache").expanduser()
    return local / "trainyard-jobs" / str(os.geteuid())


def make_local_folder(place: StorePath) -> Path:
    """Creates the `find_local_folder` of a place in a bucket. Only this user can read it."""
    folder = find_local_folder(place)
    if place.is_local:
        return folder
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            alternative = f"set {LOCAL_FOLDER_VARIABLE} to another folder"
            with open_private_folder(each, alternative, forbidden_mode=0o022) as opened:
                os.fchmod(opened, 0o700)  # a job whose disk was emptied can have made it again
    except OSError as error:
        raise make_write_error(folder, error) from error
    return folder


@contextlib.contextmanager
def open_workspace(attempt: Attempt[StorePath]) -> Iterator[Attempt[Path]]:
    """Yields the attempt on this host. After the block, all new lines there are in the store."""
    if attempt.folder.is_local:
        yield Attempt(attempt.folder.local)
        return
    workspace = copy_request(attempt)
    shipper = _Shipper(workspace.folder, attempt.folder)
    is_over = threading.Event()
    thread = threading.Thread(target=shipper.run, args=(is_over,), name="shipper", daemon=True)
    thread.start()
    try:
        yield workspace
    finally:
        is_over.set()
        thread.join()
        shipper.ship()


def copy_request(attempt: Attempt[StorePath]) -> Attempt[Path]:
    """Returns the attempt on this host, with a copy of its request."""
    request = read_planned_request(attempt)
    workspace = Attempt(make_local_folder(attempt.folder))
    write_atomically(workspace.request, request.model_dump_json().encode(), mode=0o600)
    return workspace


def read_planned_request(attempt: Attempt[StorePath]) -> Request:
    """The request as Airflow has planned it. DataError if others have replaced it in the bucket."""
    request = read_request(attempt.request)
    expected = os.environ.get(REQUEST_VARIABLE)
    if expected and compute_request_digest(request) != expected:
        raise DataError(
            f"{attempt.request} is not the request that Airflow has written. Find out who else "
            "writes there, and clear the task."
        )
    return request


def ship_leftovers(attempt: Attempt[StorePath]) -> None:
    """Copies the logs of a dead job on this host to the store, and removes its folder."""
    if attempt.folder.is_local:
        return
    folder = find_local_folder(attempt.folder)
    if folder.is_dir():
        _Shipper(folder, attempt.folder).ship()
        remove_own_folder(folder)


class _Shipper:
    """Copies appended files from a folder to the store."""

    def __init__(self, folder: Path, target: StorePath):
        self._folder, self._target = folder, target
        self._writers: dict[str, LogWriter] = {}

    def run(self, is_over: threading.Event) -> None:
        while not is_over.wait(_SHIP_SECONDS):
            try:
                self.ship()  # after an error, the next round copies the same bytes
            except StoreAway:
                continue  # `object_requests.py` has said so
            except TrainyardError as error:
                _log.warning("The progress of this job cannot be stored: %s", error)

    def ship(self) -> None:
        """Copies everything new. Raises MachineError or ConfigError if the store refuses it."""
        for entry in sorted(os.scandir(self._folder), key=lambda entry: entry.name):
            if entry.name.endswith(_APPENDED) and entry.is_file(follow_symlinks=False):
                self._ship_file(entry.name)

    def _ship_file(self, name: str) -> None:
        with open(self._folder / name, "rb") as file:
            if name not in self._writers:
                if os.fstat(file.fileno()).st_size == 0:
                    return
                self._writers[name] = (self._target / name).open_log()
            writer = self._writers[name]
            file.seek(writer.size)
            while data := file.read(_CHUNK_BYTES):
                writer.append(data)
