"""A pipeline's runs without Airflow and TensorFlow: artifacts, records and versions are written by
the project's own functions, with tiny files."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import yaml
from manifests import make_manifest

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Attempt, Layout, find_input, lock_file
from pipeline_ops.contract.manifest import (
    Input,
    find_damage,
    list_files,
    locate_file,
    read_manifest,
    write_manifest,
)
from pipeline_ops.contract.request import Request, Status, write_request, write_status
from pipeline_ops.contract.task_record import TaskRecord, write_record
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.workspace import open_draft
from pipeline_ops.registry.registry import Registry
from pipeline_ops.retention.collector import Options, Report, collect
from pipeline_ops.storage.checksums import ChecksumAccumulator
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import hold_lease

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
DAY = 86400.0
NUM_SHARDS = 12


def make_config(folder: Path, root: str, keep: dict | None) -> PipelineConfig:
    values = yaml.safe_load(DIGITS.read_text()) | {"storage": {"root": root}}
    if keep is not None:
        values["storage"]["keep"] = keep
    (folder / "digits.yaml").write_text(yaml.safe_dump(values))
    return load_config(folder / "digits.yaml")


@dataclasses.dataclass
class SimulatedPipeline:
    """One run a day on a data set that grows: each day one shard is longer than before, and the
    others are referenced.

    Attributes:
      start: the time of day 0, for a folder, whose files get the times of their days.
    """

    config: PipelineConfig
    start: float = 1.7e9
    newest_dataset: str | None = None
    last_evaluation: str | None = None

    @property
    def root(self) -> StorePath:
        return self.config.root

    @property
    def layout(self) -> Layout:
        return Layout(self.root, self.config.pipeline)

    @property
    def registry(self) -> Registry:
        return Registry(self.config.registry)

    def run_day(self, day: int, publish: bool = False) -> dict[str, str]:
        """One successful run. Returns the manifests of its jobs."""
        run_id = f"scheduled__{day:04d}"
        made = {"preprocess": self.make_dataset(run_id, day)}
        made["train"] = self.make(run_id, "train", day, preprocess=made["preprocess"])
        evaluated = {"preprocess": made["preprocess"], "train": made["train"]}
        if self.last_evaluation:
            evaluated["last_evaluation"] = self.last_evaluation
        made["evaluate"] = self.make(run_id, "evaluate", day, **evaluated)
        self.last_evaluation = made["evaluate"]
        if publish:
            made["export"] = self.make(
                run_id, "export", day, train=made["train"], evaluate=made["evaluate"]
            )
            self.publish(day, made)
        else:
            record = TaskRecord(state="skipped", reason="the gate was not passed")
            write_record(self.layout.task_record(run_id, "export"), record)
        self.date_files(day)
        return made

    def make_dataset(self, run_id: str, day: int) -> str:
        before = self.newest_dataset and read_manifest(self.newest_dataset)
        names = [f"train-{number:05d}-of-{NUM_SHARDS:05d}.tfrecord" for number in range(NUM_SHARDS)]
        changed = names if before is None else [names[day % NUM_SHARDS]]
        files = {name: f"{name} {day} ".encode() * (100 + day) for name in changed}
        references = []
        if before is not None:
            folder = Path(before.fingerprint_digest)
            kept = (file for file in before.files if file.path not in changed)
            references = [file.reference(folder) for file in kept if file.path in names]
        inputs = {"base": self.newest_dataset} if self.newest_dataset else {}
        self.newest_dataset = self.make(
            run_id, "preprocess", day, files | {"index": b"i" * day}, references, **inputs
        )
        return self.newest_dataset

    def make(
        self, run_id: str, job: str, day: int, files=None, references=(), **inputs: str
    ) -> str:
        """Makes an artifact as a job does, with its attempt and its record. Returns the URI."""
        fingerprint = Fingerprint(config={"day": day, "job": job}, inputs={}, code={}, versions={})
        artifact = open_path(str(self.layout.artifact(job, fingerprint.digest)))  # as a job does
        request = Request(
            job=job,
            pipeline=self.config.pipeline,
            run_id=run_id,
            config_file="",
            config={},
            inputs={name: make_input(uri) for name, uri in inputs.items()},
            root=str(self.root),
            artifact=str(artifact),
            fingerprint=fingerprint,
            deadline_seconds=3600,
        )
        attempt = Attempt(self.layout.attempts(run_id, job) / f"attempt-{day:08x}")
        write_request(attempt, request)
        attempt.log.open_log().append(b"a line\n" * 20)
        with (
            hold_lease(lock_file(artifact), job) as lease,
            open_draft(artifact, request, lease) as draft,
        ):
            for name, content in (files or {"result": f"{job} {day}".encode() * 50}).items():
                (draft.folder / name).write_bytes(content)
            draft.references = list(references)
        manifest = str(self.layout.manifest(job, fingerprint.digest))
        write_status(attempt, Status(exit_code=ExitCode.SUCCESS, manifest=manifest))
        record = TaskRecord(state="success", manifest=manifest, attempt=str(attempt.folder))
        write_record(self.layout.task_record(run_id, job), record)
        return manifest

    def publish(self, day: int, made: dict[str, str]) -> None:
        inputs = {name: make_input(made[name]) for name in ("train", "evaluate")}

        def fill(folder: Path, number: int) -> None:
            (folder / "saved_model.pb").write_bytes(b"model" * 100)
            fingerprint = Fingerprint(config={"day": day}, inputs={}, code={}, versions={})
            pipeline, files = self.config.pipeline, list_files(folder)
            manifest = make_manifest(
                "export", fingerprint, pipeline=pipeline, inputs=inputs, files=files
            )
            write_manifest(folder, manifest)

        version = self.registry.publish(inputs["train"].digest, fill)
        self.registry.promote(version.number, "better")
        self.registry.retire(3, "export.keep_versions is 3")

    def date_files(self, day: int) -> None:
        """Gives everything that was written just now the time of its day. A bucket can't."""
        if self.root.is_local:
            now = self.start + day * DAY
            for path in [*self.root.local.rglob("*")]:
                if path.lstat().st_mtime > now:
                    os.utime(path, (now, now))

    def collect(self, day: float, **options) -> Report:
        """Collects in the evening of a day."""
        return collect(self.config, Options(now=self.start + day * DAY + 1000, **options))


def make_input(uri: str) -> Input:
    return Input(uri=uri, digest=read_manifest(open_path(uri)).digest)


def find_problems(uri: str) -> list[str]:
    """Missing files and wrong checksums of an artifact, in a folder or in a bucket."""
    path = open_path(uri)
    manifest = read_manifest(path)
    problems = find_damage(path, manifest, checksums=True)
    for file in manifest.files if not problems else ():
        content = ChecksumAccumulator()
        for block in locate_file(path, file).read_blocks():
            content.update(block)
        if not file.has_content(content.result):
            problems.append(f"{file.path} has another content")
    return problems


def check_lineage(pipeline: SimulatedPipeline) -> int:
    """Checks that each version can be reproduced. Returns the number of versions."""
    versions = pipeline.registry.list_versions()
    for version in versions:
        inputs = version.read_manifest().inputs
        training = find_input(inputs["train"], pipeline.root).uri
        evaluation = find_input(inputs["evaluate"], pipeline.root).uri
        dataset = find_input(read_manifest(training).inputs["preprocess"], pipeline.root).uri
        for uri in (training, evaluation, dataset):
            assert find_problems(uri) == []
    return len(versions)
