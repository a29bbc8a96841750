"""The cost and the quality of a detector: the four jobs of a config, without Airflow, and mAP over
the minutes of training.

The weights of every epoch are kept beside the training, and each of them is asked about the test
split afterwards; so watching costs the training nothing. CPU time is that of a job's whole process
tree.

    python tests/bench/detection.py configs/digit_scenes.yaml
    python tests/bench/detection.py configs/bccd.yaml \\
        --set preprocess.source.path=../../shared/data/bccd --points 12
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import yaml
from chain import measure

from pipeline_ops.artifacts.dataset import DatasetFigures, shard_paths
from pipeline_ops.artifacts.layout import Attempt, Layout
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import TrainingFigures
from pipeline_ops.config.pipeline import PipelineConfig, load_config
from pipeline_ops.jobs.request import read_status, write_request
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import plan_job


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
        kept = Path(folder) / "kept"
        kept.mkdir()
        manifests = run_jobs(config, kept)
        print_curve(config, manifests["preprocess"], sorted(kept.iterdir()), arguments.points)


def run_jobs(config: PipelineConfig, kept: Path) -> dict[str, str]:
    """Runs what is not there yet and prints what each job has cost; the manifests by job. `kept`
    gets the weights of every epoch."""
    manifests: dict[str, str] = {}
    for job in JOBS:
        plan = plan_job(job, config, "bench", manifests)
        attempt = Attempt(Layout(config.root, config.pipeline).attempts("bench", job) / "attempt-1")
        write_request(attempt, plan.request)
        with Keeper(config.root, kept):
            cost = measure(
                [sys.executable, "-m", KINDS[job].module, "--request", str(attempt.request)]
            )
        manifests[job] = str(read_status(attempt).manifest)
        print(f"{job:12} {cost.wall:7.1f} s wall {cost.cpu:7.1f} s CPU", flush=True)
    print_figures(config, manifests)
    return manifests


class Keeper:
    """Links the weights of each epoch to a folder of our own before the training removes them."""

    def __init__(self, root: Path, kept: Path):
        self._root, self._kept, self._end = root, kept, threading.Event()
        self._thread = threading.Thread(target=self._keep)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._end.wait(0.5):
            for file in self._root.glob("artifacts/*/train/.*.work/best-*.npz"):
                if not (self._kept / file.name).exists():
                    os.link(file, self._kept / file.name)


def print_figures(config: PipelineConfig, manifests: dict[str, str]) -> None:
    training = TrainingFigures.model_validate(read_manifest(manifests["train"]).figures)
    evaluation = read_manifest(manifests["evaluate"]).figures
    num_images = training.steps * config.train.global_batch
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
    from pipeline_ops.input.tensorflow_start import import_tensorflow

    tf = import_tensorflow()
    from pipeline_ops.evaluation.detector import _answers, _evaluate
    from pipeline_ops.input.detections import read_true_boxes
    from pipeline_ops.models import build_model, make_head
    from pipeline_ops.training.checkpointing.state import read_arrays

    manifest = read_manifest(dataset)
    figures = DatasetFigures.model_validate(manifest.figures)
    shape, names = figures.image_shape, figures.class_names
    scenes = list(read_true_boxes(shard_paths(dataset, manifest, "test")))
    model, head = (
        build_model(config.train, shape, len(names), config.file.parent, for_training=False),
        make_head(config.train, shape, len(names)),
    )
    detect = tf.function(lambda images: head.detect(model(images, training=False))._asdict())

    def answers_to(images: np.ndarray) -> list:
        parts = [detect(images[start : start + 16]) for start in range(0, len(images), 16)]
        return [
            answer
            for part in parts
            for answer in _answers({name: value.numpy() for name, value in part.items()})
        ]

    images = np.stack(
        [tf.io.decode_image(scene.image, shape[-1]).numpy() for scene in scenes]
    ).astype(np.float32)
    begin = min(file.stat().st_mtime for file in files)
    for index in np.unique(np.linspace(0, len(files) - 1, count).astype(int)):
        model.set_weights(read_arrays(files[index]))
        found = _evaluate(scenes, answers_to(images), shape[:2], names)
        classes = ", ".join(
            f"{each.name} {each.average_precision_50:.3f}" for each in found.classes
        )
        minutes = (files[index].stat().st_mtime - begin) / 60
        figures_of_epoch = f"mAP@0.5 {found.metrics['ap_50']:.4f}, mAP {found.metrics['ap']:.4f}"
        epoch = int(files[index].stem.removeprefix("best-")) + 1
        print(
            f"{minutes:5.1f} min after the first: epoch {epoch:4}  {figures_of_epoch}  "
            f"by class at 0.5: {classes}",
            flush=True,
        )


if __name__ == "__main__":
    main()
