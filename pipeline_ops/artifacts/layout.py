"""The paths below a pipeline's storage root. No other module joins them.

<root>/artifacts/<pipeline>/<job>/
    <fingerprint>/manifest.json     immutable results, one folder each
    .<fingerprint>.work/            kept by a job between two tries (checkpoints)
    .<fingerprint>.lock             held by the one job that makes the artifact
<root>/runs/<pipeline>/<run id>/
    <task>.json                     how a task of the run ended
    trials.json                     how the trials of a search ended
    notices/<event>.json            a notice about the run, and its recipients so far
    <task>/attempt-<id>/            request, status, progress and logs of one job process
<root>/models/<model>/<version>/    published models (`registry/registry.py`), unless
                                    export.registry is elsewhere
<root>/fetched/                     copies of published models that are kept elsewhere
<root>/watched/<pipeline>.json      the state of the raw files at a watcher's last report
<root>/checked/                     models that were built on one batch and can be trained
                                    (`jobs/model_check.py`)
<root>/listings/                    digests of raw files, so that only changed ones are read
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from urllib.parse import quote

from pipeline_ops.artifacts.manifest import NAME
from pipeline_ops.errors import DataError
from pipeline_ops.storage.parsing import Model, read_json_as
from pipeline_ops.storage.safe_paths import UnsafePath, folder_below

_ATTEMPT = re.compile(r"attempt-[0-9a-f]{8}")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_WORKER_PROGRESS = re.compile(r"(chief|worker|ps)-[0-9]{1,6}\.jsonl")


def _as_folder_name(run_id: str) -> str:
    """Turns a run id, which holds `:` and `+` and may be chosen by a user, into a folder name.

    Safe characters stay. The rest is percent-encoded.
    """
    name = quote(run_id, safe="+:@=,")
    return re.sub(r"^\.", "%2E", name)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The paths of one pipeline."""

    root: Path
    pipeline: str

    def artifacts(self, job: str) -> Path:
        return self.root / "artifacts" / self.pipeline / job

    def artifact(self, job: str, fingerprint: str) -> Path:
        return self.artifacts(job) / fingerprint

    def manifest(self, job: str, fingerprint: str) -> Path:
        return self.artifact(job, fingerprint) / NAME

    def check_manifest(self, job: str, uri: str) -> str:
        """Checks a manifest URI that came from outside.

        Raises:
          DataError: the URI is not that of an artifact of this job.
        """
        fingerprint = uri.rpartition(f"/{NAME}")[0].rpartition("/")[2]
        if not _FINGERPRINT.fullmatch(fingerprint) or uri != str(self.manifest(job, fingerprint)):
            raise DataError(
                f"{uri[:300]!r} is not a manifest of the job {job} of the pipeline {self.pipeline} "
                f"below {self.root}; clear the task that has left it, and it runs again"
            )
        return uri

    def run(self, run_id: str) -> Path:
        return self.root / "runs" / self.pipeline / _as_folder_name(run_id)

    def task_record(self, run_id: str, task: str) -> Path:
        return self.run(run_id) / f"{task}.json"

    def attempts(self, run_id: str, task: str) -> Path:
        return self.run(run_id) / task

    def search_result(self, run_id: str) -> Path:
        return self.run(run_id) / "trials.json"

    def notices(self, run_id: str) -> Path:
        return self.run(run_id) / "notices"

    def attempt(self, run_id: str, task: str, name: str) -> Attempt:
        """The attempt of that name. It need not exist. Raises DataError for an invalid name."""
        if not _ATTEMPT.fullmatch(name):
            raise DataError(f"{name[:100]!r} is not the name of an attempt of {task} in {run_id}")
        return Attempt(self.attempts(run_id, task) / name, self.root)

    def newest_attempt(self, run_id: str, task: str) -> Attempt | None:
        """The latest job process that a task has started."""
        folder = self.attempts(run_id, task)
        try:
            with (
                folder_below(self.root, str(folder.relative_to(self.root))) as descriptor,
                os.scandir(descriptor) as entries,
            ):
                found = [
                    (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name)
                    for entry in entries
                    if _ATTEMPT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except (FileNotFoundError, UnsafePath):
            return None
        return Attempt(folder / max(found)[1], self.root) if found else None

    @property
    def watched(self) -> Path:
        return self.root / "watched" / f"{self.pipeline}.json"

    @property
    def checked_models(self) -> Path:
        return self.root / "checked"

    @property
    def listings(self) -> Path:
        return self.root / "listings"


def trial_name(number: int) -> str:
    """The name of a trial's task record, and of the folder of its attempts."""
    return f"trial-{number:03d}"


def work_folder(artifact: Path) -> Path:
    """The folder next to an unfinished artifact that a job keeps from one try to the next."""
    return artifact.with_name(f".{artifact.name}.work")


def lock_file(artifact: Path) -> Path:
    return artifact.with_name(f".{artifact.name}.lock")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The folder of one job process, and the files in it.

    Args:
      folder: its place.
      root: the trusted folder above it. No path between the two may contain a link. By default the
        folder itself, as its own job sees it.
    """

    folder: Path
    root: Path | None = None

    def below_root(self, file: Path) -> tuple[Path, str]:
        """The trusted folder, and the path from there to a file of this attempt."""
        root = self.root or self.folder
        return root, str(file.relative_to(root))

    def read(self, model: type[Model], file: Path) -> Model | None:
        """The value in a file of this attempt; None if it is missing. Raises as `read_json_as`."""
        return read_json_as(model, *self.below_root(file))

    @property
    def request(self) -> Path:
        return self.folder / "request.json"

    @property
    def process(self) -> Path:
        """The file that identifies the process."""
        return self.folder / "process.json"

    @property
    def unwanted(self) -> Path:
        """The file that orders the job to end, with the reason (`jobs/cancellation.py`)."""
        return self.folder / "unwanted.json"

    @property
    def status(self) -> Path:
        return self.folder / "status.json"

    @property
    def progress(self) -> Path:
        return self.folder / "progress.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "job.log"

    @property
    def scratch(self) -> Path:
        """The folder for messages between the job's processes on all hosts. Removed with it."""
        return self.folder / "scratch"

    def of_worker(self, name: str, suffix: str) -> Path:
        """A file of one gang process, by its name in messages: `worker-1.log` for `worker 1`."""
        return self.folder / f"{name.replace(' ', '-')}.{suffix}"

    def worker_log(self, name: str) -> Path:
        return self.of_worker(name, "log")

    def worker_progress(self, name: str) -> Path:
        return self.of_worker(name, "jsonl")

    def workers_progress(self) -> dict[str, Path]:
        """The existing progress files of a gang's processes, by name.

        Other files of the same suffix, such as `rejected.jsonl`, have a different content.
        """
        names = sorted(name for name in os.listdir(self.folder) if _WORKER_PROGRESS.fullmatch(name))
        return {name.removesuffix(".jsonl").replace("-", " "): self.folder / name for name in names}
