"""The inventory of a pipeline below the storage root, from a few listings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

from pipeline_ops.artifacts.layout import REQUEST, Attempt, Layout
from pipeline_ops.artifacts.manifest import NAME, Manifest, read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.jobs.request import Request, read_request
from pipeline_ops.jobs.task_record import TaskRecord, read_record
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import Entry, StorePath

PROTECTION = "keep"
"""The file in a run's folder that protects the run. Its content has no meaning."""
_JOBS = ("preprocess", "train", "evaluate", "export")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_COMPANION = re.compile(
    r"\.{1,2}(?P<fingerprint>[0-9a-f]{32})\."
    r"(?P<kind>work|lock|used|(work\.)?[0-9]+(\.[0-9a-f]+)?\.staging)"
)
_SHARED = re.compile(r"listings/[0-9a-f]{16}\.index|checked/[0-9a-f]{32}\.json")
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.([0-9]+\.[0-9]+|[0-9a-f]{8})\.tmp")
_ATTEMPT_FILE = re.compile(r"(?P<attempt>[^/]+/attempt-[0-9a-f]{8})/(?P<rest>.+)")
Value = TypeVar("Value")
Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True)
class Content:
    """Some files of the store.

    Attributes:
      path: the folder or file that holds all of them, relative to the root.
      files: their paths relative to the root, with sizes and times.
      since: the time of the folder itself, for an empty one.
    """

    path: str
    files: tuple[Entry, ...]
    since: float = 0.0

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def touched(self) -> float:
        """The time of the last change, in seconds since 1970 by the store's clock."""
        return max((file.modified for file in self.files), default=self.since)


@dataclasses.dataclass(frozen=True)
class StoredArtifact:
    """The folder of an artifact, and the entries next to it that belong to it.

    `manifest` is None if there is none. `problem` is the reason why it cannot be read.
    `companions` are by kind: work, lock, used, and any number of stagings.
    """

    job: str
    fingerprint: str
    content: Content
    manifest: Manifest | None = None
    problem: str = ""
    companions: dict[str, Content] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.job, self.fingerprint

    @property
    def is_ours(self) -> bool:
        """Returns whether a manifest, a lock or another companion shows that we have made it."""
        return bool(self.made or self.companions)

    @property
    def made(self) -> float:
        """The time of the manifest; 0 without one."""
        name = f"{self.content.path}/{NAME}"
        return next((file.modified for file in self.content.files if file.name == name), 0.0)

    @property
    def used(self) -> float:
        """The time of the last use that is known."""
        usage = self.companions.get("used")
        return max(self.made, usage.touched if usage else 0.0)


@dataclasses.dataclass(frozen=True)
class OpenAttempt:
    """A job without a status. It has ended by its deadline, whatever has happened."""

    path: str
    inputs: tuple[str, ...]
    deadline: float


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """The folder of a run. `problem` is the reason why a record of it cannot be read.

    `is_ours` tells it from a folder of somebody else: it has a readable record or request.
    """

    name: str
    content: Content
    records: dict[str, TaskRecord]
    open_attempts: tuple[OpenAttempt, ...] = ()
    is_protected: bool = False
    problem: str = ""
    is_ours: bool = True

    @property
    def is_successful(self) -> bool:
        """Returns whether it came to its end, with a publication or without."""
        export = self.records.get("export")
        return export is not None and export.state != "failed"

    @property
    def is_finished(self) -> bool:
        return self.is_successful or any(
            record.state == "failed" for record in self.records.values()
        )


@dataclasses.dataclass(frozen=True)
class Inventory:
    """Everything that a pipeline has below the root, except published versions."""

    artifacts: tuple[StoredArtifact, ...]
    runs: tuple[StoredRun, ...]
    shared: tuple[Content, ...]
    """Listings of raw files and verdicts about models, of all pipelines."""
    temporary: tuple[Content, ...] = ()
    """Files whose writers were killed before they gave them their names."""
    foreign: tuple[str, ...] = ()
    """The paths of what nothing shows to be ours. It stays."""
    problems: tuple[str, ...] = ()
    """The reasons why a folder that all pipelines share cannot be listed. Nothing in it goes."""


def take_inventory(layout: Layout) -> Inventory:
    """Lists everything.

    Raises:
      MachineError, ConfigError: the store cannot be read.
      DataError: a key below the pipeline's own folders cannot be listed.
    """
    root = layout.root
    jobs = {job: _group(root, layout.artifacts(job).key) for job in _JOBS}
    folders = _group(root, f"runs/{layout.pipeline}")
    runs = list(map_requests(lambda content: _read_run(layout, content), folders))
    found, problems = list[Content](), []
    for folder in (layout.listings.key, layout.checked_models.key):
        try:
            found += _group(root, folder)
        except DataError as error:
            problems.append(str(error))
    shared = [each for each in found if _SHARED.fullmatch(each.path)]
    artifacts = [each for job in _JOBS for each in _find_artifacts(layout, job, jobs[job])]
    ours = [run.content for run in runs if run.is_ours]
    ours += [each.content for each in artifacts if each.is_ours]
    ours += chain.from_iterable(each.companions.values() for each in artifacts)
    temporary = _find_temporary_files(ours, [*found, *chain.from_iterable(jobs.values())])
    known = {each.path for each in [*ours, *shared, *temporary]}
    everything = [*folders, *found, *chain.from_iterable(jobs.values())]
    return Inventory(
        tuple(each for each in artifacts if each.is_ours),
        tuple(run for run in runs if run.is_ours or run.problem),
        tuple(shared),
        tuple(temporary),
        tuple(each.path for each in everything if each.path not in known),
        tuple(problems),
    )


def _find_artifacts(layout: Layout, job: str, found: Iterable[Content]) -> list[StoredArtifact]:
    """The artifacts of a job, whole or not, and what belongs to them."""
    contents, companions = dict[str, Content](), dict[str, dict[str, Content]]()
    for content in found:
        name = content.path.rpartition("/")[2]
        if _FINGERPRINT.fullmatch(name):
            contents[name] = content
        elif matched := _COMPANION.fullmatch(name):
            companions.setdefault(matched["fingerprint"], {})[matched["kind"]] = content

    def read(fingerprint: str) -> StoredArtifact:
        path = layout.artifact(job, fingerprint)
        content = contents.get(fingerprint, Content(path.key, ()))
        artifact = StoredArtifact(
            job, fingerprint, content, companions=companions.get(fingerprint, {})
        )
        if not artifact.made:
            return artifact
        try:
            return dataclasses.replace(artifact, manifest=read_manifest(path / NAME))
        except DataError as error:
            return dataclasses.replace(artifact, problem=str(error))

    return map_requests(read, sorted(contents.keys() | companions.keys()))


def _find_temporary_files(ours: Iterable[Content], others: Iterable[Content]) -> list[Content]:
    """The temporary files in what is ours, and those of files that lie beside it."""
    inner = (file for each in ours for file in each.files)
    outer = (file for each in others for file in each.files if file.name == each.path)
    found = [file for file in inner if _TEMPORARY.fullmatch(file.name.rpartition("/")[2])]
    for file in outer:
        folder, _, name = file.name.rpartition("/")
        if matched := _TEMPORARY.fullmatch(name):
            is_ours = _COMPANION.fullmatch(matched["name"])
            if is_ours or _SHARED.fullmatch(f"{folder}/{matched['name']}"):
                found.append(file)
    return [Content(file.name, (file,)) for file in found]


def _read_run(layout: Layout, content: Content) -> StoredRun:
    root, names = (
        layout.root,
        [file.name.removeprefix(f"{content.path}/") for file in content.files],
    )
    records, problems = {}, []
    for name in names:
        if "/" not in name and name.endswith(".json") and name != "trials.json":
            try:
                if record := read_record(root / content.path / name):
                    records[name.removesuffix(".json")] = record
            except DataError as error:
                problems.append((name, str(error)))
    is_ours = bool(records) or _has_request(root, content)
    # The JSON files of others are no damaged records.
    counted = [text for name, text in problems if is_ours or name.removesuffix(".json") in _JOBS]
    return StoredRun(
        content.path.rpartition("/")[2],
        content,
        records,
        tuple(_find_open_attempts(root, content)),
        PROTECTION in names,
        "; ".join(counted),
        is_ours,
    )


def _has_request(root: StorePath, content: Content) -> bool:
    for file in content.files:
        found = _ATTEMPT_FILE.fullmatch(file.name.removeprefix(f"{content.path}/"))
        if found and found["rest"] == REQUEST:
            attempt = Attempt(root / content.path / found["attempt"])
            if _try_read_request(attempt):
                return True
    return False


def _find_open_attempts(root: StorePath, content: Content) -> list[OpenAttempt]:
    written: dict[str, dict[str, float]] = {}
    for file in content.files:
        if found := _ATTEMPT_FILE.fullmatch(file.name.removeprefix(f"{content.path}/")):
            written.setdefault(found["attempt"], {})[found["rest"]] = file.modified
    found_attempts = []
    for path, files in written.items():
        if REQUEST in files and "status.json" not in files:
            attempt = Attempt(root / content.path / path)
            request = _try_read_request(attempt)
            if request:
                inputs = (entry.uri for entry in request.inputs.values())
                deadline = files[REQUEST] + request.deadline_seconds
                found_attempts.append(OpenAttempt(attempt.folder.key, tuple(inputs), deadline))
    return found_attempts


def _try_read_request(attempt: Attempt[StorePath]) -> Request | None:
    """The request of a job. None if it is unreadable, in which case the job has refused it, too."""
    try:
        return read_request(attempt.request)
    except DataError:
        return None


def _group(root: StorePath, folder: str) -> list[Content]:
    """The entries of a folder, each with all files below it."""
    below: dict[str, list[Entry]] = {}
    since = {entry.name: entry.modified for entry in (root / folder).list_folder()}
    for file in _walk(root, folder):
        name = file.name.removeprefix(f"{folder}/").partition("/")[0]
        below.setdefault(name, []).append(file)
    return [
        Content(f"{folder}/{name}", tuple(below.get(name, ())), since.get(name, 0.0))
        for name in sorted(since.keys() | below.keys())
    ]


def _walk(root: StorePath, folder: str) -> list[Entry]:
    """All files below a folder, with paths relative to the root."""
    return [
        dataclasses.replace(file, name=f"{folder}/{file.name}") for file in (root / folder).walk()
    ]
