"""The first values for a data set follow from its figures."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any

import pytest

from beam_jobs.planning.plan import Record
from beam_jobs.sources.source import SourceRecords
from beam_jobs.stages.stage import Box
from pipeline_ops.cli.first_config.data_summary import DataSummary, DecodedSample
from pipeline_ops.cli.first_config.settings import (
    Budget,
    FirstSettings,
    choose_settings,
    fit_to_budget,
    format_minutes,
)
from pipeline_ops.config.model_data_rules import find_size_problem
from pipeline_ops.config.preprocess import Split
from pipeline_ops.job.model_check import StepTimes
from pipeline_ops.raw_data.raw_file import RawFile


def choose(*data: Any, has_gpu: bool = False, **more: Any) -> FirstSettings:
    return choose_settings(describe(*data, **more), has_gpu)


def describe(
    sizes: list[tuple[int, int]],
    task: Any = "classification",
    train: int = 800,
    sides: tuple[float, ...] = (),
) -> DataSummary:
    sample = DecodedSample(sizes, sides, False, False, (), 0)
    split = Split(train=0.8, validation=0.1, test=0.1)
    num_images = {"train": train, "validation": train // 8, "test": train // 8}
    counts = Counter({"a": 5, "b": 5})
    found = SourceRecords([], [])
    return DataSummary(task, counts, split, (), num_images, found, sample, 1.0, ())


@pytest.mark.parametrize(
    ("sizes", "size", "model"),
    [
        ([(480, 640), (3000, 4000)], (224, 224), "compact_cnn"),
        ([(100, 200)], (96, 96), "compact_cnn"),
        ([(28, 28)], (28, 28), "digits_cnn"),
        ([(28, 28), (30, 30)], (32, 32), "digits_cnn"),
        ([(8, 8)], (32, 32), "digits_cnn"),
        ([(1, 5000)], (32, 32), "digits_cnn"),
    ],
)
def test_the_size_and_the_model_of_a_classifier(sizes, size, model):
    settings = choose(sizes)
    assert ((settings.height, settings.width), settings.recipe.model) == (size, model)
    assert find_size_problem(model, *size) is None


@pytest.mark.parametrize(
    ("sizes", "sides", "size"),
    [
        ([(480, 640)], (0.08,) * 10, (192, 256)),
        ([(480, 640)], (0.04,) * 10, (384, 512)),
        ([(3000, 4000)], (0.001,) * 10, (480, 640)),
        ([(100, 160)], (0.1,), (96, 160)),
        ([(4000, 100)], (0.5,), (256, 32)),
        ([(480, 640)], (), (480, 640)),
        ([(480, 640)], (0.0,) * 10, (480, 640)),
    ],
)
def test_the_size_of_a_detector_keeps_small_boxes_and_the_proportions(sizes, sides, size):
    settings = choose(sizes, "detection", sides=sides)
    assert (settings.height, settings.width) == size
    assert settings.recipe.model == "center_detector"
    assert find_size_problem("retinanet", *size) is None


@pytest.mark.parametrize(
    ("train", "batch", "epochs", "shards"),
    [
        (4, 2, 300, 4),
        (80, 16, 300, 8),
        (8000, 32, 10, 8),
        (100_000, 32, 10, 25),
        (10**7, 32, 10, 64),
    ],
)
def test_batch_epochs_and_shards_follow_the_number_of_images(train, batch, epochs, shards):
    settings = choose([(200, 200)], train=train)
    assert (settings.global_batch_size, settings.epochs, settings.shards) == (batch, epochs, shards)


def test_many_images_get_a_large_model_where_there_is_a_gpu():
    for has_gpu, models in (
        (True, ("resnet50_v2", "retinanet")),
        (False, ("compact_cnn", "center_detector")),
    ):
        found = (
            choose([(300, 300)], task, train=100_000, has_gpu=has_gpu)
            for task in ("classification", "detection")
        )
        assert tuple(settings.recipe.model for settings in found) == models


def fit(minutes: float, step: float = 0.3, train: int = 270, sizes=((480, 640),)) -> Budget:
    data = describe([*sizes], "detection", train=train, sides=(0.08,) * 10)
    times = StepTimes(start=8, step=step, evaluation=0.01)
    return fit_to_budget(choose_settings(data, False), data, times, minutes)


def test_a_training_takes_no_more_steps_than_its_recipe():
    budget = fit(1000)
    assert budget.settings == choose([(480, 640)], "detection", train=270, sides=(0.08,) * 10)
    assert 2000 - 17 < budget.settings.num_steps < 2000 + 17
    assert 2000 * 0.3 < budget.seconds < 2 * 2000 * 0.3


@pytest.mark.parametrize("minutes", [7, 10])
def test_epochs_fit_the_budget(minutes):
    budget = fit(minutes)
    assert budget.seconds <= 60 * minutes < budget.seconds + budget.epoch_seconds
    assert not budget.shortage
    assert (budget.settings.height, budget.settings.width) == (192, 256)


def test_images_get_smaller_if_too_few_steps_would_be_left():
    budget = fit(7, step=0.6)
    assert (budget.settings.height, budget.settings.width) == (128, 192)
    assert budget.settings.size_reason.endswith("scaled by 0.75 to save time")
    assert budget.settings.num_steps >= 800 and not budget.shortage


def test_a_budget_without_a_useful_training_says_how_many_minutes_one_needs():
    budget = fit(2)
    assert budget.settings.epochs >= 1
    match = re.fullmatch(
        r"only (\d+) optimizer steps fit, and a useful model needs about 800: "
        r"give --minutes (\d+)",
        budget.shortage,
    )
    assert match
    assert int(match[2]) > 2 and not fit(int(match[2])).shortage


def test_a_few_images_keep_their_size_and_no_minutes_are_asked_for():
    budget = fit(1000, train=4)
    assert budget.settings.num_steps == 300 * 2 < budget.settings.recipe.min_steps
    assert not budget.shortage
    assert (budget.settings.height, budget.settings.width) == (192, 256)


def test_small_images_are_not_scaled():
    data = describe([(28, 28)])
    settings = choose_settings(data, False)
    budget = fit_to_budget(settings, data, StepTimes(start=8, step=9, evaluation=0.01), 1)
    assert budget.shortage
    assert (budget.settings.height, budget.settings.width) == (28, 28)
    assert budget.settings.size_reason == settings.size_reason


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30 seconds"), (600, "10 minutes"), (7200, "2.0 hours")]
)
def test_times_in_words(seconds, text):
    assert format_minutes(seconds) == text


@pytest.mark.parametrize(
    ("weights", "model"),
    [
        ("mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5", "mobilenet_v2"),
        ("resnet50v2_weights_tf_dim_ordering_tf_kernels_notop.h5", "resnet50_v2"),
        ("efficientnetb0_notop.h5", "efficientnet_b0"),
        ("weights.npz", "compact_cnn"),
    ],
)
def test_the_name_of_a_file_of_weights_tells_the_model(weights, model):
    assert choose_settings(describe([(300, 400)]), False, weights).recipe.model == model
    of_boxes = choose_settings(describe([(300, 400)], "detection"), False, weights)
    assert of_boxes.recipe.model == "center_detector"


@pytest.mark.parametrize(("boxes", "expected"), [(0, 128), (128, 128), (129, 160), (600, 608)])
def test_a_large_detector_has_room_for_all_boxes_of_an_image(boxes, expected):
    image = RawFile("1.png", 1, 1)
    record = Record(image, boxes=(Box(0, 0, 1, 1, "a"),) * boxes)
    data = describe([(300, 300)], "detection", train=100_000)
    data = dataclasses.replace(data, found=SourceRecords([record], []))
    assert choose_settings(data, has_gpu=True).recipe.parameters["max_boxes"] == expected
