"""The first values for a data set follow from its figures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from beam_jobs.sources.source import SourceRecords
from pipeline_ops.cli.first_config.data_summary import DataSummary, DecodedSample
from pipeline_ops.cli.first_config.settings import FirstSettings, choose_settings
from pipeline_ops.config.model_data_rules import find_size_problem
from pipeline_ops.config.preprocess import Split


def choose(
    sizes: list[tuple[int, int]],
    task: Any = "classification",
    train: int = 800,
    sides: tuple[float, ...] = (),
) -> FirstSettings:
    sample = DecodedSample(sizes, sides, False, False, (), 0)
    split = Split(train=0.8, validation=0.1, test=0.1)
    num_images = {"train": train, "validation": train // 8, "test": train // 8}
    counts = Counter({"a": 5, "b": 5})
    found = SourceRecords([], [])
    return choose_settings(DataSummary(task, counts, split, (), num_images, found, sample, 1.0, ()))


@pytest.mark.parametrize(
    ("sizes", "size", "model"),
    [
        ([(480, 640), (3000, 4000)], (224, 224), "mobilenet_v2"),
        ([(100, 200)], (96, 96), "mobilenet_v2"),
        ([(28, 28)], (28, 28), "digits_cnn"),
        ([(28, 28), (30, 30)], (32, 32), "digits_cnn"),
        ([(8, 8)], (32, 32), "digits_cnn"),
        ([(1, 5000)], (32, 32), "digits_cnn"),
    ],
)
def test_the_size_and_the_model_of_a_classifier(sizes, size, model):
    settings = choose(sizes)
    assert ((settings.height, settings.width), settings.model) == (size, model)
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
    assert settings.model == "center_detector"
    assert find_size_problem("retinanet", *size) is None


@pytest.mark.parametrize(
    ("train", "batch", "epochs", "shards"),
    [(4, 2, 60, 4), (80, 16, 60, 8), (8000, 32, 16, 8), (100_000, 32, 10, 25), (10**7, 32, 10, 64)],
)
def test_batch_epochs_and_shards_follow_the_number_of_images(train, batch, epochs, shards):
    settings = choose([(200, 200)], train=train)
    assert (settings.global_batch_size, settings.epochs, settings.shards) == (batch, epochs, shards)


def test_many_images_get_a_large_model():
    assert choose([(300, 300)], train=100_000).model == "resnet50_v2"
    assert choose([(300, 300)], "detection", train=100_000).model == "retinanet"
