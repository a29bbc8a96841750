"""The numbers of boxes that the preprocess job leaves in figures and page."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter

import pytest

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.model_check import plan_training
from pipeline_ops.planning.plan import plan_job

CROWDED = 120
RESIZE = {"resize": {"height": 32, "width": 32}}


@pytest.fixture
def pictures(pipeline, encode):
    """Makes a data set of 60 pictures: each has boxes as `describe` says, a list of (class, whether
    it is a crowd) by the number of the picture."""

    def make(describe, stages=(), **train):
        images, annotations = [], []
        for index in range(60):
            pipeline.add(f"{index:02}.png", encode(40, 40, seed=index))
            images.append({"id": index, "file_name": f"{index:02}.png", "width": 40, "height": 40})
            for place, (name, is_crowd) in enumerate(describe(index)):
                box = [place % 12 * 3, place // 12 * 3, 2, 2]
                entry = {"image_id": index, "category_id": name, "bbox": box}
                annotations.append(entry | {"iscrowd": int(is_crowd)})
        names = sorted({each["category_id"] for each in annotations})
        for each in annotations:
            each["category_id"] = names.index(each["category_id"])
        categories = [{"id": index, "name": name} for index, name in enumerate(names)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        pipeline.add("all.json", json.dumps(content).encode())
        source = {"type": "coco", "path": "../raw", "parts": [{"annotations": "all.json"}]}
        changes = {
            "preprocess.source": source,
            "preprocess.stages": [{"decode": {"channels": 1}}, RESIZE, *stages],
            "train": {"model": "center_detector", **train},
            "evaluate.gate": [{"metric": "map", "at_least": 0.1}],
        }
        config = load_config(pipeline.config_file, changes)
        plan = plan_job("preprocess", config, "run", {})
        training = plan_training(config, sys.executable) if train else None
        request = plan.request.model_copy(update={"training": training})
        return pipeline.run(dataclasses.replace(plan, request=request))

    return make


def test_crowds_empty_images_and_similar_names_are_told(pictures):
    def describe(index):
        if index < 20:
            return []
        return [("Cat" if index == 59 else "cat", False), ("dog", index % 2), ("dog", False)]

    outcome = pictures(describe)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    figures, page = outcome.manifest.figures, (outcome.artifact / "data.html").read_text()
    total = sum(map(Counter, figures["labels"].values()), Counter())
    assert total == {"Cat": 1, "cat": 39, "dog": 60}
    assert (figures["most_boxes"], figures["most_raw_boxes"]) == (3, 3)
    for text in (
        "20 of 60 images have no boxes (train ",
        "20 of 120 boxes are crowds (iscrowd: 1), which a detector does not learn from (train ",
        "Cat (1) and cat (39) differ in case only.",
    ):
        assert text in page
    assert len(figures["warnings"]) == 3, "and one that Cat has no test example"


def test_the_fullest_image_is_measured_before_and_after_the_stages(pictures):
    outcome = pictures(
        lambda index: [("cat", False)] * (CROWDED if index == 7 else 1),
        [{"tile": {"height": 16, "width": 16}}],
    )
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    figures = outcome.manifest.figures
    assert 20 < figures["most_boxes"] < figures["most_raw_boxes"] == CROWDED
    page = (outcome.artifact / "data.html").read_text()
    assert "An image has 120 boxes. A model answers up to 200 (" in page


def test_a_class_without_a_box_to_learn_from_is_told(pictures):
    outcome = pictures(lambda _: [("cat", False), ("dog", True)])
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    told = "No training example of dog, so the model never learns to find it."
    assert told in outcome.manifest.figures["warnings"]
    assert told in (outcome.artifact / "data.html").read_text()


def test_without_a_box_to_learn_from_the_job_ends_before_any_work(pictures):
    outcome = pictures(lambda _: [("cat", True), ("dog", True)])
    assert outcome.exit_code is ExitCode.DATA
    assert "120 of 120 boxes are crowds (iscrowd: 1)" in outcome.message
    assert "Set iscrowd to 0 where a box is one object" in outcome.message


def test_more_boxes_than_a_training_takes_are_told_before_any_work(pictures):
    outcome = pictures(
        lambda index: [("cat", False)] * (CROWDED if index == 7 else 1),
        model="retinanet",
        model_parameters={"max_boxes": 119},
    )
    assert outcome.exit_code is ExitCode.CONFIG
    assert "max_boxes is 119, and 07.png has 120 boxes. Set it to 120 or more" in outcome.message
    assert not outcome.artifact.exists()
