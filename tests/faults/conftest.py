"""Scenes for the fault tests: a storage root, a job in it, and what an undisturbed try leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from faults.harness import Forker, Page, Scene, compile_shim
from job_chain import run_jobs
from sandbox import Sandbox

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

IMAGES_PER_CLASS = 10
_TINY = {
    "pipeline": "tiny",
    "storage": {"root": "../root"},
    "preprocess": {
        "source": {"type": "image_folder", "path": "../raw"},
        "stages": [{"decode": {"channels": 1}}, {"resize": {"height": 8, "width": 8}}],
        "split": {"train": 0.6, "validation": 0.2, "test": 0.2, "seed": 3},
        "shards": 2,
        "runner": {"workers": 1},
    },
    "train": {"model": "dense", "epochs": 2, "global_batch_size": 8, "checkpoint_every_steps": 1},
    "evaluate": {"gate": [{"metric": "accuracy", "at_least": 0.0}]},
    "export": {"model": "tiny"},
}
_MEASURED = ("latency", "seconds", "milliseconds")
"""Parts of the names of figures that differ from one run to the next."""


@pytest.fixture(scope="session")
def shim(tmp_path_factory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def make_scene(shim, tmp_path) -> Iterator:
    """Makes a scene for a job: `make_scene(job, plan, digest)`."""
    forkers = []

    def make(job: str, plan, digest) -> Scene:
        page = Page(tmp_path / "page")
        forkers.append(Forker(job, shim, page, tmp_path / "root" / "tmp", tmp_path / "forker.log"))
        scene = Scene(tmp_path, page, forkers[-1], plan, digest)
        scene.keep()
        return scene

    yield make
    for forker in forkers:
        forker.close()


@pytest.fixture
def preprocess_scene(make_scene, tmp_path) -> Scene:
    """Twenty tiny images in two classes."""
    config = load_config(_write_pipeline(tmp_path))
    return make_scene(
        "preprocess",
        lambda: plan_job("preprocess", config, "run", {}),
        lambda manifest: read_manifest(manifest).digest,
    )


@pytest.fixture
def train_scene(make_scene, tmp_path) -> Scene:
    """One worker, a dozen steps, a checkpoint after each of them."""
    file = _write_pipeline(tmp_path)
    dataset = run_jobs(file, tmp_path, last="preprocess")
    config = load_config(file)
    return make_scene(
        "train",
        lambda: plan_job("train", config, "run", dataset),
        lambda manifest: read_manifest(manifest).figures["weights_digest"],
    )


@pytest.fixture
def evaluate_scene(make_scene, tmp_path, dataset, saved_models) -> Scene:
    """A small linear model and a hundred test images."""
    sandbox = _make_sandbox(tmp_path, dataset, saved_models)
    train = sandbox.train("good")
    return make_scene(
        "evaluate", lambda: sandbox.plan("evaluate", train), _compute_evaluation_digest
    )


@pytest.fixture
def export_scene(make_scene, tmp_path, dataset, saved_models) -> Scene:
    """The same model, evaluated."""
    sandbox = _make_sandbox(tmp_path, dataset, saved_models)
    train = sandbox.train("good")
    evaluation = sandbox.evaluate(train)
    return make_scene(
        "export",
        lambda: sandbox.plan("export", train, evaluation),
        lambda _: _compute_registry_digest(sandbox),
    )


def _write_pipeline(folder: Path) -> Path:
    for name in "ab":
        (folder / "raw" / name).mkdir(parents=True)
        for index in range(IMAGES_PER_CLASS):
            random = np.random.default_rng(100 * ord(name) + index)
            image = random.integers(0, 256, (8, 8, 1), dtype=np.uint8)
            cv2.imwrite(str(folder / "raw" / name / f"{index}.png"), image)
    file = folder / "configs" / "tiny.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(_TINY))
    return file


def _make_sandbox(folder: Path, dataset: str, saved_models) -> Sandbox:
    """A sandbox whose data set lies below its storage root, as that of a real pipeline does."""
    manifest = read_manifest(dataset)
    inside = (
        Layout(open_root(folder / "root"), "digits")
        .artifact("preprocess", manifest.fingerprint.digest)
        .local
    )
    shutil.copytree(Path(dataset).parent, inside)
    return Sandbox(folder / "root", str(inside / "manifest.json"), saved_models)


def _compute_evaluation_digest(path: StorePath) -> str:
    manifest = read_manifest(path)
    return compute_digest(
        [[file.path for file in manifest.files], _without_measured(manifest.figures)]
    )


def _compute_registry_digest(sandbox: Sandbox) -> str:
    """The digest of all versions, with the checksums of their models, and of the champion."""
    registry = sandbox.registry
    champion = registry.find_champion()
    versions = [
        [
            version.number,
            [
                (file.path, file.crc32c)
                for file in version.read_manifest().files
                if file.path.endswith(_MODEL_FILES)
            ],
        ]
        for version in registry.list_versions()
    ]
    return compute_digest([versions, champion and champion.number])


_MODEL_FILES = ("saved_model.pb", ".index", ".data-00000-of-00001")


def _without_measured(value):
    if isinstance(value, dict):
        return {
            name: _without_measured(inner)
            for name, inner in value.items()
            if not any(part in name for part in _MEASURED)
        }
    return (
        [_without_measured(inner) for inner in value]
        if isinstance(value, list)
        else json.loads(json.dumps(value))
    )
