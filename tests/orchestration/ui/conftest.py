"""A run for the pages to show."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from evaluation.report_pages import make_findings

from pipeline_ops.evaluation.answers import count_by_threshold, write_answers
from pipeline_ops.evaluation.detector import compute_findings as compute_boxes
from pipeline_ops.served.client import ImageDetections, TrueBoxes


@pytest.fixture
def whole_run(run_writer, set_states, write_classifier):
    """A finished run with all that it leaves."""
    set_states(
        "success", preprocess="success", train="success", evaluate="success", export="success"
    )
    run_writer.dataset()
    write_classifier()
    run_writer.report("<h1>Gate passed</h1>")
    run_writer.publish(0.9, 0.95)
    return run_writer


@pytest.fixture
def write_classifier(run_writer):
    """Writes the answers of two classifiers into the run's evaluation, and returns the findings."""

    def write(num_classes: int = 3, num_examples: int = 400, names=None, champion: bool = True):
        found = make_findings(num_classes, num_examples, 0.3, champion)
        keys = [f"{row}<b>.png" for row in range(num_examples)]
        predictions = dataclasses.replace(found.predictions, keys=keys)
        found = dataclasses.replace(found, predictions=predictions)
        _write(run_writer, found, names or [f"class {i}" for i in range(num_classes)])
        return found

    return write


@pytest.fixture
def write_detector(run_writer):
    """Writes the answers of a detector into the run's evaluation."""

    def write():
        generator = np.random.default_rng(1)
        scenes, answers = [], []
        for number in range(40):
            corners = generator.uniform(0, 0.5, (3, 2))
            boxes = np.concatenate([corners, corners + 0.3], axis=1)
            classes = np.array([0, 1, 1])
            scenes.append(TrueBoxes(f"{number}", b"", boxes, classes, np.zeros(3, bool)))
            near = boxes + generator.normal(0, 0.03, boxes.shape)
            answers.append(ImageDetections(near, classes, generator.random(3)))
        found = compute_boxes(scenes, [answers], (100, 100), ["cat", "dog"], [{}], lambda keys: {})
        _write(run_writer, found, ["cat", "dog"])
        return found

    return write


def _write(run_writer, found, names):
    folder = run_writer.layout.artifact("evaluate", "0" * 32).local
    folder.mkdir(parents=True, exist_ok=True)
    write_answers(folder, found, count_by_threshold(found, names, 2))
    run_writer.artifact("evaluate", {})
