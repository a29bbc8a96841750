"""The needs below the storage root, with their reasons. Nothing here touches the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from pipeline_ops.artifacts.layout import parse_artifact_uri
from pipeline_ops.artifacts.manifest import Manifest
from pipeline_ops.config.storage import Keep
from pipeline_ops.retention.inventory import Inventory, StoredArtifact, StoredRun

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
      grace_seconds: the time between a mark and the removal.
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
