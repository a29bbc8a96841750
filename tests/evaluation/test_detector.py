"""The chain for a detector: trained on real scenes for a moment, evaluated as it is served,
exported. Its detections are poor. The tests are about their counts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from airflow_ui import CHROMIUM
from scenes import DIGIT_SCENES, scene_example

from pipeline_ops.config.export import Export
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.dataset import list_shard_paths
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.manifest import NAME, read_manifest
from pipeline_ops.contract.request import write_request
from pipeline_ops.contract.results import (
    METRICS,
    PREDICTIONS,
    REPORT,
    SAVED_MODEL,
    EvaluationFigures,
    ModelFigures,
)
from pipeline_ops.planning.job_kinds import KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.storage.open_store import open_root

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def chain(scenes, tmp_path_factory):
    """Train, evaluate and export, each as its own process; the folders of their artifacts."""
    root = tmp_path_factory.mktemp("chain")
    config = load_config(
        DIGIT_SCENES,
        {
            "storage.root": str(root),
            "train.model_parameters": {"width": 8},
            "train.epochs": 12,
            "train.global_batch_size": 16,
            "train.workers": 1,
            "train.strategy": "one_device",
            "train.optimizer.schedule": {"type": "constant", "warmup_steps": 10},
            "export.formats": ["saved_model", "tflite", "onnx"],
            "evaluate.gate": [
                {"metric": "map", "at_least": 0.001},
                {"metric": "map_50", "at_least": 0.001, "min_skill": 1e-6},
                {"metric": "latency_milliseconds", "at_most": 60_000},
                {"metric": "mar_100", "at_least": 0.001, "of_slice": "width=64 and more"},
            ],
            "evaluate.slices": [
                {"by": "image/width", "edges": [64], "name": "width"},
                {"by": "image_bytes", "edges": [9000], "name": "bytes"},
            ],
        },
    )
    return run_jobs(config, {"preprocess": scenes}, ("train", "evaluate", "export"))


def run_jobs(config, manifests, jobs, exit_code: int = 0) -> dict[str, Path]:
    """Runs the jobs, each as its own process; the folders of their artifacts. The last one ends
    with the exit code."""
    for job in jobs:
        plan = plan_job(job, config, "run", {name: manifests[name] for name in KINDS[job].reads})
        attempt = Attempt(open_root(Path(str(config.root)) / plan.request.fingerprint.digest[:8]))
        write_request(attempt, plan.request)
        run = subprocess.run(
            [sys.executable, "-m", KINDS[job].module, "--request", str(attempt.request)],
            capture_output=True,
            text=True,
        )
        assert run.returncode == (exit_code if job == jobs[-1] else 0), (
            f"{job}: {run.stdout[-3000:]}{run.stderr[-3000:]}{attempt.status.read().decode()}"
        )
        manifests = manifests | {job: str(Path(plan.request.artifact) / NAME)}
    return {job: Path(manifest).parent for job, manifest in manifests.items()}


def test_the_chain_publishes_a_detector_with_its_figures(chain):
    figures = ModelFigures.model_validate(read_manifest(chain["export"] / NAME).figures)
    assert figures.version == 1 and figures.num_checked == 30
    evaluation = EvaluationFigures.model_validate(read_manifest(chain["evaluate"] / NAME).figures)
    assert 0 <= evaluation.baseline["map_50"] < figures.metrics["map_50"]
    measures = evaluation.challenger.measures
    assert measures["latency_milliseconds"] > 0 and measures["model_bytes"] > 100_000
    assert 0 < figures.metrics["map"] <= figures.metrics["map_50"] <= 1


def test_every_format_of_a_detector_finds_the_same_boxes_as_the_trained_model(chain):
    """The formats are loaded from the published version and run on all test images."""
    from pipeline_ops.export.check import choose_rule
    from pipeline_ops.export.formats import FORMAT_PATHS, load_format
    from pipeline_ops.served.references import References, check_agreement

    manifest = read_manifest(chain["export"] / NAME)
    figures = ModelFigures.model_validate(manifest.figures)
    version = chain["export"].parents[3] / "models" / "digit_scenes" / "1"
    found = {each.name: each for each in figures.formats}
    assert (
        list(found) == ["saved_model", "tflite", "onnx"]
        and found["saved_model"].top1_agreement == 1.0
    )
    references = References(chain["train"], version, 10, "detection")
    for name, each in found.items():
        assert (
            each.num_checked == 30
            and each.latency_seconds > 0
            and each.top1_agreement >= each.min_top1_agreement
        )
        assert each.max_difference <= each.tolerance == 1e-4
        if name in FORMAT_PATHS:
            answer = load_format(name, version / FORMAT_PATHS[name])(references.images)
            assert (
                check_agreement(
                    references.outputs,
                    references.pack(answer),
                    choose_rule(name, Export(model="any"), "detection"),
                    name,
                ).num_checked
                == 30
            )
            assert answer["num_detections"].min() > 0
    assert "Images with the same boxes" in (chain["export"] / REPORT).read_text()


def read_coco_boxes(model, paths: list[str]) -> tuple[list[dict], list[dict]]:
    """The true boxes and the answers of a signature, in COCO's form."""
    import tensorflow as tf

    truths, found = [], []
    for image_id, record in enumerate(tf.data.TFRecordDataset(paths).as_numpy_iterator(), 1):
        features = tf.train.Example.FromString(record).features.feature
        edges = [
            features[f"image/object/bbox/{edge}"].float_list.value
            for edge in ("xmin", "ymin", "xmax", "ymax")
        ]
        for *box, label in zip(
            *edges, features["image/object/class/label"].int64_list.value, strict=True
        ):
            xmin, ymin, xmax, ymax = (128 * value for value in box)
            truths.append(
                {
                    "id": len(truths) + 1,
                    "image_id": image_id,
                    "category_id": label,
                    "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                    "area": (xmax - xmin) * (ymax - ymin),
                    "iscrowd": 0,
                }
            )
        answer = model(image_bytes=tf.constant([features["image/encoded"].bytes_list.value[0]]))
        for i in range(int(answer["num_detections"][0])):
            ymin, xmin, ymax, xmax = (128 * answer["boxes"][0, i].numpy().astype(float)).tolist()
            found.append(
                {
                    "image_id": image_id,
                    "category_id": int(answer["classes"][0, i]),
                    "score": float(answer["scores"][0, i]),
                    "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                }
            )
    return truths, found


def test_the_figures_are_those_of_pycocotools(chain, scenes):
    """The expected figures are computed here from the answers of the SavedModel."""
    import tensorflow as tf
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    model = tf.saved_model.load(str(chain["train"] / SAVED_MODEL)).signatures["serving_default"]
    truths, found = read_coco_boxes(model, list_shard_paths(scenes, read_manifest(scenes), "test"))
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": i} for i in range(1, 31)],
        "annotations": truths,
        "categories": [{"id": label, "name": str(label)} for label in range(10)],
    }
    truth.createIndex()
    evaluator = COCOeval(truth, truth.loadRes(found), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    figures = EvaluationFigures.model_validate(read_manifest(chain["evaluate"] / NAME).figures)
    assert [figures.challenger.metrics[name] for name in ("map", "map_50")] == pytest.approx(
        np.array(evaluator.stats[:2]).tolist(), abs=1e-4
    )


def test_slices_and_intervals_of_a_detector_are_in_figures_and_report(chain):
    figures = EvaluationFigures.model_validate(read_manifest(chain["evaluate"] / NAME).figures)
    low, high = figures.challenger.intervals["map"]
    assert low < figures.challenger.metrics["map"] < high
    whole, *parts = figures.slices
    assert (whole.name, whole.value, whole.num_examples) == ("width", "64 and more", 30)
    assert whole.challenger == pytest.approx(figures.challenger.metrics, abs=1e-9)
    assert whole.intervals == figures.challenger.intervals
    assert len(parts) == 2 and sum(part.num_examples for part in parts) == 30
    page = (chain["evaluate"] / REPORT).read_text()
    assert '<section id="slices">' in page and "9000 and more" in page
    assert f"{low:.4f} to {high:.4f}" in page


def test_a_detector_that_is_worse_than_the_champion_is_refuted(chain, scenes):
    config = load_config(
        DIGIT_SCENES,
        {
            "storage.root": str(chain["export"].parents[3]),
            "train.model_parameters": {"width": 8},
            "train.epochs": 2,
            "train.global_batch_size": 16,
            "train.strategy": "one_device",
            "train.workers": 1,
            "train.optimizer.schedule": {"type": "constant", "warmup_steps": 10},
            "evaluate.gate": [{"metric": "map", "max_regression": 0.05, "confidence": 0.95}],
            "evaluate.slices": [{"by": "image_bytes", "edges": [9000], "name": "bytes"}],
        },
    )
    folder = run_jobs(config, {"preprocess": scenes}, ("train", "evaluate"), 3)["evaluate"]
    figures = EvaluationFigures.model_validate(read_manifest(folder / NAME).figures)
    [verdict] = figures.rules
    assert figures.champion_version == 1 and "refuted" in verdict.text
    low, high = figures.differences["map"]
    assert low < verdict.value - verdict.champion < high < -0.05
    assert all(part.champion["map_50"] > part.challenger["map_50"] for part in figures.slices)
    page = (folder / REPORT).read_text()
    assert f"{low:+.4f} to {high:+.4f}".replace("-", "−") in page


def test_every_box_of_the_test_split_is_counted_once(chain):
    metrics = json.loads((chain["evaluate"] / METRICS).read_bytes())
    confusion = metrics["challenger"]["confusion"]
    num_boxes = sum(sum(row) for row in confusion[:-1])
    assert (
        num_boxes
        == sum(each["support"] for each in metrics["challenger"]["classes"])
        == sum(count for count, _ in metrics["by_size"].values())
    )
    assert sum(confusion[i][i] for i in range(10)) == sum(
        found for _, found in metrics["by_size"].values()
    )


def test_truth_and_prediction_of_three_scenes_are_one_picture(chain):
    picture = cv2.imread(str(chain["evaluate"] / PREDICTIONS))
    assert picture.shape == (3 * 382 + 8, 2 * 348 + 8, 3)


def test_the_page_draws_truth_and_answer_on_the_same_picture(chain):
    page = (chain["evaluate"] / REPORT).read_text()
    assert all(
        f'<section id="{name}">' in page
        for name in ("models", "changes", "training", "scores", "classes", "data", "lineage")
    )
    assert page.count('class="framed"') == 24
    assert "truth-box" in page and "missed" in page
    assert "<script" not in page and "mAP@0.5" in page


@pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium on this machine: install the package chromium"
)
def test_the_page_of_the_server_draws_what_a_real_detector_finds(chain, tmp_path):
    from playwright.sync_api import sync_playwright

    assert cv2.imwrite(str(tmp_path / "scene.png"), scene_example("test", 3).image)
    registry = chain["export"].parents[3] / "models"
    command = [
        sys.executable,
        "-m",
        "pipeline_ops.cli.main",
        "serve",
        "digit_scenes",
        "--registry",
        str(registry),
        "--port",
        "0",
    ]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(server.kill)
        address = server.stdout.readline().strip()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--no-proxy-server"]
            )
            page = browser.new_page(viewport={"width": 390, "height": 900})
            page.set_default_timeout(120_000)
            page.goto(address)
            page.get_by_text("version 1, @champion").wait_for()
            page.set_input_files("#file", str(tmp_path / "scene.png"))
            page.get_by_text(re.compile(r"^\d+ objects?$")).wait_for()
            answer = json.loads(page.locator("#json").text_content())
            assert (
                page.locator("#boxes rect").count()
                == page.locator("#bars li").count()
                == sum(score >= 0.3 for score in answer["scores"])
            )
            assert len(answer["boxes"]) == 100 and set(answer) == {
                "boxes",
                "scores",
                "classes",
                "num_detections",
            }
            if folder := os.environ.get("TRAINYARD_SCREENSHOTS"):
                page.screenshot(path=Path(folder) / "serve-detector.png", full_page=True)
            browser.close()
