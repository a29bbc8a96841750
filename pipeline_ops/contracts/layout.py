"""Where things lie below a pipeline's storage root. Nobody else joins these paths.

    <root>/artifacts/<pipeline>/<job>/<fingerprint>/manifest.json     immutable results, one folder each
    <root>/artifacts/<pipeline>/<job>/.<fingerprint>.work/            what a job keeps between two tries (checkpoints)
    <root>/artifacts/<pipeline>/<job>/.<fingerprint>.lock             held by the one job that makes it
    <root>/runs/<pipeline>/<run id>/<task>.json                       how a task of a run ended
    <root>/runs/<pipeline>/<run id>/trials.json                       how the trials of a search ended
    <root>/runs/<pipeline>/<run id>/notices/<event>.json              what people are told of the run, and who has been told
    <root>/runs/<pipeline>/<run id>/<task>/attempt-<id>/              request, status, progress and logs of one job process
    <root>/models/<model>/<version>/                                  published models (`registry.py`), unless export.registry is elsewhere
    <root>/fetched/                                                   copies of published models that are kept elsewhere
    <root>/watched/<pipeline>.json                                    how the raw files were when a watcher last told of them
    <root>/listings/                                                  digests of raw files, so that only changed ones are read
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from urllib.parse import quote

from pipeline_ops.contracts.manifest import NAME


def _as_folder_name(run_id: str) -> str:
    """A run id holds `:` and `+`, and a person may have chosen it: keep what is safe in a path, percent-encode the rest."""
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

    def newest_attempt(self, run_id: str, task: str) -> Attempt | None:
        """Of the job processes that a task has started, the last one."""
        folders = self.attempts(run_id, task).glob("attempt-*")
        newest = max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
        return newest and Attempt(newest)

    @property
    def watched(self) -> Path:
        return self.root / "watched" / f"{self.pipeline}.json"

    @property
    def listings(self) -> Path:
        return self.root / "listings"


def work_folder(artifact: Path) -> Path:
    """What a job keeps from one try to the next, beside the artifact that it is making."""
    return artifact.with_name(f".{artifact.name}.work")


def lock_file(artifact: Path) -> Path:
    return artifact.with_name(f".{artifact.name}.lock")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The folder of one job process, and the files in it."""

    folder: Path

    @property
    def request(self) -> Path:
        return self.folder / "request.json"

    @property
    def process(self) -> Path:
        """Which process it is."""
        return self.folder / "process.json"

    @property
    def unwanted(self) -> Path:
        """Tells the job to end, and why (`wanted.py`)."""
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
        """What processes of the job on any host tell one another; gone with the job."""
        return self.folder / "scratch"

    def of_worker(self, name: str, suffix: str) -> Path:
        """A file of one process of a gang, by the name that it has in messages: `worker-1.log` of `worker 1`."""
        return self.folder / f"{name.replace(' ', '-')}.{suffix}"

    def worker_log(self, name: str) -> Path:
        return self.of_worker(name, "log")

    def worker_progress(self, name: str) -> Path:
        return self.of_worker(name, "jsonl")

    def workers_progress(self) -> dict[str, Path]:
        """The progress files of a gang's processes that are there, by name."""
        return {file.stem.replace("-", " "): file for file in sorted(self.folder.glob("*.jsonl")) if file != self.progress}
