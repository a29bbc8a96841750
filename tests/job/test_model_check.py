"""The check of a model sees the code of the plan, and files that nobody has named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.planned_training import PlannedTraining
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import check_training, plan_training

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
NET = """
from pathlib import Path

import keras

{line}


def build(image_shape, num_classes):
    return keras.Sequential(
        [keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)]
    )


def loss(labels, logits):
    {in_loss}
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
"""
BESIDE = '(Path(__file__).parent / "labels.txt").read_text()'


@pytest.fixture
def author(tmp_path):
    """Writes a module beside a config, and plans its training."""
    (tmp_path / "labels.txt").write_text("cat dog")
    file = tmp_path / "digits.yaml"
    file.write_text(DIGITS.read_text())

    def plan(line: str = "", in_loss: str = "", **train) -> PlannedTraining:
        (tmp_path / "own_net.py").write_text(NET.format(line=line, in_loss=in_loss))
        chosen = {"model": "own_net:build", "loss": "own_net:loss", **train}
        config = load_config(file, {f"train.{key}": value for key, value in chosen.items()})
        return plan_training(config, sys.executable)

    return plan


def check(training: PlannedTraining) -> None:
    check_training(training, "classification", (8, 8, 1), 10)


@pytest.mark.parametrize(
    "options", [{"line": BESIDE}, pytest.param({"in_loss": BESIDE}, marks=pytest.mark.models)]
)
@pytest.mark.models
def test_a_file_beside_the_module_must_be_named(author, options):
    with pytest.raises(ConfigError, match=r'digits\.yaml:.*train\.files: \["labels\.txt"\]'):
        check(author(**options))
    check(author(**options, files=["labels.txt"]))


@pytest.mark.parametrize("key", ["line", pytest.param("in_loss", marks=pytest.mark.models)])
def test_a_file_elsewhere_is_refused_by_its_name(author, tmp_path, key):
    aside = tmp_path / "aside.txt"
    aside.write_text("cat dog")
    with pytest.raises(ConfigError, match=rf"opens {aside}.*train\.files: \[\"aside\.txt\"\]"):
        check(author(**{key: f"Path({str(aside)!r}).read_text()"}))


def test_a_path_relative_to_the_current_directory_is_explained(author):
    with pytest.raises(ConfigError, match="labels.txt, relative to the current directory"):
        check(author(line="open('labels.txt')", files=["labels.txt"]))


@pytest.mark.models
def test_the_check_is_about_the_code_of_the_plan(author, tmp_path):
    training = author()
    (tmp_path / "own_net.py").write_text("<<<<<<< HEAD\n")
    check(training)
    with pytest.raises(ConfigError, match="own_net"):
        author_again = PlannedTraining.model_validate(training.model_dump() | {"code": None})
        check(author_again)
