"""One call of `trainyard gc` for one pipeline: decides, and removes what is old enough."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from pipeline_ops.artifacts.layout import Layout, lock_file, usage_file, work_folder
from pipeline_ops.artifacts.manifest import MAX_BYTES, NAME, Manifest
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.storage import Keep
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.retention.inventory import Inventory, StoredArtifact, take_inventory
from pipeline_ops.retention.needs import (
    DAY_SECONDS,
    KINDS,
    WAITING_SECONDS,
    Candidate,
    Needs,
    Policy,
    collect_references,
    find_candidates,
    find_needs,
)
from pipeline_ops.storage.request_cache import cache_requests
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system import lease as lease_module
from pipeline_ops.system.lease import hold_lease
from pipeline_ops.system.locks import ResourceHeld

_LOCK_SECONDS = 600.0
_DECISION_SECONDS = 600.0
"""The needs are computed again after this time."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The choices of the caller.

    Attributes:
      is_dry_run: writes and removes nothing.
      older_than_days: replaces `storage.keep.days`.
      grace_seconds: the time for which everything stays after its last change or use.
      read_clock: the time for ages. By default the store's.
    """

    is_dry_run: bool = False
    older_than_days: int | None = None
    grace_seconds: float = DAY_SECONDS
    read_clock: Callable[[StorePath], float] | None = None


@dataclasses.dataclass
class Total:
    """A number of files, and their bytes."""

    num_files: int = 0
    num_bytes: int = 0

    def add(self, num_files: int, num_bytes: int) -> None:
        self.num_files += num_files
        self.num_bytes += num_bytes


@dataclasses.dataclass
class Report:
    """The findings and deeds of one call, by kind. `waiting` is young, or in use."""

    kept: Total = dataclasses.field(default_factory=Total)
    waiting: dict[str, Total] = dataclasses.field(default_factory=dict)
    removed: dict[str, Total] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    """The reasons why no artifact is removed."""
    others: list[str] = dataclasses.field(default_factory=list)
    """The problems of other pipelines, and of folders that all pipelines share."""
    foreign: list[str] = dataclasses.field(default_factory=list)
    """The paths of what nothing shows to be Trainyard's. It stays."""
    paths: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """In a dry run, what would be removed, with the rule of each."""


@dataclasses.dataclass(frozen=True)
class _Decision:
    inventory: Inventory
    needs: Needs
    candidates: list[Candidate]
    before: float
    """What was touched since this time stays."""
    others: list[str]


def collect(config: PipelineConfig, options: Options) -> Report:
    """Removes what a pipeline does not need and has not touched within the grace period.

    Raises:
      MachineError: another collector works on this root, or the store failed.
      ConfigError: the store refuses a listing, a removal or a condition.
      DataError: a key below the pipeline's own folders cannot be listed.
    """
    layout = Layout(config.root, config.pipeline)
    if options.is_dry_run:
        decision = _decide(config, layout, options, time.time())
        due = [each for each in decision.candidates if each.touched < decision.before]
        young = [each for each in decision.candidates if each.touched >= decision.before]
        report = _make_report(decision, young)
        report.removed, report.paths = _sum(due), [(each.path, each.rule) for each in due]
        return report
    with hold_lease(layout.root / "gc" / "lock", f"trainyard gc in {layout.root}", _LOCK_SECONDS):
        removed: dict[str, Total] = {}
        while True:
            report, is_complete = _collect_once(config, layout, options, removed)
            if is_complete:
                return report


def explain_path(config: PipelineConfig, path: str, options: Options) -> str:
    """Says why a path below the root stays, or from when on it is removed."""
    layout = Layout(config.root, config.pipeline)
    if layout.root.is_local and Path(path).exists():
        path = str(Path(path).resolve())
    key = path.removeprefix(f"{layout.root}/").strip("/")
    decision = _decide(config, layout, options, time.time())
    for candidate in decision.candidates:
        if _is_below(key, candidate.path) or key in {file.name for file in candidate.content.files}:
            due = _format_time(candidate.touched + options.grace_seconds)
            text = f"{candidate.path}: {candidate.rule}. It is removed from {due} on."
            if referenced := _find_kept_files(candidate, key):
                text += f" {', '.join(referenced)} will stay: other artifacts reference it."
            return text
    for run in decision.inventory.runs:
        if _is_below(key, run.content.path):
            return f"{run.content.path} stays: {decision.needs.runs[run.name]}."
    for artifact in decision.inventory.artifacts:
        paths = [artifact.content.path, *(each.path for each in artifact.companions.values())]
        if any(_is_below(key, each) for each in paths):
            reason = decision.needs.artifacts.get(artifact.key)
            blocked = "; ".join(decision.needs.problems)
            return f"{key} stays: {reason or blocked or 'a job may still need it, or uses it'}."
    if any(_is_below(key, each) for each in decision.inventory.foreign):
        return f"{key} stays: nothing shows that Trainyard has written it."
    raise ConfigError(
        f"--why {path}: {layout.pipeline} has no such path below {layout.root}. Name "
        f"artifacts/{layout.pipeline}/TASK/FINGERPRINT or runs/{layout.pipeline}/RUN, or a file in "
        "it."
    )


def _collect_once(
    config: PipelineConfig, layout: Layout, options: Options, removed: dict[str, Total]
) -> tuple[Report, bool]:
    """Decides once, and adds to what was removed.

    Returns False if there was no time to remove everything that was due.
    """
    start = time.monotonic()
    now = (options.read_clock or _read_store_clock)(layout.root)
    decision = _decide(config, layout, options, now)
    remover, waiting = Remover(layout, decision.inventory, decision.before), list[Candidate]()
    problems, is_complete = list[str](), True
    for candidate in decision.candidates:
        total = None
        is_complete = is_complete and time.monotonic() - start <= _DECISION_SECONDS
        if is_complete and candidate.touched < decision.before:
            try:
                total = remover.remove(candidate)
            except DataError as error:
                problems.append(str(error))
        if total:
            removed.setdefault(candidate.kind, Total()).add(total.num_files, total.num_bytes)
        else:
            waiting.append(candidate)
    report = _make_report(decision, waiting)
    report.problems += problems
    report.removed = removed
    return report, is_complete


def _decide(config: PipelineConfig, layout: Layout, options: Options, now: float) -> _Decision:
    approval = config.evaluate.approval
    policy = Policy(
        keep=_choose_keep(config.storage.keep, options.older_than_days),
        grace_seconds=options.grace_seconds,
        waiting_seconds=max(WAITING_SECONDS, approval.timeout_seconds if approval else 0),
        pinned_dataset=config.preprocess.dataset,
    )
    inventory = take_inventory(layout)
    versions = _read_versions(config, layout)
    needs = find_needs(inventory, versions.manifests, policy, config.pipeline, now)
    needs.problems += versions.problems
    candidates = find_candidates(inventory, needs, policy, now)
    before = now - options.grace_seconds
    return _Decision(inventory, needs, candidates, before, [*versions.others, *inventory.problems])


def _choose_keep(keep: Keep | None, older_than_days: int | None) -> Keep | None:
    if older_than_days is None:
        return keep
    return (keep or Keep()).model_copy(update={"days": older_than_days})


@dataclasses.dataclass
class _Versions:
    """The manifests of versions with their URIs, and the problems of unreadable ones.

    `others` are the problems in the models of other pipelines.
    """

    manifests: list[tuple[str, Manifest]] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    others: list[str] = dataclasses.field(default_factory=list)


def _read_versions(config: PipelineConfig, layout: Layout) -> _Versions:
    """Reads the manifests of all versions in the pipeline's registry and below the root."""
    found, models = _Versions(), layout.root / "models"
    locations = {str(config.registry): config.registry}
    try:
        folders = (models / each.name for each in models.list_folder() if each.is_folder)
        locations |= {str(folder): folder for folder in folders}
    except DataError as error:
        found.problems.append(str(error))
    for uri, location in sorted(locations.items()):
        manifests, problems = _read_registry(location)
        found.manifests += manifests
        if problems:
            is_ours = uri == str(config.registry) or _may_be_of(layout, uri, manifests)
            (found.problems if is_ours else found.others).extend(problems)
    return found


def _read_registry(location: StorePath) -> tuple[list[tuple[str, Manifest]], list[str]]:
    """The manifests of the versions there, and the problems of unreadable ones."""
    found, problems = [], []
    try:
        versions = Registry(location).list_versions()
    except DataError as error:
        return [], [str(error)]
    for version in versions:
        try:
            found.append((version.uri, version.read_manifest()))
        except DataError as error:
            problems.append(str(error))
    return found, problems


def _may_be_of(layout: Layout, uri: str, manifests: list[tuple[str, Manifest]]) -> bool:
    """Returns whether a pipeline may have made versions in a registry other than its own.

    The readable ones tell. Without any, the registry is that of the pipeline of its name, if there
    is one.
    """
    if manifests:
        return any(manifest.pipeline == layout.pipeline for _, manifest in manifests)
    name = uri.rpartition("/")[2]
    other = layout.root / "artifacts" / name
    return name == layout.pipeline or not other.list_folder()


def _read_store_clock(root: StorePath) -> float:
    """The time of the store, so that it is compared with the times of its own files."""
    probe = root / "gc" / "clock"
    probe.write(b"")
    entry = probe.stat()
    return entry.modified if entry else time.time()


def _make_report(decision: _Decision, waiting: list[Candidate]) -> Report:
    report = Report(
        problems=list(decision.needs.problems),
        others=list(decision.others),
        foreign=list(decision.inventory.foreign),
    )
    unneeded = {file.name for each in decision.candidates for file in each.content.files}
    inventory = decision.inventory
    contents = [each.content for each in inventory.runs] + list(inventory.shared)
    for artifact in inventory.artifacts:
        contents += [artifact.content, *artifact.companions.values()]
    for content in contents:
        for file in content.files:
            if file.name not in unneeded:
                report.kept.add(1, file.num_bytes)
    report.waiting = _sum(waiting)
    return report


def _sum(candidates: list[Candidate]) -> dict[str, Total]:
    """The files and bytes of candidates by kind."""
    found: dict[str, Total] = {}
    for candidate in sorted(candidates, key=lambda each: KINDS.index(each.kind)):
        total = found.setdefault(candidate.kind, Total())
        total.add(len(candidate.content.files), candidate.content.num_bytes)
    return found


def _find_kept_files(candidate: Candidate, key: str) -> list[str]:
    """The files of a candidate's artifact, at or below a path, that are no candidates."""
    if candidate.artifact is None:
        return []
    removed = {file.name for file in candidate.content.files}
    names = (file.name for file in candidate.artifact.content.files)
    return [name for name in names if name not in removed and _is_below(name, key)]


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) + " UTC"


class Remover:
    """Removes candidates, each after another look: what was touched since `before` stays.

    Artifacts are to be given newest first: what a removed manifest has referenced is free for the
    ones after it.
    """

    def __init__(self, layout: Layout, inventory: Inventory, before: float):
        self._layout, self._root, self._before = layout, layout.root, before
        self._present = {each.key: each for each in inventory.artifacts if each.manifest}

    def remove(self, candidate: Candidate) -> Total | None:
        """Removes a candidate. Returns None if it is in use, or was touched in the meantime."""
        try:
            if candidate.artifact:
                return self._remove_of_artifact(candidate, candidate.artifact)
        except ResourceHeld:
            return None
        return self._remove_files(self._root / candidate.path)

    def _remove_of_artifact(self, candidate: Candidate, artifact: StoredArtifact) -> Total | None:
        folder = self._layout.artifact(artifact.job, artifact.fingerprint)
        resource = f"the {artifact.job} of {self._layout.pipeline} {artifact.fingerprint}"
        # In a bucket it takes a while to see that a holder on another host is dead.
        wait_seconds = 0.0 if folder.is_local else lease_module.LEASE_SECONDS + 10
        with hold_lease(lock_file(folder), resource, wait_seconds) as lease:
            if candidate.kind == "artifact":
                if not self._withdraw(folder):
                    return None
                del self._present[artifact.key]
            elif not artifact.made and (folder / NAME).exists():
                return None  # it was made in the meantime
            if candidate.kind in ("artifact", "remains", "upload"):
                removed = self._remove_unlisted_files(artifact, self._root / candidate.path)
            elif candidate.kind == "lock":
                removed = Total()
            else:
                removed = self._remove_files(self._root / candidate.path)
            if removed and candidate.kind == "artifact":
                work_folder(folder).remove_tree()
            if removed is not None and not _is_there(folder, work_folder(folder)):
                usage_file(folder).remove()
                removed.add(1, 0)  # the lock
                lease.discard()
        return removed

    def _remove_unlisted_files(self, artifact: StoredArtifact, folder: StorePath) -> Total | None:
        """Removes the files of an artifact that no present manifest lists."""
        present = (each for each in self._present.values() if each.job == artifact.job)
        listed = collect_references(present).get(artifact.job, set())
        job, removed = self._layout.artifacts(artifact.job), Total()
        for file in folder.walk():
            place = folder / file.name
            if place.key.removeprefix(f"{job.key}/") not in listed:
                if file.modified >= self._before:
                    return None
                place.remove()
                removed.add(1, file.num_bytes)
        if not folder.walk():
            folder.remove_tree()
        return removed

    def _remove_files(self, place: StorePath) -> Total | None:
        """Removes a file, or a folder with everything in it, that was not touched."""
        if entry := place.stat():
            if entry.modified >= self._before:
                return None
            place.remove()
            return Total(1, entry.num_bytes)
        with cache_requests():  # in a bucket, exactly the files that were looked at are removed
            files = place.walk()
            if any(file.modified >= self._before for file in files):
                return None
            place.remove_tree()
        return Total(len(files), sum(file.num_bytes for file in files))

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


def _is_there(*folders: StorePath) -> bool:
    return any(folder.walk() for folder in folders)
