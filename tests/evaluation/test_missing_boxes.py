"""The evaluation of a detector on a test split that lacks boxes, or that has very many in an image:
every figure may be missing, and page and gate say what to do."""

from __future__ import annotations

import io

import numpy as np
import pytest
from evaluation.report_pages import make_training_figures
from PIL import Image

from pipeline_ops.config.evaluate import Rule
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.results import EvaluationFigures, choose_num_counted
from pipeline_ops.evaluation.answers import count_by_threshold
from pipeline_ops.evaluation.detector import (
    compute_findings,
    describe_counting,
    describe_gaps,
    evaluate_boxes,
)
from pipeline_ops.evaluation.gate import judge
from pipeline_ops.evaluation.inputs import Leaks, Lineage
from pipeline_ops.evaluation.report import ReportData, draw_predictions, render_report
from pipeline_ops.served.client import ImageDetections, TrueBoxes

NAMES = ["cat", "dog"]
BOX, OTHER = (0.1, 0.1, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9)


def make_scene(key: str, boxes=(), classes=(), is_crowd=False) -> TrueBoxes:
    return TrueBoxes(
        key,
        b"",
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes, np.int64),
        np.full(len(classes), is_crowd),
    )


def answer(boxes=(), classes=()) -> ImageDetections:
    scores = np.linspace(0.99, 0.9, len(classes)).astype(np.float32)
    corners = np.array(boxes, np.float32).reshape(-1, 4)
    return ImageDetections(corners, np.array(classes, np.int64), scores)


def evaluate(scenes, answers, champion=False):
    """The findings, and the page of them, with a champion of the same answers if asked for."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    models = [answers] * (1 + champion)
    found = compute_findings(
        scenes,
        models,
        (64, 96),
        NAMES,
        [{"model_bytes": 1.0}] * len(models),
        lambda keys: dict.fromkeys(keys, file.getvalue()),
    )
    rules = [
        Rule.model_validate(each)
        for each in ({"metric": "map_50", "at_least": 0.5}, {"metric": "map", "min_skill": 0.1})
    ]
    verdicts = judge(rules, found.whole, no_champion_reason="there is none")
    dataset = DatasetFigures(
        task="detection",
        class_names=NAMES,
        image_shape=(64, 96, 3),
        num_examples={"train": 9, "validation": 5, "test": len(scenes)},
        labels={},
        num_rejected=0,
        rejected_by_reason={},
    )
    figures = EvaluationFigures(
        num_examples=len(scenes),
        challenger=found.whole.challenger,
        champion=found.whole.champion,
        champion_version=1 if champion else None,
        differences=found.whole.compute_difference_intervals(),
        baseline=dict(found.whole.baseline),
        gate_passed=all(each.passed for each in verdicts),
        rules=verdicts,
    )
    data = ReportData(
        pipeline="cats",
        figures=figures,
        training=make_training_figures(dataset),
        dataset=dataset,
        rejected=[],
        drift=None,
        leaks=Leaks(0, None),
        lineage=Lineage([], "f" * 32),
        no_champion_reason="",
        counts=count_by_threshold(found, NAMES, figures.champion_version),
    )
    draw_predictions(found, NAMES)
    return found, verdicts, render_report(found, data)


@pytest.mark.parametrize("champion", [False, True])
@pytest.mark.parametrize("answers", [answer(), answer([BOX], [1])], ids=["silent", "false alarms"])
@pytest.mark.parametrize(
    ("scene", "note"),
    [
        ({}, "Not measured: the test split has no boxes."),
        (
            {"boxes": [BOX], "classes": [0], "is_crowd": True},
            "Not measured: the test split has no boxes to find, all of its 3 boxes are crowds, "
            "which no detector has to find.",
        ),
    ],
    ids=["no boxes", "crowds"],
)
def test_without_true_boxes_nothing_is_measured_and_the_gate_says_what_to_do(
    scene, note, answers, champion
):
    scenes = [make_scene(f"{i}.png", **scene) for i in range(3)]
    found, verdicts, page = evaluate(scenes, [answers] * 3, champion)
    assert found.whole.challenger.metrics == {} == found.whole.baseline
    assert note in page and '<dd class="big">–</dd>' in page
    assert not any(each.passed for each in verdicts)
    assert verdicts[0].text == (
        "map_50 is undefined on these test examples: no image has a box that a detector has to "
        "find. Correct the annotations, or add annotated images (preprocess.split)"
    )


def test_a_class_without_test_boxes_is_named_and_left_out_of_the_means():
    scenes = [make_scene(f"{i}.png", [BOX], [0]) for i in range(4)]
    found, verdicts, page = evaluate(scenes, [answer([BOX], [0])] * 4)
    assert found.whole.challenger.metrics["map"] == pytest.approx(1.0)
    assert "Not measured: the test split has no boxes of dog." in page
    [row] = [each for each in page.split("<tr>") if '<th scope="row">dog</th>' in each][:1]
    assert row.count("–") == 3 and verdicts[0].passed  # both averages and the recall


def test_difficult_boxes_are_boxes_as_any_other(tmp_path):
    """No source, shard or figure treats them otherwise: they are learned and have to be found."""
    from beam_jobs.io.example import serialise
    from beam_jobs.io.tfrecord_files import write_tfrecord
    from beam_jobs.stages.stage import Box, Example
    from pipeline_ops.served.client import read_true_boxes
    from pipeline_ops.storage.open_store import open_path

    picture, file = np.zeros((10, 10, 3), np.uint8), tmp_path / "test.tfrecord"
    box = Box(1, 1, 5, 5, "dog", is_difficult=True)
    example = Example("1.png", "", b"", picture, boxes=(box,))
    with write_tfrecord(open_path(file)) as writer:
        writer.write(*serialise(example, {"cat": 0, "dog": 1}))
    [scene] = read_true_boxes([str(file)])
    assert scene.is_crowd.tolist() == [False]
    assert evaluate_boxes([scene], [answer(scene.boxes, [1])], (10, 10), NAMES).metrics["map"] == 1


def make_grid(rows: int, columns: int) -> list[tuple[float, ...]]:
    return [
        (r / rows, c / columns, (r + 0.5) / rows, (c + 0.5) / columns)
        for r in range(rows)
        for c in range(columns)
    ]


@pytest.mark.parametrize(("rows", "columns"), [(20, 30), (1, 101), (2, 50), (13, 40)])
def test_a_detector_without_mistakes_has_a_map_of_1_whatever_the_number_of_boxes(rows, columns):
    boxes = make_grid(rows, columns)
    scenes = [make_scene(f"{i}.png", boxes, [0] * len(boxes)) for i in range(2)]
    answers = [answer(boxes, [0] * len(boxes))] * 2
    num_counted = choose_num_counted(len(boxes), [len(boxes)])
    metrics = evaluate_boxes(scenes, answers, (256, 256), NAMES, num_counted).metrics
    assert metrics["map"] == metrics["mar_100"] == pytest.approx(1.0)
    assert metrics["mar_10"] == pytest.approx(10 / len(boxes))


@pytest.mark.parametrize(
    ("most_boxes", "limits", "expected"),
    [(100, [300], 100), (101, [200, 100], 200), (600, [100], 100), (7, [100], 100)],
)
def test_cocos_number_counts_unless_an_image_has_more_boxes(most_boxes, limits, expected):
    assert choose_num_counted(most_boxes, limits) == expected


def test_an_older_champion_of_fewer_answers_is_named():
    scenes = [make_scene("crowd.png", make_grid(12, 10), [0] * 120), make_scene("1.png")]
    models = ["the challenger", "the champion (version 3)"]
    assert describe_counting(200, scenes, [200, 100], models) == [
        "Up to 200 detections of a class in an image count, and not COCO's 100: an image of the "
        "data set has more boxes than that.",
        "crowd.png has 120 boxes, and the champion (version 3) answers 100 at most: it cannot find "
        "the others. Raise train.model_parameters.max_detections.",
    ]
    assert describe_counting(100, scenes[1:], [100, 100], models) == []


def test_very_many_missing_classes_are_counted():
    names = [f"c{i:02}" for i in range(13)]
    assert describe_gaps([make_scene("1.png", [BOX], [0])], names) == [
        "Not measured: the test split has no boxes of c01, c02, c03, c04, c05, c06, c07, c08, c09, "
        "c10 and 2 more."
    ]
