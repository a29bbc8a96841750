"""Tutorials of Keras and TensorFlow train by two workers as they are, and reach what `fit` does.

Each module beside this one is a tutorial as its author brings it. `# changed` marks the lines that
had to change. `docs/tutorials.md` has the table.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from job_chain import run_jobs
from keras.src.legacy.saving import legacy_h5_format
from sklearn.datasets import load_digits
from tutorials import in_keras

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import CLASS_WEIGHTS, list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import WEIGHTS, TrainingFigures
from pipeline_ops.input.augment import build_augmentation
from pipeline_ops.input.batches import build_training_dataset
from pipeline_ops.input.reading import SplitShards
from pipeline_ops.input.sources import MemorySource
from pipeline_ops.models import build_model
from pipeline_ops.models.classification import Classification
from pipeline_ops.training.weight_files import read_arrays

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "tutorials.md"
TUTORIALS = yaml.safe_load((FOLDER / "tutorials.yaml").read_text())
COMMON = {
    "strategy": "multi_worker_mirrored",
    "workers": 2,
    "global_batch_size": 32,
    "steps": 20,
    "best_checkpoint": None,
}
DRAWING = {
    *("mnist_convnet", "from_scratch", "vision_transformer", "mlp_mixer", "compact_transformer"),
    *("swin_transformer", "small_vit", "mixup_net", "xray", "simclr", "conditional_gan"),
    *("transfer_learning", "augmented_flowers", "image_classification"),
}
"""The tutorials that draw numbers in each step: dropout, augmentation, noise."""
NUM_DRAWS = 6
NOISE = (0.01, 0.01, 0.05)
"""What is always allowed where numbers are drawn, besides four deviations of `fit`'s results."""
ROUNDED = {"cutmix_net", "custom_layers"}
"""The gradient of a bias before a batch normalization is rounding alone, and Adam makes steps of
it, which the moving means follow."""
SPLITS = {"train": slice(0, 640), "validation": slice(640, 800), "test": slice(800, 960)}
"""20 batches make an epoch."""
NUM_IMAGES = 960


class Data(NamedTuple):
    """A data set, with images as they come to a model and as files."""

    manifest: str
    preprocess: dict[str, Any]
    files: list[bytes]
    images: np.ndarray


def draw_digits(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 [N, H, W, C] and labels."""
    digits = load_digits()
    images, labels = digits.images[:NUM_IMAGES] * (255 / 16), digits.target[:NUM_IMAGES]
    if kind in ("folders", "arrays"):
        return np.pad(images.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))[..., None].astype(
            np.uint8
        ), labels
    tints = np.random.default_rng(1).uniform(0.3, 1, (NUM_IMAGES, 1, 1, 3))
    images = (images.repeat(4, 1).repeat(4, 2)[..., None] * tints).astype(np.uint8)
    return images, (labels >= 8).astype(int) if kind == "two_classes" else labels


def write_raw(raw: Path, kind: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes an `.npz` file, or image files in a folder for each split and class."""
    raw.mkdir()
    if kind == "arrays":
        arrays = {f"x_{name}": images[part, ..., 0] for name, part in SPLITS.items()}
        arrays |= {f"y_{name}": labels[part] for name, part in SPLITS.items()}
        np.savez(raw / "digits.npz", **arrays)
        return
    for name, part in SPLITS.items():
        for number, label in enumerate(labels[part], part.start):
            place = raw / name / str(label)
            place.mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(place / f"{number:04d}.png", images[number], scale=False)


@pytest.fixture(scope="module")
def get_data(tmp_path_factory):
    @functools.cache
    def make(kind: str) -> Data:
        folder = tmp_path_factory.mktemp(kind)
        images, labels = draw_digits(kind)
        write_raw(folder / "raw", kind, images, labels)
        source = {"type": "npz" if kind == "arrays" else "image_folder"}
        preprocess = {
            "source": source | {"path": str(folder / "raw")},
            "stages": [{"decode": {"channels": images.shape[-1]}}],
            "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
            "shards": 2,
            "duplicates": "keep",
            "balance": "by_class" if kind == "two_classes" else "none",
        }
        file = write_pipeline(folder, preprocess, {"model": "dense"})
        manifest = run_jobs(file, folder, "preprocess")["preprocess"]
        files = [tf.io.encode_png(image).numpy() for image in images[:20]]
        return Data(manifest, preprocess, files, images[:20])

    return make


def write_pipeline(folder: Path, preprocess: dict, train: dict) -> Path:
    config = {
        "pipeline": "tutorial",
        "storage": {"root": str(folder / "root")},
        "preprocess": preprocess,
        "train": COMMON | train,
        "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.0}]},
        "export": {"model": "tutorial"},
    }
    file = folder / "tutorial.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    return file


def write_weights(name: str, module: Any, folder: Path, data: Data) -> None:
    """Writes the file of weights that a tutorial begins with."""
    keras.utils.set_random_seed(7)
    if name == "distillation":
        teacher = module.make_net(16, "teacher")
        teacher.compile("adam", in_keras.SPARSE())
        images, labels = draw_digits("folders")
        teacher.fit(images, labels, epochs=2, verbose=0)
        teacher.save_weights(folder / "teacher.weights.h5")
    if name == "transfer_learning":
        import h5py

        shape = data.images.shape[1:]
        base = keras.applications.MobileNetV2(shape, 0.35, include_top=False, weights=None)
        for layer in base.layers:  # which takes the statistics of one batch
            layer.momentum = 0.0
        base(draw_digits("colours")[0][:256] / 127.5 - 1.0, training=True)
        with h5py.File(folder / "mobilenet_v2_no_top.h5", "w") as file:
            legacy_h5_format.save_weights_to_hdf5_group(file, base)


def warm_start(name: str, model: keras.Model, folder: Path) -> None:
    """Sets the weights of a frozen base as the tutorial's `weights=` does."""
    if name == "transfer_learning":
        [base] = [each for each in model.layers if "mobilenet" in each.name]
        base.load_weights(folder / "mobilenet_v2_no_top.h5")


def to_probabilities(outputs: Any) -> np.ndarray:
    values = np.asarray(outputs, np.float64)
    if values.shape[1] == 1:
        return np.concatenate([1 - values, values], 1)
    if (values >= 0).all() and np.allclose(values.sum(1), 1, atol=1e-4):
        return values
    exponentials = np.exp(values - values.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


class Result(NamedTuple):
    """What a training reaches: its own last mean loss, and loss and accuracy on the validation."""

    train_loss: float
    loss: float
    accuracy: float


def judge(model: keras.Model, train_loss: float, images: Any, labels: Any) -> Result:
    probabilities = to_probabilities(model(tf.cast(images, tf.float32), training=False))
    labels = np.asarray(labels)
    losses = -np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-7))
    return Result(train_loss, losses.mean(), (probabilities.argmax(1) == labels).mean())


def read_split(data: Data, split: str, task: Classification) -> tuple[Any, Any]:
    paths = list_shard_paths(data.manifest, read_manifest(data.manifest), split)
    records = tf.data.TFRecordDataset([str(path) for path in paths]).batch(10_000)
    return next(iter(records.map(task.parse)))


def train_in_keras(
    name: str, config: Train, folder: Path, data: Data
) -> tuple[keras.Model, list[Result]]:
    """Returns a model, and the results of `fit` with the draws of several seeds."""
    figures = read_manifest(data.manifest).figures
    shape, classes = tuple(figures["image_shape"]), len(figures["class_names"])
    task = Classification(shape)
    keras.backend.clear_session()  # which numbers the names of layers
    sys.modules.pop(name, None)  # its import draws seeds
    initial = build_model(config, shape, classes, folder, for_training=True).get_weights()
    module = sys.modules[name]
    paths = list_shard_paths(data.manifest, read_manifest(data.manifest), "train")
    shards = SplitShards(tuple(paths), figures["num_examples"]["train"], 1 << 24)
    changes = build_augmentation(config.input.augment, "classification", shards.num_examples)
    batch, per_epoch = config.batch_size, shards.num_examples // config.batch_size
    steps = config.steps or config.epochs * per_epoch
    source = MemorySource(shards, task.parse)
    batches = build_training_dataset(
        shards, source, batch, range(batch), config.seed, 0, changes
    ).take(steps)
    weights = None
    if config.class_weights:
        found = json.loads((Path(data.manifest).parent / CLASS_WEIGHTS).read_text())
        weights = {n: found[each] for n, each in enumerate(figures["class_names"])}
    model = getattr(module, config.model.partition(":")[2])(shape, classes)
    model(np.zeros((1, *shape), np.float32))
    in_keras.compile_model(name, model)
    seeds = [each for each in model.variables if "seed_generator_state" in each.path]
    first = [each.numpy() for each in seeds]
    results = []
    for number in range(NUM_DRAWS if name in DRAWING else 1):
        model.set_weights(initial)
        warm_start(name, model, folder)
        in_keras.forget_steps(model)
        for variable, value in zip(seeds, first, strict=True):
            variable.assign(value + 100 * number)
        loss = in_keras.train(name, module, model, batches, steps // per_epoch, weights)
        results.append(judge(model, loss, *read_split(data, "validation", task)))
    return model, results


def check_service(folder: Path, model: keras.Model, data: Data) -> None:
    """Asks the published model for answers to image files."""
    [saved] = (folder / "root" / "models").rglob("saved_model.pb")
    serve = tf.saved_model.load(str(saved.parent)).signatures["serving_default"]
    served = serve(image_bytes=tf.constant(data.files))["probabilities"]
    own = to_probabilities(model(data.images.astype(np.float32), training=False))
    np.testing.assert_allclose(served, own, rtol=1e-3, atol=1e-5)


def compare(name: str, found: Result, results: list[Result]) -> None:
    """Compares the training of two workers with those in Keras, and with the page."""
    [on_page] = re.findall(rf"\| ([\d.]+), [\d.]+ \| \[`{name}`\]", PAGE.read_text())
    noise = np.full(3, 0.02 if name in ROUNDED else 1e-4)
    if name in DRAWING:
        noise = 4 * np.std(results, axis=0, ddof=1) + NOISE
    assert found.loss == pytest.approx(float(on_page), abs=noise[1] + 1e-3)
    if name == "conditional_gan":  # its metrics show what Keras divides by the replicas
        found = found._replace(train_loss=2 * found.train_loss)
    if name == "simclr":  # its loss contrasts an image with those of the replica's batch
        noise[0] = np.inf
    assert (np.abs(found - np.mean(results, axis=0)) < noise).all(), (found, results)


@pytest.mark.tutorials
@pytest.mark.parametrize("name", TUTORIALS)
def test_two_workers_reach_what_keras_reaches(name, tmp_path, get_data, monkeypatch):
    tutorial = TUTORIALS[name]
    data = get_data(tutorial["data"])
    shutil.copy(FOLDER / f"{name}.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = write_pipeline(tmp_path, data.preprocess, tutorial["train"])
    write_weights(name, importlib.import_module(name), tmp_path, data)
    manifests = run_jobs(file, tmp_path, "export", {"preprocess": data.manifest})
    figures = TrainingFigures.model_validate(read_manifest(manifests["train"]).figures)
    assert len(set(figures.worker_weights_digests)) == 1 and figures.workers == 2

    model, results = train_in_keras(name, load_config(file).train, tmp_path, data)
    last = figures.history[-1].metrics
    model.set_weights(read_arrays(Path(manifests["train"]).parent / WEIGHTS))
    task = Classification(data.images.shape[1:])
    found = judge(model, last["loss"], *read_split(data, "validation", task))
    assert found.accuracy == pytest.approx(last["validation_accuracy"], abs=1e-6)
    check_service(tmp_path, model, data)
    print(f"REACHED {name}: {found} {results}")
    compare(name, found, results)
