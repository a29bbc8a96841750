"""The cost and the quality of a detector: the four jobs of a config, without Airflow, and mAP over
the minutes of training.

The weights of every epoch are kept during the training, and are evaluated on the test split
afterwards, so that the curve costs the training nothing. CPU time is that of a job's whole process
tree.

    python tests/bench/detection.py configs/digit_scenes.yaml
    python tests/bench/detection.py configs/bccd.yaml \\
        --set preprocess.source.path=../../shared/data/bccd --points 12
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import yaml
from measuring import run_job

from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.contract.dataset import DatasetFigures, list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import TrainingFigures
from pipeline_ops.planning.job_kinds import JOBS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--points", type=int, default=10, help="of the curve")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        overrides = {
            key: yaml.safe_load(value)
            for key, _, value in (each.partition("=") for each in arguments.set)
        }
        config = load_config(arguments.config, overrides | {"storage.root": folder})
        linked = Path(folder) / "linked"
        linked.mkdir()
        manifests = run_jobs(config, linked)
        print_curve(config, manifests["preprocess"], sorted(linked.iterdir()), arguments.points)


def run_jobs(config: PipelineConfig, linked: Path) -> dict[str, str]:
    """Runs the jobs and prints their costs. Returns the manifests by job.

    `linked` gets the weights of every epoch.
    """
    manifests: dict[str, str] = {}
    for job in JOBS:
        with CheckpointLinker(config.root.local, linked):
            cost, _ = run_job(job, config, manifests)
        print(f"{job:12} {cost}", flush=True)
    print_figures(config, manifests)
    return manifests


class CheckpointLinker:
    """Links the weights of each epoch to a folder of our own before the training removes them."""

    def __init__(self, root: Path, linked: Path):
        self._root, self._target, self._end = root, linked, threading.Event()
        self._thread = threading.Thread(target=self._link_new_files)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _link_new_files(self) -> None:
        while not self._end.wait(0.5):
            for file in self._root.glob("artifacts/*/train/.*.work/best-*.npz"):
                if not (self._target / file.name).exists():
                    os.link(file, self._target / file.name)


def print_figures(config: PipelineConfig, manifests: dict[str, str]) -> None:
    training = TrainingFigures.model_validate(read_manifest(manifests["train"]).figures)
    evaluation = read_manifest(manifests["evaluate"]).figures
    num_images = training.steps * config.train.global_batch_size
    print(
        f"training      {training.num_parameters:,} parameters, {num_images:,} images "
        f"in {training.seconds:.1f} s: {num_images / training.seconds:.1f} a second"
    )
    print(
        "test          "
        + ", ".join(
            f"{name} {value:.4f}" for name, value in evaluation["challenger"]["metrics"].items()
        )
    )


def print_curve(config: PipelineConfig, dataset: str, files: list[Path], count: int) -> None:
    """mAP on the test split with the weights of some epochs, evenly spread."""
    from pipeline_ops.evaluation.detector import evaluate_boxes, to_image_detections
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.models import build_model, make_head
    from pipeline_ops.served.client import read_true_boxes
    from pipeline_ops.training.weight_files import read_arrays

    manifest = read_manifest(dataset)
    figures = DatasetFigures.model_validate(manifest.figures)
    shape, names = figures.image_shape, figures.class_names
    scenes = list(read_true_boxes(list_shard_paths(dataset, manifest, "test")))
    model, head = (
        build_model(config.train, shape, len(names), config.file.parent, for_training=False),
        make_head(config.train, shape, len(names)),
    )
    detect = tf.function(lambda images: head.detect(model(images, training=False))._asdict())

    def detect_all(images: np.ndarray) -> list:
        parts = [detect(images[start : start + 16]) for start in range(0, len(images), 16)]
        return [
            answer
            for part in parts
            for answer in to_image_detections({name: value.numpy() for name, value in part.items()})
        ]

    images = np.stack(
        [tf.io.decode_image(scene.image, shape[-1]).numpy() for scene in scenes]
    ).astype(np.float32)
    begin = min(file.stat().st_mtime for file in files)
    for index in np.unique(np.linspace(0, len(files) - 1, count).astype(int)):
        model.set_weights(read_arrays(files[index]))
        found = evaluate_boxes(scenes, detect_all(images), shape[:2], names)
        classes = ", ".join(
            f"{name} {value:.3f}" for name, value in found.average_precisions_50.items()
        )
        minutes = (files[index].stat().st_mtime - begin) / 60
        epoch_figures = f"mAP@0.5 {found.metrics['map_50']:.4f}, mAP {found.metrics['map']:.4f}"
        epoch = int(files[index].stem.removeprefix("best-")) + 1
        print(
            f"{minutes:5.1f} min after the first: epoch {epoch:4}  {epoch_figures}  "
            f"by class at 0.5: {classes}",
            flush=True,
        )


if __name__ == "__main__":
    main()
