"""The paths below a pipeline's storage root. No other module joins them.

<root>/artifacts/<pipeline>/<job>/
    <fingerprint>/manifest.json     immutable results, one folder each. A manifest may reference
                                    files of its neighbours (`ManifestFile.stored_at`)
    .<fingerprint>.work/            kept by a job between two tries: checkpoints, finished shards.
                                    Or the study of a search with a pruner (`contract/pruning.py`)
    .<fingerprint>.lock             held by the one job that makes the artifact
    .<fingerprint>.used             written whenever a run decides to use the artifact
<root>/runs/<pipeline>/<run id>/
    <task>.json                     how a task of the run ended
    summary.json                    how the run ended (`contract/outcome.py`)
    trials.json                     how the trials of a search ended
    examples.png                    training examples, drawn by `trainyard run`
    <task>/attempt-<id>/            request, status, progress and logs of one job process
    <task>/claim.json               the job of the task, for its next try (Airflow 3.2)
<root>/models/<model>/<version>/    published models (`registry/registry.py`), unless
                                    export.registry is elsewhere
<root>/watched/<pipeline>.json      the state of the raw files at a watcher's last report
<root>/listings/                    digests of raw files, so that only changed ones are read
<root>/gc/                          the lock of `trainyard gc`, and the time of the store
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

from pipeline_ops.contract.manifest import NAME, Input, Manifest, read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.storage.store_path import StorePath

REQUEST, SUMMARY = "request.json", "summary.json"
TRIAL = "trial-"
"""The beginning of the name of each trial."""
APPROVE = "approve"
"""The id of the task that asks a person before export, if the config has `evaluate.approval`."""
_ATTEMPT = re.compile(r"attempt-[0-9a-f]{8}")
_ARTIFACT_URI = re.compile(
    rf"(?:(?:.*[^/])?/)?artifacts/([a-z0-9][a-z0-9_-]{{0,62}})/([a-z]+)/([0-9a-f]{{32}})/{re.escape(NAME)}"
)
_CHECKPOINT = re.compile(r"checkpoint-(?:([0-9]{8})-)?([0-9]{9})\.(?:npz|json)")
_WORKER_PROGRESS = re.compile(r"(chief|worker|ps)-[0-9]{1,6}\.jsonl")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The paths of one pipeline."""

    root: StorePath
    pipeline: str

    def artifacts(self, job: str) -> StorePath:
        return self.root / "artifacts" / self.pipeline / job

    def artifact(self, job: str, fingerprint: str) -> StorePath:
        return self.artifacts(job) / fingerprint

    def manifest(self, job: str, fingerprint: str) -> StorePath:
        return self.artifact(job, fingerprint) / NAME

    def check_manifest(self, job: str, uri: str) -> StorePath:
        """Checks a URI from outside. Raises DataError if it is not of an artifact of this job."""
        place = parse_artifact_uri(uri)
        if place and uri == str(manifest := self.manifest(job, place[2])):
            return manifest
        raise DataError(
            f"{uri[:300]!r} is not a manifest of the job {job} of the pipeline {self.pipeline} "
            f"below {self.root}. Clear the task that has left it, and it runs again."
        )

    def locate(self, file: StorePath) -> StorePath:
        """The same file as one below the storage root, so that no folder on the way is a link."""
        return self.root / str(file).removeprefix(f"{self.root}/")

    @property
    def runs(self) -> StorePath:
        """The folder with a folder for each run."""
        return self.root / "runs" / self.pipeline

    def run_folder(self, run_id: str) -> StorePath:
        """The folder of a run. Users may choose run ids, so unsafe characters are encoded."""
        name = re.sub(r"^\.", "%2E", quote(run_id, safe="+:@=,"))
        return self.runs / name

    def task_record(self, run_id: str, task: str) -> StorePath:
        return self.run_folder(run_id) / f"{task}.json"

    def run_summary(self, run_id: str) -> StorePath:
        return self.run_folder(run_id) / SUMMARY

    def attempts(self, run_id: str, task: str) -> StorePath:
        return self.run_folder(run_id) / task

    def claim(self, run_id: str, task: str) -> StorePath:
        return self.attempts(run_id, task) / "claim.json"

    def search_result(self, run_id: str) -> StorePath:
        return self.run_folder(run_id) / "trials.json"

    def examples_picture(self, run_id: str) -> StorePath:
        return self.run_folder(run_id) / "examples.png"

    def attempt(self, run_id: str, task: str, name: str) -> Attempt[StorePath]:
        """The attempt of that name. It need not exist. Raises DataError for an invalid name."""
        if not _ATTEMPT.fullmatch(name):
            raise DataError(f"{name[:100]!r} is not the name of an attempt of {task} in {run_id}")
        return Attempt(self.attempts(run_id, task) / name)

    def newest_attempt(self, run_id: str, task: str) -> Attempt[StorePath] | None:
        """The latest job process that a task has started."""
        folder = self.attempts(run_id, task)
        found = [
            (entry.modified, entry.name)
            for entry in folder.find_in_folders(REQUEST)
            if _ATTEMPT.fullmatch(entry.name.partition("/")[0])
        ]
        return Attempt(folder / max(found)[1].partition("/")[0]) if found else None

    @property
    def watched(self) -> StorePath:
        return self.root / "watched" / f"{self.pipeline}.json"

    @property
    def listings(self) -> StorePath:
        return self.root / "listings"


def format_trial_name(number: int) -> str:
    """The name of a trial's task record, and of the folder of its attempts."""
    return f"{TRIAL}{number:03d}"


def iterate_manifests(folder: StorePath) -> Iterator[tuple[StorePath, Manifest]]:
    """Yields path and manifest of each artifact in a folder, newest first.

    Manifests that are not valid, such as those of another version of Trainyard, are left out.
    """
    found = sorted((entry.modified, entry.name) for entry in folder.find_in_folders(NAME))
    for _, name in reversed(found):
        with contextlib.suppress(DataError):
            yield folder / name, read_manifest(folder / name)


def parse_artifact_uri(uri: str) -> tuple[str, str, str] | None:
    """Pipeline, job and fingerprint of an artifact, by the URI of its manifest below any root.

    None for other URIs, such as that of a published version.
    """
    found = _ARTIFACT_URI.fullmatch(uri)
    return (found[1], found[2], found[3]) if found else None


def find_input(entry: Input, root: StorePath) -> Input:
    """An input with its URI below the root, if the same artifact is there, or else as it is.

    A manifest holds the URIs that its inputs had when it was made, and is never rewritten. After
    the storage root was moved, an artifact has the same place below the new one. Its digest shows
    whether it is the same.
    """
    if entry.uri.startswith(f"{root}/") or not (place := parse_artifact_uri(entry.uri)):
        return entry
    pipeline, job, fingerprint = place
    here = Layout(root, pipeline).manifest(job, fingerprint)
    try:
        is_same = read_manifest(here).digest == entry.digest
    except DataError:
        return entry
    return entry.model_copy(update={"uri": str(here)}) if is_same else entry


def work_folder(artifact: StorePath) -> StorePath:
    """The folder next to an unfinished artifact that a job keeps from one try to the next."""
    return artifact.with_name(f".{artifact.name}.work")


def find_checkpoint_step(artifact: StorePath) -> int | None:
    """The step of the newest checkpoint of an unfinished training, or None without one.

    A training in a folder leaves `checkpoint-<step>.npz`, one in a bucket
    `checkpoint-<token>-<step>.json`, of which the highest token counts.
    """
    names = (entry.name for entry in work_folder(artifact).list_folder())
    found = [(int(m[1] or 0), int(m[2])) for name in names if (m := _CHECKPOINT.fullmatch(name))]
    return max(found)[1] if found else None


def lock_file(artifact: StorePath) -> StorePath:
    return artifact.with_name(f".{artifact.name}.lock")


def usage_file(artifact: StorePath) -> StorePath:
    return artifact.with_name(f".{artifact.name}.used")


PathT = TypeVar("PathT", Path, StorePath)


@dataclasses.dataclass(frozen=True)
class Attempt(Generic[PathT]):
    """The folder of one job process, and the files in it.

    Its readers outside the job see it in the store. The job's own processes see it on their disk.
    """

    folder: PathT

    @property
    def request(self) -> PathT:
        return self.folder / REQUEST

    @property
    def process(self) -> PathT:
        """The file that identifies the process."""
        return self.folder / "process.json"

    @property
    def cancellation(self) -> PathT:
        """The file that orders the job to end, with the reason (`contract/cancellation.py`)."""
        return self.folder / "cancellation.json"

    @property
    def status(self) -> PathT:
        return self.folder / "status.json"

    @property
    def reserve(self) -> PathT:
        """Room for the status on a disk that is full by then (`contract/request.py`)."""
        return self.folder / "status.reserve"

    @property
    def progress(self) -> PathT:
        return self.folder / "progress.jsonl"

    @property
    def log(self) -> PathT:
        return self.folder / "job.log"

    def worker_file(self, name: str, suffix: str) -> PathT:
        """A file of one gang process, by its name in messages: `worker-1.log` for `worker 1`."""
        return self.folder / f"{name.replace(' ', '-')}.{suffix}"

    def worker_log(self, name: str) -> PathT:
        return self.worker_file(name, "log")

    def worker_progress(self, name: str) -> PathT:
        return self.worker_file(name, "jsonl")


def list_worker_progress(attempt: Attempt[StorePath]) -> dict[str, StorePath]:
    """The existing progress files of a gang's processes, by name.

    Other files of the same suffix, such as `rejected.jsonl`, have a different content.
    """
    names = [entry.name for entry in attempt.folder.list_folder()]
    return {
        name.removesuffix(".jsonl").replace("-", " "): attempt.folder / name
        for name in names
        if _WORKER_PROGRESS.fullmatch(name)
    }
