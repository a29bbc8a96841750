"""The removal of candidates whose marks are old enough."""

from __future__ import annotations

import contextlib
import dataclasses

from pipeline_ops.artifacts.layout import Layout, lock_file, usage_file, work_folder
from pipeline_ops.artifacts.manifest import MAX_BYTES, NAME
from pipeline_ops.retention.candidates import Candidate, collect_references
from pipeline_ops.retention.inventory import Inventory, StoredArtifact
from pipeline_ops.retention.marks import Mark, was_touched
from pipeline_ops.storage.snapshot import read_once
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system import lease as lease_module
from pipeline_ops.system.lease import hold_lease
from pipeline_ops.system.locks import ResourceHeld


@dataclasses.dataclass
class Total:
    """A number of files, and their bytes."""

    num_files: int = 0
    num_bytes: int = 0

    def add(self, num_files: int, num_bytes: int) -> None:
        self.num_files += num_files
        self.num_bytes += num_bytes


class Remover:
    """Removes candidates, each after another look at it.

    Artifacts are to be given newest first: what a removed manifest has referenced is free for the
    ones after it.
    """

    def __init__(self, layout: Layout, inventory: Inventory):
        self._layout, self._root = layout, layout.root
        self._present = {each.key: each for each in inventory.artifacts if each.manifest}

    def remove(self, candidate: Candidate, mark: Mark) -> Total | None:
        """Removes a candidate. Returns None if it is in use, or was touched since its mark."""
        try:
            if candidate.artifact:
                return self._remove_of_artifact(candidate, candidate.artifact, mark)
        except ResourceHeld:
            return None
        return self._remove_files(self._root / candidate.path, mark)

    def _remove_of_artifact(
        self, candidate: Candidate, artifact: StoredArtifact, mark: Mark
    ) -> Total | None:
        folder = self._layout.artifact(artifact.job, artifact.fingerprint)
        resource = f"the {artifact.job} of {self._layout.pipeline} {artifact.fingerprint}"
        # In a bucket it takes a while to see that a holder on another host is dead.
        wait_seconds = 0.0 if folder.is_local else lease_module.LEASE_SECONDS + 10
        with hold_lease(lock_file(folder), resource, wait_seconds) as lease:
            if candidate.kind == "artifact":
                if not _withdraw(folder, mark):
                    return None
                del self._present[artifact.key]
            elif not artifact.made and (folder / NAME).exists():
                return None  # it was made in the meantime
            if candidate.kind in ("artifact", "remains", "upload"):
                removed = self._remove_unlisted_files(artifact, self._root / candidate.path, mark)
            elif candidate.kind == "lock":
                removed = Total()
            else:
                removed = self._remove_files(self._root / candidate.path, mark)
            if removed and candidate.kind == "artifact":
                work_folder(folder).remove_tree()
            if removed is not None and not _is_there(folder, work_folder(folder)):
                usage_file(folder).remove()
                removed.add(1, 0)  # the lock
                lease.discard()
        return removed

    def _remove_unlisted_files(
        self, artifact: StoredArtifact, folder: StorePath, mark: Mark
    ) -> Total | None:
        """Removes the files of an artifact that no present manifest lists."""
        present = (each for each in self._present.values() if each.job == artifact.job)
        listed = collect_references(present).get(artifact.job, set())
        job, removed = self._layout.artifacts(artifact.job), Total()
        for file in folder.walk():
            place = folder / file.name
            if place.key.removeprefix(f"{job.key}/") not in listed:
                if was_touched(file.modified, mark):
                    return None
                place.remove()
                removed.add(1, file.num_bytes)
        if not folder.walk():
            folder.remove_tree()
        return removed

    def _remove_files(self, place: StorePath, mark: Mark) -> Total | None:
        """Removes a file, or a folder with everything in it, that was not touched."""
        if entry := place.stat():
            if was_touched(entry.modified, mark):
                return None
            place.remove()
            return Total(1, entry.num_bytes)
        with read_once():  # in a bucket, exactly the files that were looked at are removed
            files = place.walk()
            if any(was_touched(file.modified, mark) for file in files):
                return None
            place.remove_tree()
        return Total(len(files), sum(file.num_bytes for file in files))


def _withdraw(artifact: StorePath, mark: Mark) -> bool:
    """Removes the manifest of an artifact, unless it was used since the mark.

    A run that records its use in between may have found the manifest. It is then put back.
    """
    manifest = artifact / NAME
    if _was_used(artifact, mark):
        return False
    content = manifest.read(MAX_BYTES)
    manifest.remove()
    if _was_used(artifact, mark):
        with contextlib.suppress(FileExistsError):
            manifest.create(content)
        return False
    return True


def _was_used(artifact: StorePath, mark: Mark) -> bool:
    times = (path.stat() for path in (artifact / NAME, usage_file(artifact)))
    return any(entry and was_touched(entry.modified, mark) for entry in times)


def _is_there(*folders: StorePath) -> bool:
    return any(folder.walk() for folder in folders)
