"""Stages that change the number of examples and classes: figures, shards and messages."""

from __future__ import annotations

import shutil

import pytest

from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.errors import ExitCode

DECODE = {"decode": {"channels": 1}}


def read_figures(outcome) -> DatasetFigures:
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    return DatasetFigures.model_validate(outcome.manifest.figures)


def records_of(outcome, read_records) -> list[bytes]:
    return [record for name in outcome.shards for record in read_records(outcome.artifact / name)]


@pytest.fixture
def three_kinds(animals, encode):
    """60 cats and dogs, and 20 kittens."""
    for index in range(20):
        animals.add(f"kitten/{index:03d}.png", encode(seed=100 + index))
    return animals


def test_merged_classes_are_one_class_in_figures_and_shards(three_kinds, read_records):
    figures = read_figures(
        three_kinds.run(stages=[DECODE, {"map_classes": {"rename": {"kitten": "cat"}}}])
    )
    assert figures.class_names == ["cat", "dog"]
    assert sum(counts["cat"] for counts in figures.labels.values()) == 50
    assert sum(counts["dog"] for counts in figures.labels.values()) == 30


@pytest.mark.parametrize(
    "stage, name",
    [
        ({"map_classes": {"drop": ["kitten"]}}, "map_classes"),
        ({"filter": {"classes": ["cat", "dog"]}}, "filter"),
    ],
)
def test_examples_that_are_not_wanted_are_counted_and_take_no_budget(three_kinds, stage, name):
    outcome = three_kinds.run(stages=[DECODE, stage])
    figures = read_figures(outcome)
    assert figures.class_names == ["cat", "dog"]
    assert sum(figures.num_examples.values()) == 60
    assert figures.skipped_by_reason == {f"{name}: class": 20}
    assert (figures.num_rejected, outcome.quarantine) == (0, [])


def test_two_classes_that_became_one_are_too_few(animals):
    outcome = animals.run(
        stages=[DECODE, {"map_classes": {"rename": {"cat": "pet", "dog": "pet"}}}]
    )
    assert outcome.exit_code is ExitCode.DATA
    assert "needs two classes or more, found only pet" in outcome.message


def test_tiles_are_examples_and_progress_counts_files(animals, encode, read_records):
    animals.add("cat/large.png", encode(16, 12, seed=5))
    tile = {"tile": {"height": 8, "width": 8}, "served": "by_client"}
    outcome = animals.run(stages=[DECODE, tile])
    figures = read_figures(outcome)
    assert figures.image_shape == (8, 8, 1)
    assert sum(figures.num_examples.values()) == 64
    assert sum(figures.labels[split]["cat"] for split in figures.labels) == 34
    counted = {
        file.path: file.num_examples
        for file in outcome.manifest.files
        if file.path in outcome.shards
    }
    assert counted == {name: len(read_records(outcome.artifact / name)) for name in outcome.shards}
    keys = [f"cat/large.png#{place}".encode() for place in ("0,0", "4,0", "0,8", "4,8")]
    assert [sum(key in record for record in records_of(outcome, read_records)) for key in keys] == [
        1,
        1,
        1,
        1,
    ]
    assert (outcome.progress[-1].done, outcome.progress[-1].total) == (61, 61)


def test_not_a_byte_of_tiles_and_jpegs_depends_on_the_runner(animals):
    stages = [
        {"decode": {"channels": 3}},
        {"tile": {"height": 6, "width": 6, "overlap": 2}, "served": "by_client"},
        {"filter": {"max_aspect": 3.0}},
        {"resize": {"height": 9, "width": 7, "mode": "letterbox"}},
        {"encode": {"format": "jpeg"}},
    ]
    found = []
    for workers in (1, 2):
        outcome = animals.run(animals.plan(stages=stages, runner__workers=workers))
        assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
        found.append(outcome.shards)
        shutil.rmtree(outcome.artifact)
    assert found[1] == found[0]


@pytest.mark.parametrize(
    "stage, complaint",
    [
        (
            {"filter": {"classes": ["cat", "dgo"]}},
            (
                "stages.1.filter: there is no class 'dgo' before this stage; "
                "the nearest valid name is 'dog'"
            ),
        ),
        (
            {"clip_boxes": {}},
            (
                "stages.1.clip_boxes: is for detection, and the source has labels without boxes. "
                "Remove the stage"
            ),
        ),
    ],
)
def test_a_stage_that_cannot_work_on_this_data_is_the_configs_fault(animals, stage, complaint):
    outcome = animals.run(stages=[DECODE, stage])
    assert outcome.exit_code is ExitCode.CONFIG
    assert complaint in outcome.message
    assert str(animals.config_file) in outcome.message
