"""Stages that change pixels of validation or test examples: a published model, or its clients, must
be able to do the same."""

from __future__ import annotations

import importlib
import sys

import pytest

from beam_jobs.stages import load_stage
from pipeline_ops.contract.dataset import DatasetFigures, iterate_index
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ExitCode

DECODE = {"decode": {"channels": 1}}
INVERT, WRITE, TURN = "own_stages:invert", "own_stages:write", "own_stages:turn"
STAGES = """\
from beam_jobs.stages.stage import Example, parameters


@parameters
class Invert:
    split: str = ""
    key: str = ""

    def is_for(self, example):
        return self.split in ("", example.split) and self.key in ("", example.key)


def invert(example: Example, parameters: Invert) -> Example:
    if parameters.is_for(example):
        return example.with_image(255 - example.image)
    return example.with_image(example.image.copy())


def write(example: Example, parameters: Invert) -> Example:
    if parameters.is_for(example):
        example.image[0, 0] += 1
    return example


def repeat(example: Example, parameters: Invert) -> list[Example]:
    return [example.replace(key=f"{example.key}#{number}") for number in range(2)]


@parameters
class Turn:
    pass


def turn(example: Example, parameters: Turn) -> Example:
    return example.with_image(example.image.swapaxes(0, 1))


def serve(image, parameters: Turn):
    import tensorflow as tf

    return tf.transpose(image, [1, 0, 2])
"""


@pytest.fixture
def own(animals, monkeypatch):
    """Animals, and a module of stages next to their config."""
    file = animals.config_file.parent / "own_stages.py"
    file.write_text(STAGES)
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.setenv("PYTHONPATH", str(file.parent), prepend=":")
    forget_stages()
    yield animals
    forget_stages()


def forget_stages() -> None:
    sys.modules.pop("own_stages", None)
    importlib.invalidate_caches()
    load_stage.cache_clear()


def write_config(pipeline, stages: list[str]) -> int:
    """Writes the stages into the config, as lines of YAML. Returns the line of the second one."""
    text = pipeline.config_file.read_text()
    start, end = text.index("  stages:"), text.index("  split:")
    lines = "".join(f"  - {stage}\n" for stage in stages)
    pipeline.config_file.write_text(f"{text[:start]}  stages:\n{lines}{text[end:]}")
    return text[:start].count("\n") + 3


def find_key_of(outcome, split: str) -> str:
    entries = list(iterate_index(outcome.artifact / "index.jsonl.gz"))
    return next(entry.key for entry in reversed(entries) if entry.split == split)


def phases(outcome) -> set[str]:
    return {moment.phase for moment in ProgressReader(outcome.attempt.progress).read_new()}


@pytest.mark.parametrize("stage", [INVERT, WRITE, INVERT + ": {split: test}"])
def test_a_change_that_is_not_served_is_found_before_the_work(own, stage):
    line = write_config(own, ["decode: {channels: 1}", stage])
    outcome = own.run()
    assert outcome.exit_code is ExitCode.CONFIG
    name = stage.partition(": ")[0]
    where = f"{own.config_file}:{line}: preprocess.stages.1.{name}: changes pixels of "
    assert outcome.message.startswith(where)
    key = outcome.message.removeprefix(where).partition(", ")[0]
    assert (own.raw / key).is_file()
    cures = ("`serve` beside it in " + str(own.config_file.parent), "`served: by_client`", "leave")
    assert all(cure in outcome.message for cure in cures)
    assert "plan" not in phases(outcome)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stage_that_changes_a_single_image_is_found_in_the_work(own, split, workers):
    key = find_key_of(own.make(stages=[DECODE]), split)
    line = write_config(own, ["decode: {channels: 1}", f"{INVERT}: {{key: {key}}}"])
    outcome = own.run(runner={"workers": workers})
    assert outcome.exit_code is ExitCode.CONFIG
    where = f"{own.config_file}:{line}: preprocess.stages.1.{INVERT}"
    assert outcome.message.startswith(f"{where}: changes pixels of {key}, but ")
    assert "plan" in phases(outcome)
    assert not outcome.artifact.exists()


def test_a_stage_that_writes_into_the_image_fails_with_record_and_line(own):
    outcome = own.run(stages=[DECODE, {WRITE: {"split": "train"}}])
    line = 1 + STAGES.splitlines().index("        example.image[0, 0] += 1")
    assert outcome.exit_code is ExitCode.BUG
    assert outcome.message.startswith(f"stage {WRITE} failed on ")
    where = f"in {own.config_file.parent / 'own_stages.py'}:{line}: ValueError: "
    assert where in outcome.message and "read-only" in outcome.message


@pytest.mark.parametrize(
    "stage, served",
    [
        ({"name": INVERT, "served": "by_client"}, "by_client"),
        ({INVERT: {}, "served": "by_client"}, "by_client"),
        ({INVERT: {"split": "train"}}, "unchanged"),
        (TURN, "in_graph"),
        ({"name": TURN, "served": "by_client"}, "by_client"),
        ({"resize": {"height": 6, "width": 6}}, "in_graph"),
        ({"tile": {"height": 8, "width": 8}, "served": "by_client"}, "by_client"),
        ({"filter": {"max_aspect": 3.0}}, "unchanged"),
        ({"map_classes": {"rename": {"cat": "pet"}}}, "unchanged"),
        ({"encode": {"format": "jpeg"}}, "unchanged"),
    ],
)
def test_the_figures_say_how_each_stage_is_served(own, stage, served):
    figures = DatasetFigures.model_validate(own.make(stages=[DECODE, stage]).manifest.figures)
    decode, second = figures.stages
    assert (decode.name, decode.parameters, decode.served) == (
        "decode",
        {"channels": 1},
        "in_graph",
    )
    assert second.served == served
    assert decode.code != second.code


def test_several_examples_of_a_test_image_are_a_change(own):
    outcome = own.run(stages=[DECODE, "own_stages:repeat"])
    assert outcome.exit_code is ExitCode.CONFIG
    assert "preprocess.stages.1.own_stages:repeat: makes 2 examples of " in outcome.message
    own.make(stages=[DECODE, {"name": "own_stages:repeat", "served": "by_client"}])


def test_a_misspelt_way_of_serving_is_told_with_its_line(animals):
    line = write_config(
        animals, ["decode", "resize: {height: 8, width: 8}\n    served: by_clients"]
    )
    with pytest.raises(Exception) as error:
        animals.plan()
    assert f"{animals.config_file}:{line + 1}: preprocess.stages.1.served" in str(error.value)
    assert "by_client" in str(error.value)


def test_another_served_form_is_another_data_set(own):
    first = own.make(stages=[DECODE, TURN])
    file = own.config_file.parent / "own_stages.py"
    file.write_text(STAGES.replace("[1, 0, 2]", "(1, 0, 2)"))
    forget_stages()
    second = own.make(stages=[DECODE, TURN])
    assert second.shards == first.shards
    assert second.manifest.digest != first.manifest.digest
    stages = [DatasetFigures.model_validate(one.manifest.figures).stages for one in (first, second)]
    assert [one.code == other.code for one, other in zip(*stages, strict=True)] == [True, False]
