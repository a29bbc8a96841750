"""Finds what is needed below the storage root, and why. The rest are candidates for removal.

Nothing here touches the store.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

from pipeline_ops.artifacts.layout import parse_artifact_uri
from pipeline_ops.artifacts.manifest import NAME, Manifest
from pipeline_ops.config.storage import Keep
from pipeline_ops.retention.inventory import Content, Inventory, StoredArtifact, StoredRun

DAY_SECONDS = 86400.0
WAITING_SECONDS = 7 * DAY_SECONDS
"""The time that a run may wait between two tasks, for a free slot in a pool for example."""
_LINEAGE = ("preprocess", "train", "evaluate")
"""The inputs that an artifact is reproduced from. Others, such as the data set before, are not
followed: there would be no end, and a data set is whole without it."""
Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Policy:
    """The rules of one call.

    Attributes:
      keep: the rules of the author. None keeps all runs and artifacts.
      grace_seconds: the time for which everything stays after its last change or use.
      waiting_seconds: the time for which a run without an end still counts as a run.
      pinned_dataset: the beginning of the version of a data set that the config asks for.
    """

    keep: Keep | None
    grace_seconds: float = DAY_SECONDS
    waiting_seconds: float = WAITING_SECONDS
    pinned_dataset: str | None = None


@dataclasses.dataclass
class Needs:
    """The reason for each run, by its name, and for each artifact, by job and fingerprint.

    With `problems`, the needs are not known, and no artifact may be removed.
    """

    runs: dict[str, str] = dataclasses.field(default_factory=dict)
    artifacts: dict[Key, str] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)


def find_needs(
    inventory: Inventory,
    versions: Sequence[tuple[str, Manifest]],
    policy: Policy,
    pipeline: str,
    now: float,
) -> Needs:
    """Finds what is needed.

    Args:
      inventory: what there is.
      versions: the manifest of each published version, with its URI.
      policy: the rules.
      pipeline: the name of the pipeline.
      now: the time, by the store's clock.
    """
    found = _NeedFinder(inventory, policy, pipeline, now)
    for run in inventory.runs:
        if reason := found.find_live_reason(run):
            found.add_run(run, reason)
    for uri, manifest in versions:
        found.add_inputs(manifest, f"the published version {uri} was made from it")
    found.add_next_run()
    found.add_kept_runs()
    return found.needs


class _NeedFinder:
    def __init__(self, inventory: Inventory, policy: Policy, pipeline: str, now: float):
        self._policy, self._pipeline, self._now = policy, pipeline, now
        self._artifacts = {each.key: each for each in inventory.artifacts}
        self._runs = sorted(
            inventory.runs, key=lambda run: (run.content.touched, run.name), reverse=True
        )
        problems = [each.problem for each in inventory.artifacts if each.problem]
        self.needs = Needs(problems=problems)

    def find_live_reason(self, run: StoredRun) -> str:
        """The reason why a run may still go on; "" if it is over."""
        policy, touched = self._policy, run.content.touched
        for attempt in run.open_attempts:
            if self._now < attempt.deadline + policy.grace_seconds:
                return f"the job of {attempt.path} may still run"
        if touched > self._now - policy.grace_seconds:
            return "it was active within the grace period"
        if not run.is_finished and touched > self._now - policy.waiting_seconds:
            return "it has not ended, and may wait for a pool or for a person"
        return "its folder has a file named keep" if run.is_protected else ""

    def add_run(self, run: StoredRun, reason: str, with_datasets: bool = True) -> None:
        """Needs a run and the artifacts in its records and requests."""
        if run.name in self.needs.runs:
            return
        self.needs.runs[run.name] = reason
        if run.problem:
            self.needs.problems.append(run.problem)
        why = f"run {run.name} uses it ({reason})"
        self._add_uris(_list_uris(run), why, with_datasets)

    def add_inputs(self, manifest: Manifest, reason: str) -> None:
        self._add_uris(_list_lineage(manifest), reason)

    def add_next_run(self) -> None:
        """Needs what the next run may start from or find unchanged."""
        newest: dict[str, StoredArtifact] = {}
        for artifact in self._artifacts.values():
            before = newest.get(artifact.job)
            if artifact.manifest and (before is None or artifact.made > before.made):
                newest[artifact.job] = artifact
            if artifact.made and artifact.used > self._now - self._policy.grace_seconds:
                self._add(artifact.key, "it was made or used within the grace period")
            if self._is_pinned(artifact):
                self._add(artifact.key, "preprocess.dataset asks for it")
        for artifact in newest.values():
            self._add(artifact.key, f"it is the newest {artifact.job}")

    def add_kept_runs(self) -> None:
        """Needs the runs that `storage.keep` asks for."""
        keep = self._policy.keep
        if keep is None:
            for key in self._artifacts:
                self._add(key, "storage.keep is not set")
            for run in self._runs:
                self.add_run(run, "storage.keep is not set")
            return
        successful = [run for run in self._runs if run.is_successful][: keep.runs]
        kept = {
            run.name: f"it is among the newest {keep.runs} successful runs" for run in successful
        }
        for run in self._runs:
            if run.content.touched > self._now - keep.days * DAY_SECONDS:
                kept.setdefault(run.name, f"it was active within {keep.days} days")
        runs = [run for run in self._runs if run.name in kept]
        for run in runs:
            self.add_run(run, kept[run.name], with_datasets=keep.datasets is None)
        if keep.datasets is not None:
            self._add_newest_datasets(runs, keep.datasets)

    def _add_newest_datasets(self, runs: Iterable[StoredRun], count: int) -> None:
        keys = {key for run in runs for key in self._find_keys(_list_uris(run))}
        made = sorted((self._artifacts[key].made, key) for key in keys if key[0] == "preprocess")
        for _, key in made[-count:]:
            self._add(key, f"it is among the newest {count} data sets of the runs that stay")

    def _is_pinned(self, artifact: StoredArtifact) -> bool:
        pinned = self._policy.pinned_dataset
        if not pinned or artifact.job != "preprocess" or artifact.manifest is None:
            return False
        return artifact.fingerprint.startswith(pinned) or artifact.manifest.digest.startswith(
            pinned
        )

    def _add_uris(self, uris: Iterable[str], reason: str, with_datasets: bool = True) -> None:
        for key in self._find_keys(uris):
            self._add(key, reason, with_datasets)

    def _add(self, key: Key, reason: str, with_datasets: bool = True) -> None:
        """Needs an artifact and what it was made from."""
        waiting = [(key, reason)]
        while waiting:
            key, reason = waiting.pop()
            is_left_out = key[0] == "preprocess" and not with_datasets
            if key in self.needs.artifacts or is_left_out:
                continue
            self.needs.artifacts[key] = reason
            artifact = self._artifacts[key]
            if artifact.manifest:
                why = f"{artifact.content.path} was made from it, where {reason}"
                sources = self._find_keys(_list_lineage(artifact.manifest))
                waiting += [(source, why) for source in sources]

    def _find_keys(self, uris: Iterable[str]) -> list[Key]:
        """The artifacts of this pipeline, below whatever root, that are in the inventory."""
        places = filter(None, map(parse_artifact_uri, uris))
        keys = [(job, name) for pipeline, job, name in places if pipeline == self._pipeline]
        return [key for key in keys if key in self._artifacts]


def _list_uris(run: StoredRun) -> list[str]:
    manifests = [record.manifest for record in run.records.values() if record.manifest]
    return [*manifests, *(uri for attempt in run.open_attempts for uri in attempt.inputs)]


def _list_lineage(manifest: Manifest) -> Iterator[str]:
    for name, entry in manifest.inputs.items():
        if name in _LINEAGE:
            yield entry.uri


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
    own = {f"{fingerprint}/{NAME}"}
    return own | {file.stored_at or f"{fingerprint}/{file.path}" for file in manifest.files}


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
