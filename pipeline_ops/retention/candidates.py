"""The candidates for removal: everything of ours below the storage root that is not needed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from pipeline_ops.artifacts.manifest import NAME, Manifest
from pipeline_ops.retention.inventory import Content, Inventory, StoredArtifact
from pipeline_ops.retention.needs import DAY_SECONDS, Needs, Policy

Kind = Literal[
    "artifact", "remains", "upload", "work", "staging", "lock", "run", "temporary", "shared",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
_WORK_SECONDS = 30 * DAY_SECONDS
"""The time for which the next try may continue with what a failed one has left."""
_TOKEN = re.compile(r"[0-9]{8}")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something that may be removed, the kind of it, and the rule by which it is not needed.

    `artifact` is the one that it belongs to, whose lease protects it.
    """

    kind: Kind
    content: Content
    rule: str
    artifact: StoredArtifact | None = None

    @property
    def path(self) -> str:
        return self.content.path

    @property
    def touched(self) -> float:
        """The time of the last change, or of the last use that is known."""
        used = self.artifact.used if self.artifact and self.kind == "artifact" else 0.0
        return max(self.content.touched, used)


def find_candidates(
    inventory: Inventory, needs: Needs, policy: Policy, now: float
) -> list[Candidate]:
    """Finds what may be removed. Newer artifacts come first, because they reference older ones."""
    candidates: list[Candidate] = []
    newest_first = sorted(inventory.artifacts, key=lambda each: each.made, reverse=True)
    listed = collect_references(inventory.artifacts)
    needed = collect_references(each for each in inventory.artifacts if each.key in needs.artifacts)
    for artifact in [] if needs.problems else newest_first:
        if artifact.manifest and artifact.key not in needs.artifacts:
            content = _leave_out(artifact.content, needed.get(artifact.job, set()))
            rule = "no version, run, or next run needs it"
            candidates.append(Candidate("artifact", content, rule, artifact))
        else:
            candidates += _find_leftovers(artifact, listed[artifact.job], now)
    for run in inventory.runs:
        if run.name not in needs.runs:
            if not run.is_ours:
                continue
            rule = "storage.keep does not ask for this run"
            candidates.append(Candidate("run", run.content, rule))
    rule = "its writer was killed"
    candidates += [Candidate("temporary", each, rule) for each in inventory.temporary]
    if policy.keep:
        oldest = now - policy.keep.days * DAY_SECONDS
        rule = f"it was not written for {policy.keep.days} days, and can be made again"
        candidates += [
            Candidate("shared", each, rule) for each in inventory.shared if each.touched < oldest
        ]
    return candidates


def collect_references(artifacts: Iterable[StoredArtifact]) -> dict[str, set[str]]:
    """The files that manifests list, by job, relative to the folder of the job's artifacts."""
    listed: dict[str, set[str]] = {}
    for artifact in artifacts:
        files = listed.setdefault(artifact.job, set())
        if artifact.manifest:
            files |= list_stored_files(artifact.fingerprint, artifact.manifest)
    return listed


def list_stored_files(fingerprint: str, manifest: Manifest) -> set[str]:
    """The places of an artifact's files, relative to the folder of the job's artifacts."""
    listed = {file.stored_at or f"{fingerprint}/{file.path}" for file in manifest.files}
    return {f"{fingerprint}/{NAME}", *listed}


def _find_leftovers(
    artifact: StoredArtifact, references: set[str], now: float
) -> Iterator[Candidate]:
    """Finds files that an artifact that is needed, or gone, does not need."""
    work = artifact.companions.get("work")
    is_open = work is not None and not artifact.made and work.touched >= now - _WORK_SECONDS
    if not is_open:  # in a bucket, the next try continues with the files in the artifact's folder
        yield from _find_unlisted_files(artifact, references)
    for kind, content in artifact.companions.items():
        if kind.endswith("staging"):
            yield Candidate("staging", content, "its job was killed", artifact)
        elif kind == "work" and artifact.made:
            yield Candidate("work", content, "the artifact is complete", artifact)
        elif kind == "work" and content.touched < now - _WORK_SECONDS:
            yield Candidate("work", content, "no job has continued with it for 30 days", artifact)
        elif kind in ("lock", "used") and not (artifact.content.files or work):
            yield Candidate("lock", content, "its artifact is gone", artifact)


def _find_unlisted_files(artifact: StoredArtifact, references: set[str]) -> Iterator[Candidate]:
    """Files in the folder of an artifact that no manifest lists.

    In a folder with a manifest, only uploads are looked for, which lie below the number of a lease
    that was held.
    """
    content, path = _leave_out(artifact.content, references), artifact.content.path
    unlisted = content.files
    if not artifact.made:
        if unlisted:
            yield Candidate("remains", content, "no manifest lists it", artifact)
        return
    tokens = {file.name.removeprefix(f"{path}/").partition("/")[0] for file in unlisted}
    lock = artifact.companions.get("lock")
    held = [file.name.rpartition("/")[2][:8] for file in lock.files] if lock else []
    newest = max(filter(_TOKEN.fullmatch, held), default="")
    for token in sorted(each for each in tokens if _TOKEN.fullmatch(each) and each <= newest):
        files = tuple(file for file in unlisted if file.name.startswith(f"{path}/{token}/"))
        content = Content(f"{path}/{token}", files)
        yield Candidate("upload", content, "its job was killed, or lost its lease", artifact)


def _leave_out(content: Content, listed: set[str]) -> Content:
    """The files of an artifact that are not listed, by their paths in the folder of the job."""
    job = content.path.rpartition("/")[0]
    files = (file for file in content.files if file.name.removeprefix(f"{job}/") not in listed)
    return dataclasses.replace(content, files=tuple(files))
