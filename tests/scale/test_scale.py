"""The whole chain on a large data set: counts, memory of the largest process, and sizes of pages.

The limits of memory are those of `docs/operate.md`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.measuring import Cost, run_job
from large_data import SCENE_CLASSES, make_config, write_pictures, write_scenes

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.dataset import SPLITS, DatasetFigures
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.results import METRICS, EvaluationFigures, TrainingFigures
from pipeline_ops.planning.job_kinds import JOBS

pytestmark = [pytest.mark.scale, pytest.mark.timeout(3000)]
NUM_PICTURES, NUM_CLASSES = 200_000, 1000
NUM_SCENES, NUM_BOXES = 30_000, 60
MAX_PAGE_BYTES = 2_000_000


def run_chain(config: PipelineConfig, limits: dict[str, int]) -> dict[str, str]:
    """Runs the four jobs, each within its limit of memory in MB. Returns the manifests by job."""
    manifests: dict[str, str] = {}
    costs = {job: run_job(job, config, manifests)[0] for job in JOBS}
    check_memory(costs, limits)
    pages = list(config.root.local.rglob("*.html"))
    assert {page.name for page in pages} == {"data.html", "report.html"}
    assert max(page.stat().st_size for page in pages) < MAX_PAGE_BYTES
    return manifests


def check_memory(costs: dict[str, Cost], limits: dict[str, int]) -> None:
    for job, cost in costs.items():
        print(f"{job:12} {cost} {cost.peak_mb:6.0f} MB")
    assert {job: cost.peak_mb for job, cost in costs.items() if cost.peak_mb > limits[job]} == {}


def read_dataset(uri: str, count: int) -> DatasetFigures:
    """Returns the figures of a data set that has each raw example once, a fifth of them to test."""
    figures = DatasetFigures.model_validate(read_manifest(uri).figures)
    assert sum(figures.num_examples.values()) == count and not figures.num_rejected
    for split in SPLITS:
        share = 0.6 if split == "train" else 0.2
        assert figures.num_examples[split] == pytest.approx(share * count, rel=0.03)
    return figures


def read_training(uri: str) -> TrainingFigures:
    figures = TrainingFigures.model_validate(read_manifest(uri).figures)
    assert figures.restarts == 0 and len(figures.history) == 2
    return figures


def train_from_cache(folder: Path, kind: str, manifests: dict[str, str], limit: int) -> None:
    """Trains on the same data set, with decoded images in a cache that holds all of them."""
    config = make_config(folder, folder / "raw", kind, "memory" if kind == "scenes" else "disk")
    train = config.train.model_copy(update={"seed": 2})  # otherwise it would not run again
    found = {"preprocess": manifests["preprocess"]}
    cost, attempt = run_job("train", config.model_copy(update={"train": train}), found)
    check_memory({"train": cost}, {"train": limit})
    read_training(found["train"])
    events = ProgressReader(attempt.worker_progress("worker 0")).read_new()
    assert any(event.unit == "decoded images" and event.done == event.total for event in events)


def test_two_hundred_thousand_pictures_of_a_thousand_classes(tmp_path):
    write_pictures(tmp_path / "raw", NUM_PICTURES, NUM_CLASSES)
    config = make_config(tmp_path, tmp_path / "raw", "pictures", "none")
    manifests = run_chain(
        config, {"preprocess": 700, "train": 800, "evaluate": 1100, "export": 800}
    )
    dataset = read_dataset(manifests["preprocess"], NUM_PICTURES)
    assert len(dataset.class_names) == NUM_CLASSES
    read_training(manifests["train"])
    evaluation = EvaluationFigures.model_validate(read_manifest(manifests["evaluate"]).figures)
    challenger = evaluation.challenger
    assert evaluation.num_examples == dataset.num_examples["test"]
    assert sum(map(sum, challenger.confusion)) == evaluation.num_examples
    assert challenger.metrics["accuracy"] > 0.99
    train_from_cache(tmp_path, "pictures", manifests, 900)


def test_thirty_thousand_scenes_of_sixty_boxes(tmp_path):
    write_scenes(tmp_path / "raw", NUM_SCENES, NUM_BOXES)
    config = make_config(tmp_path, tmp_path / "raw", "scenes", "none")
    manifests = run_chain(
        config, {"preprocess": 1100, "train": 1000, "evaluate": 1100, "export": 900}
    )
    dataset = read_dataset(manifests["preprocess"], NUM_SCENES)
    assert dataset.class_names == sorted(SCENE_CLASSES)
    read_training(manifests["train"])
    manifest = read_manifest(manifests["evaluate"])
    metrics = json.loads((Path(manifests["evaluate"]).parent / METRICS).read_bytes())
    num_tests = EvaluationFigures.model_validate(manifest.figures).num_examples
    assert num_tests == dataset.num_examples["test"]
    assert sum(count for count, _ in metrics["by_size"].values()) == NUM_BOXES * num_tests
    train_from_cache(tmp_path, "scenes", manifests, 2400)
