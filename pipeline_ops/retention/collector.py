"""One call of `trainyard gc` for one pipeline: decides, and removes what is old enough."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.storage import Keep
from pipeline_ops.contract.layout import (
    Layout,
    lock_file,
    parse_artifact_uri,
    usage_file,
    work_folder,
)
from pipeline_ops.contract.manifest import MAX_BYTES, NAME
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.retention.inventory import StoredArtifact, Total, take_inventory
from pipeline_ops.retention.needs import (
    DAY_SECONDS,
    KINDS,
    WAITING_SECONDS,
    Candidate,
    Needs,
    Policy,
    find_candidates,
)
from pipeline_ops.storage.request_cache import cache_requests, map_requests
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system import lease as lease_module
from pipeline_ops.system.lease import Lease, hold_lease
from pipeline_ops.system.locks import ResourceHeld

_LOCK_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Options:
    """The choices of the caller. A dry run writes and removes nothing.

    `older_than_days` replaces `storage.keep.days`. Everything stays for `grace_seconds` after its
    last change or use. `now` is the time for ages, by default the store's.
    """

    is_dry_run: bool = False
    older_than_days: int | None = None
    grace_seconds: float = DAY_SECONDS
    now: float | None = None


@dataclasses.dataclass
class Report:
    """The folders and files that one call found, removed or left, by kind.

    `waiting` are those that are young, or in use.
    """

    problems: list[str]
    """The reasons why no artifact is removed."""
    others: list[str]
    """The problems of other pipelines, and of folders that all pipelines share."""
    foreign: list[str]
    """The paths of what nothing shows to be Trainyard's. It stays."""
    kept: Total = dataclasses.field(default_factory=Total)
    waiting: dict[str, Total] = dataclasses.field(default_factory=dict)
    removed: dict[str, Total] = dataclasses.field(default_factory=dict)
    paths: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """In a dry run, what would be removed, with the rule of each."""


def record_use(root: StorePath, manifests: Iterable[str]) -> bool:
    """Records that a run uses some artifacts. Manifests outside the root are ignored.

    The package's docstring says why an artifact that was found after this record was written stays.
    Returns whether all of them are still there. Otherwise the caller plans again.
    """

    def record(uri: str) -> bool:
        place = parse_artifact_uri(uri)
        if place is None or not uri.startswith(f"{root}/"):
            return True
        pipeline, job, fingerprint = place
        artifact = Layout(root, pipeline).artifact(job, fingerprint)
        usage_file(artifact).write(b"")
        return (artifact / NAME).exists()

    return all(map_requests(record, manifests))


def collect(config: PipelineConfig, options: Options) -> Report:
    """Removes what a pipeline does not need and has not touched within the grace period.

    Raises:
      MachineError: another collector works on this root, or the store failed.
      ConfigError: the store refuses a listing, a removal or a condition.
      DataError: a key below the pipeline's own folders cannot be listed.
    """
    root = config.root
    if options.is_dry_run:
        return _collect(config, options, time.time())
    with hold_lease(root / "gc" / "lock", f"trainyard gc in {root}", _LOCK_SECONDS):
        return _collect(config, options, options.now or _read_store_clock(root))


def explain_path(config: PipelineConfig, path: str, options: Options) -> str:
    """Says why a path below the root stays, or from when on it is removed."""
    root = config.root
    if root.is_local and Path(path).exists():
        path = str(Path(path).resolve())
    key = path.removeprefix(f"{root}/").strip("/")
    needs = _find_needs(config, options, time.time())
    for candidate in find_candidates(needs):
        removed = {file.name for file in candidate.content.files}
        if _is_below(key, candidate.path) or key in removed:
            due = time.gmtime(candidate.touched + options.grace_seconds)
            date = time.strftime("%Y-%m-%d %H:%M UTC", due)
            text = f"{candidate.path}: {candidate.rule}. It is removed from {date} on."
            files = candidate.artifact.content.without(removed).files if candidate.artifact else ()
            if kept := [file.name for file in files if _is_below(file.name, key)]:
                text += f" {', '.join(kept)} will stay: other artifacts reference it."
            return text
    for run in needs.inventory.runs:
        if run.name in needs.runs and _is_below(key, run.content.path):
            return f"{run.content.path} stays: {needs.runs[run.name]}."
    for artifact in needs.inventory.artifacts:
        if any(_is_below(key, content.path) for content in artifact.contents):
            reason = needs.artifacts.get(artifact.key)
            blocked = "; ".join(needs.problems)
            return f"{key} stays: {reason or blocked or 'a job may still need it, or uses it'}."
    if any(_is_below(key, each) for each in needs.inventory.foreign):
        return f"{key} stays: nothing shows that Trainyard has written it."
    raise ConfigError(
        f"--why {path}: {config.pipeline} has no such path below {root}. Name "
        f"artifacts/{config.pipeline}/TASK/FINGERPRINT or runs/{config.pipeline}/RUN, or a file in "
        "it."
    )


def _find_needs(config: PipelineConfig, options: Options, now: float) -> Needs:
    keep, approval = config.storage.keep, config.evaluate.approval
    if options.older_than_days is not None:
        keep = (keep or Keep()).model_copy(update={"days": options.older_than_days})
    policy = Policy(
        keep,
        now,
        options.grace_seconds,
        waiting_seconds=max(WAITING_SECONDS, approval.timeout_seconds if approval else 0),
        pinned_dataset=config.preprocess.dataset,
    )
    return Needs(take_inventory(config), policy)


def _collect(config: PipelineConfig, options: Options, now: float) -> Report:
    needs = _find_needs(config, options, now)
    inventory, candidates = needs.inventory, find_candidates(needs)
    report = Report(needs.problems, inventory.others, inventory.foreign)
    remover = _Remover(needs, config.root)
    for candidate in candidates:
        removed = None
        if candidate.touched < needs.policy.before:
            if options.is_dry_run:
                removed = Total.of(candidate.content.files)
                report.paths.append((candidate.path, candidate.rule))
            else:
                try:
                    removed = remover.remove(candidate)
                except DataError as error:
                    report.problems.append(str(error))
        totals = report.waiting if removed is None else report.removed
        total = removed or Total.of(candidate.content.files)
        totals.setdefault(candidate.kind, Total()).add(total)
    report.waiting, report.removed = _sort(report.waiting), _sort(report.removed)
    unneeded = {file.name for each in candidates for file in each.content.files}
    contents = [*(run.content for run in inventory.runs), *inventory.shared]
    contents += [content for each in inventory.artifacts for content in each.contents]
    for content in contents:
        report.kept.add(Total.of(content.without(unneeded).files))
    return report


def _sort(totals: dict[str, Total]) -> dict[str, Total]:
    return {kind: totals[kind] for kind in KINDS if kind in totals}


def _read_store_clock(root: StorePath) -> float:
    """The time of the store, so that it is compared with the times of its own files."""
    probe = root / "gc" / "clock"
    probe.write(b"")
    entry = probe.stat()
    return entry.modified if entry else time.time()


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


class _Remover:
    """Removes candidates, each after another look: what was touched since `before` stays.

    Artifacts are to be given newest first: what a removed manifest has referenced is free for the
    ones after it.
    """

    def __init__(self, needs: Needs, root: StorePath):
        self._root, self._before = root, needs.policy.before
        self._pipeline, artifacts = needs.inventory.pipeline, needs.inventory.artifacts
        self._references = Counter(name for each in artifacts for name in each.references)
        """The number of present manifests that list a file."""

    def remove(self, candidate: Candidate) -> Total | None:
        """Removes a candidate. Returns None if it is in use, or was touched in the meantime."""
        if (artifact := candidate.artifact) is None:
            return self._remove_files(self._root / candidate.path)
        folder = self._root / artifact.content.path
        resource = f"the {artifact.job} of {self._pipeline} {artifact.fingerprint}"
        # In a bucket it takes a while to see that a holder on another host is dead.
        wait_seconds = 0.0 if folder.is_local else lease_module.LEASE_SECONDS + 10
        try:
            with hold_lease(lock_file(folder), resource, wait_seconds) as lease:
                return self._remove_of_artifact(candidate, artifact, lease)
        except ResourceHeld:
            return None

    def _remove_of_artifact(
        self, candidate: Candidate, artifact: StoredArtifact, lease: Lease
    ) -> Total | None:
        folder = self._root / artifact.content.path
        if candidate.kind == "artifact":
            if not self._withdraw(folder):
                return None
            self._references.subtract(artifact.references)
        elif not artifact.made and (folder / NAME).exists():
            return None  # it was made in the meantime
        removed: Total | None = Total()
        if candidate.kind != "lock":
            removed = self._remove_files(self._root / candidate.path)
        if removed and candidate.kind == "artifact":
            work_folder(folder).remove_tree()
        if removed and not (folder.walk() or work_folder(folder).walk()):
            usage_file(folder).remove()
            removed.add(Total(1))  # the lock
            lease.discard()
        return removed

    def _remove_files(self, place: StorePath) -> Total | None:
        """Removes a file, or the files in a folder that no present manifest lists.

        Returns None if one of them was touched.
        """
        if entry := place.stat():
            if entry.modified >= self._before:
                return None
            place.remove()
            return Total.of([entry])
        with cache_requests():  # in a bucket, exactly the files that were looked at are removed
            found = place.walk()
            files = [file for file in found if not self._references[f"{place.key}/{file.name}"]]
            if any(file.modified >= self._before for file in files):
                return None
            if len(files) == len(found):
                place.remove_tree()
            else:
                for file in files:
                    (place / file.name).remove()
        return Total.of(files)

    def _withdraw(self, artifact: StorePath) -> bool:
        """Removes the manifest of an artifact, unless it was used in the meantime.

        A run that records its use in between may have found the manifest. It is then put back.
        """
        manifest = artifact / NAME
        if self._was_used(artifact):
            return False
        content = manifest.read(MAX_BYTES)
        manifest.remove()
        if self._was_used(artifact):
            with contextlib.suppress(FileExistsError):
                manifest.create(content)
            return False
        return True

    def _was_used(self, artifact: StorePath) -> bool:
        times = (path.stat() for path in (artifact / NAME, usage_file(artifact)))
        return any(entry and entry.modified >= self._before for entry in times)
