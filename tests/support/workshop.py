"""What the tests of evaluation and export share: small real models, and the artifacts that a
training would leave.

The models are linear classifiers, fitted in closed form, so that a good one and a poor one cost
milliseconds. They are saved, served and checked as any other.
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

from pipeline_ops.artifacts.dataset import (
    ENCODED,
    KEY,
    LABEL,
    QUARANTINE,
    DatasetFigures,
    shard_paths,
    shards_of,
)
from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.artifacts.manifest import (
    NAME,
    Input,
    Manifest,
    list_files,
    read_manifest,
    write_manifest,
)
from pipeline_ops.artifacts.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    Epoch,
    TrainingFigures,
)
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.jobs.progress import ProgressWriter
from pipeline_ops.jobs.request import write_request
from pipeline_ops.jobs.runner import Job
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import JobPlan, plan_job
from pipeline_ops.registry.registry import Registry

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
NUM_REFERENCES = 16
FITTED_ON = {"good": 700, "fair": 120, "poor": 12}
"""How many examples each model has seen. Their accuracies on the test split are 0.87, 0.74 and
0.47."""
NEARLY_ALL = 690
"""`nearly` has seen so many: on the test split it can't be told from `good`. `shuffled` has seen as
many as `good`, with labels of others."""


@pytest.fixture(scope="session")
def saved_models(dataset, tmp_path_factory) -> dict[str, Path]:
    """By name: a folder with a SavedModel and its references, as training leaves them."""
    folder = tmp_path_factory.mktemp("models")
    examples, images, labels = read_examples(shard_paths(dataset, read_manifest(dataset), "train"))
    tests, _, _ = read_examples(shard_paths(dataset, read_manifest(dataset), "test"))
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
def workshop(dataset, saved_models, tmp_path) -> Workshop:
    return Workshop(tmp_path / "root", dataset, saved_models)


@dataclasses.dataclass(frozen=True)
class Workshop:
    """A storage root in which artifacts are made and jobs are run."""

    root: Path
    dataset: str
    saved_models: Mapping[str, Path]

    @property
    def registry(self) -> Registry:
        return Registry(self.root / "models" / "digits")

    def config(self, **overrides) -> PipelineConfig:
        """configs/digits.yaml with overrides; `evaluate__batch` stands for `evaluate.batch`."""
        return load_config(
            DIGITS,
            {
                "storage.root": str(self.root),
                "evaluate.batch": 32,
                "evaluate.gate": [{"metric": "accuracy", "at_least": 0.7}],
            }
            | {key.replace("__", "."): value for key, value in overrides.items()},
        )

    def train(self, model: str, dataset: str | None = None, tag: str = "") -> str:
        """Leaves the artifact of a training that ended with one of the models; `tag` makes it
        another one."""
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
        """Copies a folder to where an artifact lies, and gives it a manifest."""
        fingerprint = Fingerprint(
            config={"model": name, "epochs": 15},
            inputs={},
            code={"pipeline_ops/training/loops/synchronous.py": "0" * 16},
            versions={"keras": "3.15.1"},
        )
        folder = Layout(self.root, "digits").artifact(job, fingerprint.digest)
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
        """Runs a job in this process: its exit code and the folder of its artifact."""
        job = Job(
            plan.request,
            Attempt(self.root / attempt),
            ProgressWriter(Attempt(self.root / attempt).progress),
        )
        return work_of(plan.request.job)(job), Path(plan.request.artifact)

    def start(self, plan: JobPlan, attempt: str = "attempt") -> tuple[subprocess.Popen, Attempt]:
        """Starts a job as an operator would."""
        folder = Attempt(self.root / attempt)
        write_request(folder, plan.request)
        command = [
            sys.executable,
            "-m",
            KINDS[plan.request.job].module,
            "--request",
            str(folder.request),
        ]
        with open(folder.log, "wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True), folder

    def evaluate(self, train: str, **overrides) -> str:
        """Runs an evaluation, unless it was made before; the URI of its manifest."""
        plan = self.plan("evaluate", train, **overrides)
        return str(plan.manifest if plan.is_cached else self.run(plan)[1] / NAME)

    def publish(self, model: str, **overrides) -> str:
        """Trains, evaluates and exports; the URI of the training's manifest."""
        train = self.train(model)
        self.run(self.plan("export", train, self.evaluate(train, **overrides), **overrides))
        return train


def remove_from_tests(dataset: str, folder: Path, positions: Sequence[int]) -> str:
    """A copy of a data set of which a later generation has removed some examples from the first
    test shard; its URI."""
    uri = copy_dataset(dataset, folder)
    manifest = read_manifest(uri)
    first = shards_of(manifest, "test")[0].path
    figures = DatasetFigures.model_validate(manifest.figures)
    counts = figures.num_examples | {"test": figures.num_examples["test"] - len(positions)}
    changed = figures.model_copy(
        update={"removed": {first: list(positions)}, "num_examples": counts}
    )
    write_manifest(folder, manifest.model_copy(update={"figures": changed.model_dump(mode="json")}))
    return uri


def work_of(job: str):
    """A job's function."""
    from pipeline_ops.evaluation.evaluate import evaluate
    from pipeline_ops.export.export import export

    return {"evaluate": evaluate, "export": export}[job]


def training_figures(dataset: Manifest) -> TrainingFigures:
    figures = DatasetFigures.model_validate(dataset.figures)
    history = [
        Epoch(
            epoch=e - 1,
            step=11 * e,
            learning_rate=1e-3 * 0.5 ** max(0, (e - 8) // 3),
            metrics={
                "loss": 2.2 * 0.72**e,
                "accuracy": 1 - 0.5 * 0.75**e,
                "validation_loss": 0.12 + 1.9 * 0.7**e + 0.003 * max(0, e - 9),
                "validation_accuracy": 0.975 - 0.4 * 0.7**e - 0.0005 * max(0, e - 9),
            },
        )
        for e in range(1, 16)
    ]
    return TrainingFigures(
        strategy="multi_worker_mirrored",
        workers=2,
        steps=165,
        restarts=0,
        weights_digest="0" * 32,
        worker_weights_digests=["0" * 32] * 2,
        num_parameters=2570,
        best_epoch=9,
        stopped_early=True,
        history=history,
        seconds=12.3,
        class_names=figures.class_names,
        image_shape=figures.image_shape,
    )


def read_examples(paths: Sequence[str]):
    """Serialised examples, and their images (float [N, pixels]) and labels."""
    from pipeline_ops.input.tensorflow_start import import_tensorflow

    tf = import_tensorflow()
    records = list(tf.data.TFRecordDataset(list(paths)).as_numpy_iterator())
    parsed = tf.io.parse_example(
        records,
        {ENCODED: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64)},
    )
    images = np.stack(
        [tf.io.decode_image(image).numpy().ravel() for image in parsed[ENCODED].numpy()]
    )
    return records, images / 255.0, parsed[LABEL].numpy()


def fit(images: np.ndarray, labels: np.ndarray, num_classes: int = 10) -> np.ndarray:
    """Weights [pixels + 1, classes] of a ridge regression on the classes."""
    inputs, targets = np.c_[images, np.ones(len(images))], np.eye(num_classes)[labels]
    return np.linalg.solve(inputs.T @ inputs + 3.0 * np.eye(inputs.shape[1]), inputs.T @ targets)


def write_model(folder: Path, weights: np.ndarray, references: Sequence[bytes]) -> None:
    """A SavedModel as `figures.SAVED_MODEL` has it, reference examples, and the model's own answers
    to them."""
    from pipeline_ops.input.tensorflow_start import import_tensorflow

    tf = import_tensorflow()
    from pipeline_ops.training.served_classifier import ServedClassifier

    class Linear(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = tf.Variable(weights, dtype=tf.float32)

        def __call__(self, images, training):
            flat = tf.reshape(images, [-1, weights.shape[0] - 1])
            return 8.0 * tf.pad(flat / 255.0, [[0, 0], [0, 1]], constant_values=1.0) @ self.weights

    served = ServedClassifier(Linear(), (16, 16, 1))
    tf.saved_model.save(served, str(folder / SAVED_MODEL), signatures=served.signatures)
    with tf.io.TFRecordWriter(str(folder / REFERENCE_EXAMPLES)) as writer:
        for example in references:
            writer.write(example)
    parsed = tf.io.parse_example(list(references), {ENCODED: tf.io.FixedLenFeature([], tf.string)})
    np.save(
        folder / REFERENCE_OUTPUTS, served.serving_default(parsed[ENCODED])["probabilities"].numpy()
    )


def copy_dataset(
    dataset: str,
    folder: Path,
    class_names: Sequence[str] | None = None,
    key_prefix: str = "",
    rejected: Sequence[Mapping[str, str]] = (),
) -> str:
    """A copy of a data set with other names of classes, other keys and a quarantine; the URI of its
    manifest."""
    from pipeline_ops.input.tensorflow_start import import_tensorflow

    tf = import_tensorflow()
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
            update={"files": list_files(folder, counts), "figures": figures.model_dump(mode="json")}
        ),
    )
    return str(folder / NAME)
