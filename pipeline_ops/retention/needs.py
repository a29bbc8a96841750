"""Finds what is needed below the storage root, and why. The rest are candidates for removal.

Nothing here touches the store.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from pipeline_ops.config.storage import Keep
from pipeline_ops.contract.layout import parse_artifact_uri
from pipeline_ops.contract.manifest import Manifest
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
    """The rules of one call. Without `keep`, all runs and artifacts stay.

    `now` is the store's time. A run without an end counts as active for `waiting_seconds`.
    `pinned_dataset` is the beginning of the fingerprint or digest that the config asks for.
    """

    keep: Keep | None
    now: float
    grace_seconds: float = DAY_SECONDS
    waiting_seconds: float = WAITING_SECONDS
    pinned_dataset: str | None = None

    @property
    def before(self) -> float:
        """Everything that was changed or used since this time stays."""
        return self.now - self.grace_seconds


class Needs:
    """The reasons why runs, by name, and artifacts, by job and fingerprint, are needed.

    With `problems`, the needs are not known, and no artifact may be removed.
    """

    def __init__(self, inventory: Inventory, policy: Policy):
        self.runs: dict[str, str] = {}
        self.artifacts: dict[Key, str] = {}
        self.problems = [each.problem for each in inventory.artifacts if each.problem]
        self.inventory, self.policy = inventory, policy
        self._artifacts = {each.key: each for each in inventory.artifacts}
        self._runs = sorted(
            inventory.runs, key=lambda run: (run.content.touched, run.name), reverse=True
        )
        for run in inventory.runs:
            if reason := self._find_live_reason(run):
                self._add_run(run, reason)
        for uri, manifest in inventory.versions:
            self._add_uris(_list_lineage(manifest), f"the published version {uri} was made from it")
        self._add_next_run()
        self._add_kept_runs()
        self.problems += inventory.problems

    def _find_live_reason(self, run: StoredRun) -> str:
        """The reason why a run may still go on; "" if it is over."""
        policy, touched = self.policy, run.content.touched
        for attempt in run.open_attempts:
            if policy.before < attempt.deadline:
                return f"the job of {attempt.path} may still run"
        if touched > policy.before:
            return "it was active within the grace period"
        if not run.is_finished and touched > policy.now - policy.waiting_seconds:
            return "it has not ended, and may wait for a pool or for a person"
        return "its folder has a file named keep" if run.is_protected else ""

    def _add_next_run(self) -> None:
        """Needs what the next run may start from or find unchanged."""
        pinned = self.policy.pinned_dataset
        newest: dict[str, StoredArtifact] = {}
        for artifact in self._artifacts.values():
            before = newest.get(artifact.job)
            if artifact.manifest and (before is None or artifact.made > before.made):
                newest[artifact.job] = artifact
            if artifact.made and artifact.used > self.policy.before:
                self._add(artifact.key, "it was made or used within the grace period")
            if pinned and artifact.job == "preprocess" and artifact.manifest:
                versions = (artifact.fingerprint, artifact.manifest.digest)
                if any(version.startswith(pinned) for version in versions):
                    self._add(artifact.key, "preprocess.dataset asks for it")
        for artifact in newest.values():
            self._add(artifact.key, f"it is the newest {artifact.job}")

    def _add_kept_runs(self) -> None:
        """Needs the runs that `storage.keep` asks for."""
        keep = self.policy.keep
        if keep is None:
            for key in self._artifacts:
                self._add(key, "storage.keep is not set")
            for run in self._runs:
                self._add_run(run, "storage.keep is not set")
            return
        oldest = self.policy.now - keep.days * DAY_SECONDS
        successful = [run.name for run in self._runs if run.is_successful][: keep.runs]
        made: list[tuple[float, Key]] = []
        for run in self._runs:
            if run.name in successful:
                reason = f"it is among the newest {keep.runs} successful runs"
            elif run.content.touched > oldest:
                reason = f"it was active within {keep.days} days"
            else:
                continue
            self._add_run(run, reason, with_datasets=keep.datasets is None)
            keys = (key for key in self._find_keys(run.uris) if key[0] == "preprocess")
            made += [(self._artifacts[key].made, key) for key in keys]
        if keep.datasets is not None:
            reason = f"it is among the newest {keep.datasets} data sets of the runs that stay"
            for _, key in sorted(set(made))[-keep.datasets :]:
                self._add(key, reason)

    def _add_run(self, run: StoredRun, reason: str, with_datasets: bool = True) -> None:
        """Needs a run and the artifacts in its records and requests."""
        if run.name not in self.runs:
            self.runs[run.name] = reason
            if run.problem:
                self.problems.append(run.problem)
            self._add_uris(run.uris, f"run {run.name} uses it ({reason})", with_datasets)

    def _add_uris(self, uris: Iterable[str], reason: str, with_datasets: bool = True) -> None:
        for key in self._find_keys(uris):
            self._add(key, reason, with_datasets)

    def _add(self, key: Key, reason: str, with_datasets: bool = True) -> None:
        """Needs an artifact and what it was made from."""
        waiting = [(key, reason)]
        while waiting:
            key, reason = waiting.pop()
            is_left_out = key[0] == "preprocess" and not with_datasets
            if key in self.artifacts or is_left_out:
                continue
            self.artifacts[key] = reason
            artifact = self._artifacts[key]
            if artifact.manifest:
                why = f"{artifact.content.path} was made from it, where {reason}"
                sources = self._find_keys(_list_lineage(artifact.manifest))
                waiting += [(source, why) for source in sources]

    def _find_keys(self, uris: Iterable[str]) -> list[Key]:
        """The artifacts of this pipeline, below whatever root, that are in the inventory."""
        places = map(parse_artifact_uri, uris)
        keys = [place[1:] for place in places if place and place[0] == self.inventory.pipeline]
        return [key for key in keys if key in self._artifacts]


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
    """A candidate for removal, with its kind and the rule that frees it.

    `artifact` is the artifact to which it belongs, and whose lease protects it.
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


def find_candidates(needs: Needs) -> list[Candidate]:
    """Finds what may be removed. Newer artifacts come first, because they reference older ones."""
    inventory, policy, candidates = needs.inventory, needs.policy, list[Candidate]()
    newest_first = sorted(inventory.artifacts, key=lambda each: each.made, reverse=True)
    listed = set[str]().union(*(each.references for each in newest_first))
    needed = set[str]().union(
        *(each.references for each in newest_first if each.key in needs.artifacts)
    )
    for artifact in [] if needs.problems else newest_first:
        if artifact.manifest and artifact.key not in needs.artifacts:
            rule = "no version, run, or next run needs it"
            content = artifact.content.without(needed)
            candidates.append(Candidate("artifact", content, rule, artifact))
        else:
            candidates += _find_leftovers(artifact, listed, policy.now)
    rule = "storage.keep does not ask for this run"
    unneeded = (run for run in inventory.runs if run.is_ours and run.name not in needs.runs)
    candidates += [Candidate("run", run.content, rule) for run in unneeded]
    rule = "its writer was killed"
    candidates += [Candidate("temporary", each, rule) for each in inventory.temporary]
    if policy.keep:
        oldest = policy.now - policy.keep.days * DAY_SECONDS
        rule = f"it was not written for {policy.keep.days} days, and can be made again"
        old = (each for each in inventory.shared if each.touched < oldest)
        candidates += [Candidate("shared", each, rule) for each in old]
    return candidates


def _find_leftovers(artifact: StoredArtifact, listed: set[str], now: float) -> Iterator[Candidate]:
    """Finds what killed jobs have left in and beside an artifact that is needed or gone."""
    work = artifact.companions.get("work")
    is_open = work is not None and not artifact.made and work.touched >= now - _WORK_SECONDS
    if not is_open:  # in a bucket, the next try continues with the files in the artifact's folder
        yield from _find_unlisted_files(artifact, listed)
    for kind, content in artifact.companions.items():
        if kind.endswith("staging"):
            yield Candidate("staging", content, "its job was killed", artifact)
        elif kind == "work" and artifact.made:
            yield Candidate("work", content, "the artifact is complete", artifact)
        elif kind == "work" and content.touched < now - _WORK_SECONDS:
            yield Candidate("work", content, "no job has continued with it for 30 days", artifact)
        elif kind in ("lock", "used") and not (artifact.content.files or work):
            yield Candidate("lock", content, "its artifact is gone", artifact)


def _find_unlisted_files(artifact: StoredArtifact, listed: set[str]) -> Iterator[Candidate]:
    """Finds files in the folder of an artifact that no manifest lists.

    With a manifest, only uploads below the number of an earlier lease count.
    """
    path, unlisted = artifact.content.path, artifact.content.without(listed)
    if not artifact.made:
        if unlisted.files:
            yield Candidate("remains", unlisted, "no manifest lists it", artifact)
        return
    tokens = {file.name.removeprefix(f"{path}/").partition("/")[0] for file in unlisted.files}
    lock = artifact.companions.get("lock")
    held = [file.name.rpartition("/")[2][:8] for file in lock.files] if lock else []
    newest = max(filter(_TOKEN.fullmatch, held), default="")
    for token in sorted(each for each in tokens if _TOKEN.fullmatch(each) and each <= newest):
        files = tuple(file for file in unlisted.files if file.name.startswith(f"{path}/{token}/"))
        content = Content(f"{path}/{token}", files)
        yield Candidate("upload", content, "its job was killed, or lost its lease", artifact)
