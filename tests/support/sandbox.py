"""Small real models, and the artifacts that a training would leave, for evaluation and export.

The models are linear classifiers, fitted in closed form, so that a good one and a poor one cost
milliseconds. They are saved, served and checked like any other model.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from linear_models import fit, read_examples, training_figures, write_model
from manifests import list_counted

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.dataset import (
    KEY,
    QUARANTINE,
    DatasetFigures,
    list_shard_paths,
    list_shards,
)
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Attempt, Layout, lock_file
from pipeline_ops.contract.manifest import (
    NAME,
    Input,
    Manifest,
    list_files,
    read_manifest,
    write_manifest,
)
from pipeline_ops.contract.progress import ProgressWriter
from pipeline_ops.contract.request import write_request
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.runner import Job
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.lease import Lease

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
NUM_REFERENCES = 16
FITTED_ON = {"good": 700, "fair": 120, "poor": 12}
"""The number of examples that each model has seen.

Their accuracies on the test split are 0.87, 0.74 and 0.47.
"""
NEARLY_ALL = 690
"""The number of examples that `nearly` has seen.

On the test split it is not distinguishable from `good`. `shuffled` has seen as many as `good`, with
shuffled labels.
"""


@pytest.fixture(scope="session")
def saved_models(dataset, tmp_path_factory) -> dict[str, Path]:
    """A folder with a SavedModel and its references for each model, as training leaves them."""
    folder = tmp_path_factory.mktemp("models")
    examples, images, labels = read_examples(
        list_shard_paths(dataset, read_manifest(dataset), "train")
    )
    tests, _, _ = read_examples(list_shard_paths(dataset, read_manifest(dataset), "test"))
    for name, count in FITTED_ON.items():
        write_model(folder / name, fit(images[:count], labels[:count]), tests[:NUM_REFERENCES])
    write_model(
        folder / "nearly", fit(images[:NEARLY_ALL], labels[:NEARLY_ALL]), tests[:NUM_REFERENCES]
    )
    write_model(
        folder / "shuffled",
        fit(images, np.random.default_rng(1).permutation(labels)),
        tests[:NUM_REFERENCES],
    )
    return {name: folder / name for name in (*FITTED_ON, "nearly", "shuffled")}


@pytest.fixture
def sandbox(dataset, saved_models, tmp_path) -> Sandbox:
    return Sandbox(tmp_path / "root", dataset, saved_models)


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """A storage root in which artifacts are made and jobs are run."""

    root: Path
    dataset: str
    saved_models: Mapping[str, Path]
    file: Path = DIGITS
    """The config. Its name is that of the pipeline."""

    @property
    def registry(self) -> Registry:
        return Registry(self.root / "models" / "digits")

    def config(self, **overrides) -> PipelineConfig:
        """The config with overrides; `evaluate__gate` stands for `evaluate.gate`."""
        return load_config(
            self.file,
            {
                "storage.root": str(self.root),
                "evaluate.batch_size": 32,
                "evaluate.gate": [{"metric": "accuracy", "at_least": 0.7}],
            }
            | {key.replace("__", "."): value for key, value in overrides.items()},
        )

    def train(self, model: str, dataset: str | None = None, tag: str = "") -> str:
        """Leaves the artifact of a training of one model. `tag` distinguishes artifacts."""
        uri = dataset or self.dataset
        return self.artifact(
            "train",
            model + tag,
            figures=training_figures(read_manifest(uri)),
            fill=self.saved_models[model],
            inputs={"preprocess": Input(uri=uri, digest=read_manifest(uri).digest)},
            tag=tag,
        )

    def artifact(
        self,
        job: str,
        name: str,
        figures,
        fill: Path,
        inputs: Mapping[str, Input] | None = None,
        tag: str = "",
    ) -> str:
        """Copies a folder to the place of an artifact, and adds a manifest."""
        fingerprint = Fingerprint(
            config={"model": name, "epochs": 15},
            inputs={},
            code={"pipeline_ops/training/loop.py": "0" * 16},
            versions={"keras": "3.15.1"},
        )
        folder = Layout(open_root(self.root), "digits").artifact(job, fingerprint.digest).local
        shutil.copytree(fill, folder)
        (folder / "tag").write_text(tag)
        write_manifest(
            folder,
            Manifest(
                job=job,
                pipeline="digits",
                fingerprint=fingerprint,
                fingerprint_digest=fingerprint.digest,
                inputs=dict(inputs or {}),
                seeds={"train": 1},
                files=list_files(folder),
                figures=figures.model_dump(mode="json"),
            ),
        )
        return str(folder / NAME)

    def plan(
        self,
        job: str,
        train: str,
        evaluate: str | None = None,
        dataset: str | None = None,
        **overrides,
    ) -> JobPlan:
        manifests = {"preprocess": dataset or self.dataset, "train": train, "evaluate": evaluate}
        return plan_job(
            job,
            self.config(**overrides),
            "run-1",
            {name: uri for name, uri in manifests.items() if uri},
        )

    def run(self, plan: JobPlan, attempt: str = "attempt") -> tuple[ExitCode, Path]:
        """Runs a job in this process. Returns its exit code and the folder of its artifact."""
        job = Job(
            plan.request,
            Attempt(self.root / attempt),
            ProgressWriter(Attempt(self.root / attempt).progress),
            Lease(lock_file(open_path(plan.request.artifact))),
        )
        return get_job_function(plan.request.job)(job), Path(plan.request.artifact)

    def start(
        self, plan: JobPlan, attempt: str = "attempt"
    ) -> tuple[subprocess.Popen, Attempt[StorePath]]:
        """Starts a job as an operator would."""
        folder = Attempt(open_root(self.root) / attempt)
        write_request(folder, plan.request)
        command = [
            sys.executable,
            "-m",
            KINDS[plan.request.job].module,
            "--request",
            str(folder.request),
        ]
        with open(folder.log.local, "wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True), folder

    def evaluate(self, train: str, **overrides) -> str:
        """Runs an evaluation if necessary. Returns the URI of its manifest."""
        plan = self.plan("evaluate", train, **overrides)
        return str(plan.manifest if plan.is_cached else self.run(plan)[1] / NAME)

    def publish(self, model: str, **overrides) -> str:
        """Trains, evaluates and exports. Returns the URI of the training's manifest."""
        train = self.train(model)
        self.run(self.plan("export", train, self.evaluate(train, **overrides), **overrides))
        return train


def remove_from_tests(
    dataset: str, folder: Path, positions: Sequence[int], num_shards: int = 1
) -> str:
    """A copy of a data set of which a later generation has removed some examples from the first
    test shards; its URI."""
    uri = copy_dataset(dataset, folder)
    manifest = read_manifest(uri)
    shards = [shard.path for shard in list_shards(manifest, "test")[:num_shards]]
    figures = DatasetFigures.model_validate(manifest.figures)
    num_left = figures.num_examples["test"] - len(positions) * len(shards)
    changed = figures.model_copy(
        update={
            "removed": {shard: list(positions) for shard in shards},
            "num_examples": figures.num_examples | {"test": num_left},
        }
    )
    write_manifest(folder, manifest.model_copy(update={"figures": changed.model_dump(mode="json")}))
    return uri


def get_job_function(job: str):
    """A job's function."""
    from pipeline_ops.evaluation.evaluate import evaluate
    from pipeline_ops.export.export import export

    return {"evaluate": evaluate, "export": export}[job]


def copy_dataset(
    dataset: str,
    folder: Path,
    class_names: Sequence[str] | None = None,
    key_prefix: str = "",
    rejected: Sequence[Mapping[str, str]] = (),
) -> str:
    """A copy of a data set with other names of classes, other keys and a quarantine; the URI of its
    manifest."""
    from pipeline_ops.input.tensorflow_start import tf

    manifest, counts = read_manifest(dataset), {}
    figures = DatasetFigures.model_validate(manifest.figures)
    folder.mkdir(parents=True)
    for file in manifest.files:
        counts[file.path] = file.num_examples
        with tf.io.TFRecordWriter(str(folder / file.path)) as writer:
            for record in tf.data.TFRecordDataset(
                [str(Path(dataset).parent / file.path)]
            ).as_numpy_iterator():
                example = tf.train.Example.FromString(record)
                key = example.features.feature[KEY].bytes_list.value
                key[0] = key_prefix.encode() + key[0]
                writer.write(example.SerializeToString(deterministic=True))
    with open(folder / QUARANTINE, "w", encoding="utf-8") as quarantine:
        quarantine.writelines(json.dumps(record) + "\n" for record in rejected)
    renamed = dict(zip(figures.class_names, class_names or figures.class_names, strict=True))
    figures = figures.model_copy(
        update={
            "class_names": list(renamed.values()),
            "num_rejected": len(rejected),
            "labels": {
                split: {renamed[name]: count for name, count in labels.items()}
                for split, labels in figures.labels.items()
            },
            "rejected_by_reason": {record["reason"]: 1 for record in rejected},
        }
    )
    write_manifest(
        folder,
        manifest.model_copy(
            update={
                "files": list_counted(folder, counts),
                "figures": figures.model_dump(mode="json"),
            }
        ),
    )
    return str(folder / NAME)
