"""The inventory of a pipeline below the storage root, from a few listings, and its versions."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterable
from itertools import chain

from pipeline_ops.config.pipeline import TASKS, PipelineConfig
from pipeline_ops.contract.layout import REQUEST, Layout
from pipeline_ops.contract.manifest import NAME, Manifest, read_manifest
from pipeline_ops.contract.request import read_request
from pipeline_ops.contract.task_record import TaskRecord, read_record
from pipeline_ops.errors import DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.serving_statistics import SUFFIX
from pipeline_ops.registry.versions import read_manifests
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import Entry, StorePath

PROTECTION = "keep"
"""The file in a run's folder that protects the run. Its content has no meaning."""
_JOBS = (*TASKS, "search")
"""The jobs that leave artifacts."""
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_COMPANION = re.compile(
    r"\.{1,2}(?P<fingerprint>[0-9a-f]{32})\."
    r"(?P<kind>work|lock|used|(work\.)?[0-9]+(\.[0-9a-f]+)?\.staging)"
)
_SHARED = re.compile(r"listings/[0-9a-f]{16}\.index")
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.([0-9]+\.[0-9]+|[0-9a-f]{8})\.tmp")
_REQUEST = re.compile(rf"(?P<attempt>[^/]+/attempt-[0-9a-f]{{8}})/{re.escape(REQUEST)}")


@dataclasses.dataclass
class Total:
    """A number of files, and their bytes."""

    num_files: int = 0
    num_bytes: int = 0

    @classmethod
    def of(cls, files: Collection[Entry]) -> Total:
        return cls(len(files), sum(file.num_bytes for file in files))

    def add(self, other: Total) -> None:
        self.num_files += other.num_files
        self.num_bytes += other.num_bytes


@dataclasses.dataclass(frozen=True)
class Content:
    """Some files of the store. All paths are relative to the root.

    `path` is the folder that holds all of them, or the one file. `since` is the time of the folder
    itself, for an empty one.
    """

    path: str
    files: tuple[Entry, ...]
    since: float = 0.0

    @property
    def touched(self) -> float:
        """The time of the last change, in seconds since 1970 by the store's clock."""
        return max((file.modified for file in self.files), default=self.since)

    def without(self, names: set[str]) -> Content:
        """Leaves files out, by their paths relative to the root."""
        files = tuple(file for file in self.files if file.name not in names)
        return dataclasses.replace(self, files=files)


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
    def contents(self) -> list[Content]:
        return [self.content, *self.companions.values()]

    @property
    def references(self) -> set[str]:
        """The files that the manifest lists, and itself, relative to the root."""
        if self.manifest is None:
            return set()
        job = self.content.path.rpartition("/")[0]
        places = (file.find_place(self.fingerprint) for file in self.manifest.files)
        return {f"{self.content.path}/{NAME}", *(f"{job}/{place}" for place in places)}

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
        failed = (record.state == "failed" for record in self.records.values())
        return self.is_successful or any(failed)

    @property
    def uris(self) -> list[str]:
        """The manifests in its records and open requests."""
        recorded = [record.manifest for record in self.records.values() if record.manifest]
        return [*recorded, *(uri for attempt in self.open_attempts for uri in attempt.inputs)]


@dataclasses.dataclass
class Inventory:
    """Everything that a pipeline has below the root, and the versions that may need it."""

    pipeline: str
    artifacts: list[StoredArtifact]
    runs: list[StoredRun]
    shared: list[Content] = dataclasses.field(default_factory=list)
    """Listings of raw files, of all pipelines."""
    temporary: list[Content] = dataclasses.field(default_factory=list)
    """Files whose writers were killed before they gave them their names."""
    foreign: list[str] = dataclasses.field(default_factory=list)
    """The paths of what nothing shows to be ours. It stays."""
    versions: list[tuple[str, Manifest]] = dataclasses.field(default_factory=list)
    """The manifests of published versions, with their URIs."""
    problems: list[str] = dataclasses.field(default_factory=list)
    """The reasons why a version that may need an artifact cannot be read."""
    others: list[str] = dataclasses.field(default_factory=list)
    """The problems of other pipelines, and of folders that all pipelines share and that cannot be
    listed. Nothing in these goes."""


def take_inventory(config: PipelineConfig) -> Inventory:
    """Lists everything.

    Raises:
      MachineError, ConfigError: the store cannot be read.
      DataError: a key below the pipeline's own folders cannot be listed.
    """
    root, layout = config.root, Layout(config.root, config.pipeline)
    of_jobs = {job: _group(layout.artifacts(job)) for job in _JOBS}
    of_runs = _group(root / "runs" / config.pipeline)
    runs = map_requests(lambda content: _read_run(root, content), of_runs)
    of_all, problems = list[Content](), []
    try:
        of_all = _group(layout.listings)
    except DataError as error:
        problems.append(str(error))
    shared = [each for each in of_all if _SHARED.fullmatch(each.path)]
    artifacts = [each for job in _JOBS for each in _find_artifacts(layout, job, of_jobs[job])]
    ours = [run.content for run in runs if run.is_ours]
    ours += [content for artifact in artifacts for content in artifact.contents]
    beside = [*of_all, *chain.from_iterable(of_jobs.values())]
    temporary = _find_temporary_files(ours, beside)
    known = {each.path for each in [*ours, *shared, *temporary]}
    foreign = [each.path for each in [*of_runs, *beside] if each.path not in known]
    runs = [run for run in runs if run.is_ours or run.problem]
    inventory = Inventory(config.pipeline, artifacts, runs, shared, temporary, foreign)
    _add_versions(config, inventory)
    inventory.others += problems
    return inventory


def _find_artifacts(layout: Layout, job: str, found: Iterable[Content]) -> list[StoredArtifact]:
    """The artifacts of a job, whole or not, that a manifest, a lock or another companion shows."""
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
        manifest, problem = None, ""
        if f"{path.key}/{NAME}" in {file.name for file in content.files}:
            try:
                manifest = read_manifest(path / NAME)
            except DataError as error:
                problem = str(error)
        beside = companions.get(fingerprint, {})
        return StoredArtifact(job, fingerprint, content, manifest, problem, beside)

    artifacts = map_requests(read, sorted(contents.keys() | companions.keys()))
    return [each for each in artifacts if each.made or each.companions]


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


def _read_run(root: StorePath, content: Content) -> StoredRun:
    """Reads the records of a run, and the requests of its jobs as far as they matter."""
    folder, records, problems = root / content.path, {}, {}
    modified = {file.name.removeprefix(f"{content.path}/"): file.modified for file in content.files}
    for name in modified:
        task = name.removesuffix(".json")
        if task != name and "/" not in name and name != "trials.json":
            try:
                if record := read_record(folder / name):
                    records[task] = record
            except DataError as error:
                problems[task] = str(error)
    open_attempts, is_ours = [], bool(records)
    for name in modified:
        found = _REQUEST.fullmatch(name)
        is_open = found and f"{found['attempt']}/status.json" not in modified
        if found and (is_open or not is_ours):
            with contextlib.suppress(DataError):  # the job has refused it, too
                request = read_request(folder / name)
                is_ours = True
                if is_open:
                    path = f"{content.path}/{found['attempt']}"
                    inputs = tuple(entry.uri for entry in request.inputs.values())
                    deadline = modified[name] + request.deadline_seconds
                    open_attempts.append(OpenAttempt(path, inputs, deadline))
    # The JSON files of others are no damaged records.
    counted = [text for task, text in problems.items() if is_ours or task in _JOBS]
    return StoredRun(
        folder.name,
        content,
        records,
        tuple(open_attempts),
        PROTECTION in modified,
        "; ".join(counted),
        is_ours,
    )


def _group(folder: StorePath) -> list[Content]:
    """The entries of a folder, each with all files below it."""
    below: dict[str, list[Entry]] = {}
    since = {entry.name: entry.modified for entry in folder.list_folder()}
    for file in folder.walk():
        entry = dataclasses.replace(file, name=f"{folder.key}/{file.name}")
        below.setdefault(file.name.partition("/")[0], []).append(entry)
    return [
        Content(f"{folder.key}/{name}", tuple(below.get(name, ())), since.get(name, 0.0))
        for name in sorted(since.keys() | below.keys())
    ]


def _add_versions(config: PipelineConfig, inventory: Inventory) -> None:
    """Reads the manifests of all versions in the pipeline's registry and below the root."""
    models = config.root / "models"
    locations = {str(config.registry): config.registry}
    try:
        names = (each.name for each in models.list_folder() if each.is_folder)
        folders = (models / name for name in names if not name.endswith(SUFFIX))
        locations |= {str(folder): folder for folder in folders}
    except DataError as error:
        inventory.problems.append(str(error))
    for uri, location in sorted(locations.items()):
        found, problems = list[tuple[str, Manifest]](), []
        try:
            versions = Registry(location).list_versions()
        except DataError as error:
            versions, problems = [], [str(error)]
        for version, manifest in zip(versions, read_manifests(versions), strict=True):
            if isinstance(manifest, DataError):
                problems.append(str(manifest))
            else:
                found.append((version.uri, manifest))
        inventory.versions += found
        is_own = uri == str(config.registry) or _may_be_of(config, location, found)
        (inventory.problems if is_own else inventory.others).extend(problems)


def _may_be_of(
    config: PipelineConfig, registry: StorePath, versions: list[tuple[str, Manifest]]
) -> bool:
    """Returns whether a pipeline may have made versions in a registry other than its own.

    Readable versions name their pipelines. Without any, the registry belongs to the pipeline of its
    name, if there is one.
    """
    if versions:
        return any(manifest.pipeline == config.pipeline for _, manifest in versions)
    other = config.root / "artifacts" / registry.name
    return registry.name == config.pipeline or not other.list_folder()
