"""The chain for a detector: trained on real scenes for a moment, evaluated as it is served, exported. What it finds is poor; that it is counted right
is what is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scenes import DIGIT_SCENES

from pipeline_ops.contracts.config import load_config
from pipeline_ops.contracts.figures import METRICS, REPORT, SAVED_MODEL, EvaluationFigures, ModelFigures
from pipeline_ops.contracts.layout import Attempt
from pipeline_ops.contracts.manifest import NAME, read_manifest
from pipeline_ops.contracts.plan import KINDS, plan_job
from pipeline_ops.contracts.request import write_request
from pipeline_ops.contracts.shards import shard_paths

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chain(scenes, tmp_path_factory):
    """Train, evaluate and export, each as its own process; the folders of their artifacts."""
    root = tmp_path_factory.mktemp("chain")
    config = load_config(DIGIT_SCENES, {
        "storage.root": str(root), "train.model_parameters": {"width": 8}, "train.epochs": 12, "train.global_batch": 16, "train.workers": 1,
        "train.strategy": "one_device", "train.optimizer.schedule": {"type": "constant", "warmup_steps": 10},
        "evaluate.gate": [{"metric": "map", "at_least": 0.001}, {"metric": "map_50", "at_least": 0.001}]})
    manifests = {"preprocess": scenes}
    for job in ("train", "evaluate", "export"):
        plan = plan_job(job, config, "run", {name: manifests[name] for name in KINDS[job].reads})
        attempt = Attempt(root / job)
        write_request(attempt, plan.request)
        run = subprocess.run([sys.executable, "-m", KINDS[job].module, "--request", str(attempt.request)], capture_output=True, text=True)
        assert run.returncode == 0, f"{job}: {run.stdout[-3000:]}{run.stderr[-3000:]}{attempt.status.read_text()}"
        manifests[job] = str(Path(plan.request.artifact) / NAME)
    return {job: Path(manifest).parent for job, manifest in manifests.items()}


def test_the_chain_publishes_a_detector_with_its_figures(chain):
    figures = ModelFigures.model_validate(read_manifest(chain["export"] / NAME).figures)
    assert figures.version == 1 and figures.num_checked == 30
    assert 0 < figures.metrics["map"] <= figures.metrics["map_50"] <= 1


def test_the_figures_are_those_of_pycocotools(chain, scenes):
    """Computed anew from the SavedModel's answers, in a few lines of their own."""
    import numpy as np
    import tensorflow as tf
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    model = tf.saved_model.load(str(chain["train"] / SAVED_MODEL)).signatures["serving_default"]
    truths, found = [], []
    manifest = read_manifest(scenes)
    for image_id, record in enumerate(tf.data.TFRecordDataset(shard_paths(scenes, manifest, "test")).as_numpy_iterator(), 1):
        features = tf.train.Example.FromString(record).features.feature
        edges = [features[f"image/object/bbox/{edge}"].float_list.value for edge in ("xmin", "ymin", "xmax", "ymax")]
        for *box, label in zip(*edges, features["image/object/class/label"].int64_list.value, strict=True):
            xmin, ymin, xmax, ymax = (128 * value for value in box)
            truths.append({"id": len(truths) + 1, "image_id": image_id, "category_id": label, "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
                           "area": (xmax - xmin) * (ymax - ymin), "iscrowd": 0})
        answer = model(image_bytes=tf.constant([features["image/encoded"].bytes_list.value[0]]))
        for i in range(int(answer["num_detections"][0])):
            ymin, xmin, ymax, xmax = (128 * answer["boxes"][0, i].numpy().astype(float)).tolist()
            found.append({"image_id": image_id, "category_id": int(answer["classes"][0, i]), "score": float(answer["scores"][0, i]),
                          "bbox": [xmin, ymin, xmax - xmin, ymax - ymin]})
    truth = COCO()
    truth.dataset = {"info": {}, "images": [{"id": i} for i in range(1, 31)], "annotations": truths,
                     "categories": [{"id": label, "name": str(label)} for label in range(10)]}
    truth.createIndex()
    evaluator = COCOeval(truth, truth.loadRes(found), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    figures = EvaluationFigures.model_validate(read_manifest(chain["evaluate"] / NAME).figures)
    assert [figures.challenger.metrics[name] for name in ("map", "map_50")] == pytest.approx(np.array(evaluator.stats[:2]).tolist(), abs=1e-4)


def test_every_box_of_the_test_split_is_counted_once(chain):
    metrics = json.loads((chain["evaluate"] / METRICS).read_bytes())
    confusion = metrics["challenger"]["confusion"]
    num_boxes = sum(sum(row) for row in confusion[:-1])
    assert num_boxes == sum(each["support"] for each in metrics["challenger"]["classes"]) == sum(count for count, _ in metrics["by_size"].values())
    assert sum(confusion[i][i] for i in range(10)) == sum(found for _, found in metrics["by_size"].values())


def test_the_page_draws_truth_and_answer_on_the_same_picture(chain):
    page = (chain["evaluate"] / REPORT).read_text()
    assert page.count('class="framed"') == 24
    assert "truth-box" in page and "missed" in page
    assert "<script" not in page and "mAP@0.5" in page
