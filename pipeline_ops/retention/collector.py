"""One call of `trainyard gc` for one pipeline: decides, marks, and removes what is due."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import Manifest
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.storage import Keep
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.retention.candidates import KINDS, Candidate, find_candidates
from pipeline_ops.retention.inventory import Inventory, take_inventory
from pipeline_ops.retention.marks import Mark, read_marks, update_marks, write_marks
from pipeline_ops.retention.needs import (
    DAY_SECONDS,
    WAITING_SECONDS,
    Needs,
    Policy,
    find_needs,
)
from pipeline_ops.retention.removal import Remover, Total
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import hold_lease

_LOCK_SECONDS = 600.0
_DECISION_SECONDS = 600.0
"""The time after which what is needed is found out again."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The choices of the caller.

    Attributes:
      is_dry_run: writes and removes nothing.
      older_than_days: replaces `storage.keep.days`.
      grace_seconds: the time between a mark and the removal.
      read_clock: the time for marks and ages. By default the store's.
    """

    is_dry_run: bool = False
    older_than_days: int | None = None
    grace_seconds: float = DAY_SECONDS
    read_clock: Callable[[StorePath], float] | None = None


@dataclasses.dataclass
class Report:
    """The findings and deeds of one call, by kind. `waiting` are the marked ones that were left."""

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
    """The marked paths with their rules, as they were before the removal."""


@dataclasses.dataclass(frozen=True)
class _Decision:
    inventory: Inventory
    needs: Needs
    candidates: list[Candidate]
    now: float
    others: list[str]


def collect(config: PipelineConfig, options: Options) -> Report:
    """Marks what a pipeline does not need, and removes what was marked long enough ago.

    Raises:
      MachineError: another collector works on this root, or the store failed.
      ConfigError: the store refuses a listing, a removal or a condition.
      DataError: a key below the pipeline's own folders cannot be listed.
    """
    layout = Layout(config.root, config.pipeline)
    if options.is_dry_run:
        decision = _decide(config, layout, options, time.time())
        marks = update_marks(read_marks(layout), decision.candidates, decision.now)
        return _make_report(decision, marks)
    with hold_lease(layout.root / "gc" / "lock", f"trainyard gc in {layout.root}", _LOCK_SECONDS):
        removed: dict[str, Total] = {}
        while True:
            report, is_complete = _collect_once(config, layout, options, removed)
            if is_complete:
                return report


def explain_path(config: PipelineConfig, path: str, options: Options) -> str:
    """Says why a path below the root stays, or since when it is marked."""
    layout = Layout(config.root, config.pipeline)
    key = path.removeprefix(f"{layout.root}/").strip("/")
    decision = _decide(config, layout, options, time.time())
    marks = read_marks(layout)
    for candidate in decision.candidates:
        if _is_below(key, candidate.path) or key in {file.name for file in candidate.content.files}:
            mark = marks.get(candidate.path)
            since = f"marked since {_format_time(mark.since)}" if mark else "not yet marked"
            text = f"{candidate.path}: {candidate.rule}. It is {since}."
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
    marks = update_marks(read_marks(layout), decision.candidates, now)
    write_marks(layout, marks)
    report, remover = _make_report(decision, marks), Remover(layout, decision.inventory)
    is_complete = True
    for candidate in decision.candidates:
        mark = marks[candidate.path]
        if mark.since == now or now - mark.since < options.grace_seconds:
            continue
        if time.monotonic() - start > _DECISION_SECONDS:
            is_complete = False
            break
        try:
            total = remover.remove(candidate, mark)
        except DataError as error:
            report.problems.append(str(error))
            continue
        if total:
            del marks[candidate.path]
            removed.setdefault(candidate.kind, Total()).add(total.num_files, total.num_bytes)
    write_marks(layout, marks)
    report.waiting, report.removed = _sum_waiting(decision.candidates, marks), removed
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
    return _Decision(inventory, needs, candidates, now, [*versions.others, *inventory.problems])


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


def _make_report(decision: _Decision, marks: dict[str, Mark]) -> Report:
    report = Report(
        problems=list(decision.needs.problems),
        others=list(decision.others),
        foreign=list(decision.inventory.foreign),
    )
    marked = {file.name for each in decision.candidates for file in each.content.files}
    inventory = decision.inventory
    contents = [each.content for each in inventory.runs] + list(inventory.shared)
    for artifact in inventory.artifacts:
        contents += [artifact.content, *artifact.companions.values()]
    for content in contents:
        for file in content.files:
            if file.name not in marked:
                report.kept.add(1, file.num_bytes)
    report.waiting = _sum_waiting(decision.candidates, marks)
    report.paths = [(each.path, each.rule) for each in decision.candidates]
    return report


def _sum_waiting(candidates: list[Candidate], marks: dict[str, Mark]) -> dict[str, Total]:
    waiting: dict[str, Total] = {}
    for kind in KINDS:
        for each in candidates:
            if each.kind == kind and each.path in marks:
                total = waiting.setdefault(kind, Total())
                total.add(len(each.content.files), each.content.num_bytes)
    return waiting


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
