"""`validate --deep`: the source is read, and model, loss and callbacks are built on one batch,
each in the way that jobs do it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from config_files import set_words, use_interpreter, write_config

from pipeline_ops.cli.main import main

MISTAKES = "acme_vision.mistakes"
SMALL = "train.model=acme_vision.nets:smooth"


@pytest.fixture
def pictures(config_file) -> Path:
    """The config file, whose raw folder holds 40 pictures of two classes."""
    import cv2
    import numpy as np

    for index in range(40):
        image = np.random.default_rng(index).integers(0, 256, (12, 12), np.uint8)
        (config_file.parent / "raw" / str(index % 2) / f"{index}.png").write_bytes(
            cv2.imencode(".png", image)[1].tobytes()
        )
    for label in "01":
        (config_file.parent / "raw" / label / "a.png").unlink()
    return write_config(config_file.parent, {"train.global_batch_size": 8}, config_file)


def with_python(file: Path, python: Path | str) -> list[str]:
    """The overrides by which the train task has another interpreter."""
    return [f"{key}={name}" for key, name in use_interpreter(file.parent, python, "train").items()]


def deep(capsys, file: Path, *overrides: str) -> tuple[int, str]:
    code = main(["validate", str(file), "--deep", *set_words(*overrides)])
    output = capsys.readouterr()
    return code, output.out + output.err


@pytest.mark.training
def test_a_model_that_can_be_trained_passes(user_package, pictures, capsys):
    more = (
        "train.loss=acme_vision.objectives:focal_loss",
        "train.metrics=[acme_vision.objectives:brier]",
    )
    code, output = deep(capsys, pictures, SMALL, *more)
    assert code == 0, output
    assert "the model acme_vision.nets:smooth accepts them" in output
    assert not (pictures.parent / "root").exists()  # nothing is written into the store


INVERT = """
from beam_jobs.stages.stage import Example, parameters

@parameters
class Invert:
    pass

def invert(example: Example, parameters: Invert) -> Example:
    return example.with_image(255 - example.image)
"""


def test_a_stage_that_changes_pixels_and_is_not_served_is_refused(pictures, capsys, monkeypatch):
    (pictures.parent / "own_inverting.py").write_text(INVERT)
    monkeypatch.syspath_prepend(pictures.parent)
    stage = "{name: own_inverting:invert%s}"
    chain = "preprocess.stages=[{decode: {channels: 1}}, %s, {resize: {height: 28, width: 28}}]"
    code, output = deep(capsys, pictures, chain % stage % "")
    assert code == 78
    assert "preprocess.stages.1.own_inverting:invert: changes pixels of " in output
    code, output = deep(capsys, pictures, chain % stage % ", served: by_client")
    assert code == 0, output


@pytest.mark.airflow
@pytest.mark.parametrize("name", ["layer", "Subclassed", "single"])
def test_a_model_that_returns_probabilities_is_accepted(user_package, pictures, capsys, name):
    """Walk stumble 5: they were trained with a softmax, and published."""
    code, output = deep(capsys, pictures, f"train.model=acme_vision.endings:{name}")
    assert code == 0, output
    assert f"the model acme_vision.endings:{name} accepts them" in output


def test_a_model_of_the_catalogue_needs_no_process(pictures, capsys):
    assert deep(capsys, pictures, *with_python(pictures, "/nowhere/python"))[0] == 0
    assert not (pictures.parent / "root" / "checked").exists()


@pytest.mark.airflow
@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            [f"train.model={MISTAKES}:averaged"],
            "averaged returns probabilities (the outputs of every image sum to 1)",
        ),
        (
            [SMALL, f"train.callbacks=[{MISTAKES}:WithoutMethods]"],
            "gives an object of the class WithoutMethods",
        ),
    ],
)
def test_what_would_train_a_wrong_model_is_refused_with_place_and_cure(
    user_package, pictures, capsys, overrides, message
):
    code, output = deep(capsys, pictures, *overrides)
    assert (code, message in output) == (78, True), output
    assert output.startswith((f"{pictures}:", "override train."))
    assert not (pictures.parent / "root" / "checked").exists()


@pytest.mark.airflow
def test_the_check_runs_in_the_interpreter_of_the_train_task(user_package, pictures, capsys):
    """The interpreter is a script that notes its arguments, and one without TensorFlow is named."""
    wrapper = pictures.parent / "python"
    wrapper.write_text(
        f'#!/bin/sh\necho "$@" >> {pictures.parent}/asked\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    code, output = deep(capsys, pictures, SMALL, *with_python(pictures, wrapper))
    assert code == 0, output
    assert "-P -m pipeline_ops.training.check" in (pictures.parent / "asked").read_text()
    wrapper.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *check*) export PYTHONPATH={pictures.parent}/fake:$PYTHONPATH;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    (pictures.parent / "fake").mkdir()
    (pictures.parent / "fake" / "tensorflow.py").write_text(
        "raise ImportError('No module named tensorflow')\n"
    )
    words = ("train.model=acme_vision.nets:dropping", *with_python(pictures, wrapper))
    code, output = deep(capsys, pictures, *words)
    problem = (
        "has no TensorFlow (No module named tensorflow). Name a hosts file with an interpreter"
    )
    assert (code, problem in output) == (78, True), output


@pytest.mark.airflow
def test_airflows_settings_do_not_reach_the_check(user_package, pictures, capsys, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "secret")
    noted = pictures.parent / "environment"
    note = f"import json, os\njson.dump(dict(os.environ), open({str(noted)!r}, 'w'))\n"
    (pictures.parent / "noting.py").write_text(f"{note}from acme_vision.nets import smooth\n")
    assert deep(capsys, pictures, "train.model=noting:smooth")[0] == 0
    environment = json.loads(noted.read_text())
    assert not [name for name in environment if name.startswith("AIRFLOW")]
    assert environment["CUDA_VISIBLE_DEVICES"] == "-1"
    assert os.environ["AIRFLOW__CORE__FERNET_KEY"] == "secret"


@pytest.mark.parametrize(
    "overrides, code, message",
    [
        (
            ["preprocess.split={train: 0.998, validation: 0.001, test: 0.001}"],
            65,
            "the validation split has no example: preprocess.split.validation is 0.001",
        ),
        (
            ["preprocess.source={type: csv, path: raw, manifest: 0/0.png, task: classification}"],
            65,
            "0/0.png",
        ),
        (
            ["train.model=resnet50", "preprocess.stages=[decode]"],
            78,
            "train.model: resnet50 takes images of at least 32x32 pixels, and those of the",
        ),
    ],
)
def test_the_data_are_looked_at(pictures, capsys, overrides, code, message):
    found, output = deep(capsys, pictures, *overrides)
    assert (found, message in output) == (code, True), output


def test_entries_that_are_left_out_of_a_data_set_that_is_ok_are_told(pictures, capsys):
    code, output = deep(capsys, pictures)
    assert code == 0 and "cannot be used" not in output
    (pictures.parent / "raw" / "0" / "link.png").symlink_to(pictures)
    code, output = deep(capsys, pictures)
    assert code == 0
    assert "1 of 41 entries cannot be used: 1 link_outside (such as 0/link.png" in output, output


def test_annotations_without_their_images_are_told_with_count_and_example(pictures, capsys):
    rows = "".join(f"images/{number}.jpg,{number % 2}\n" for number in range(7))
    (pictures.parent / "raw" / "labels.csv").write_text(f"path,label\n{rows}")
    source = f"type: csv, path: {pictures.parent}/raw, manifest: labels.csv, task: classification"
    words = f'preprocess.source={{{source}, class_names: ["0", "1"]}}'
    code, output = deep(capsys, pictures, words)
    assert code == 65
    assert (
        "7 of 7 entries cannot be used: 7 missing_image (such as images/0.jpg: "
        "there is no file images/0.jpg). Correct the annotations"
    ) in output


@pytest.mark.training
def test_a_metric_of_the_gate_is_built_like_one_of_the_training(user_package, pictures, capsys):
    rule = "{metric: 'acme_vision.objectives:mean_loss', at_most: 0.5}"
    code, output = deep(capsys, pictures, SMALL, f"evaluate.gate=[{rule}]")
    assert code == 78
    assert "evaluate.gate: acme_vision.objectives:mean_loss: must return a value for" in output


def test_weights_that_are_missing_or_do_not_fit_are_refused(pictures, capsys):
    code = main(["validate", str(pictures), *set_words("train.warm_start=nowhere.npz")])
    output = capsys.readouterr().err
    assert code == 78
    assert output.startswith("override train.warm_start: train.warm_start: there is no ")
    weights = pictures.parent / "other.npz"
    weights.write_bytes(b"none")
    code, output = deep(capsys, pictures, f"train.warm_start={weights}")
    assert code == 78 and f"cannot read {weights} as weights" in output
    (pictures.parent / "ckpt-0.index").write_bytes(b"none")
    code, output = deep(capsys, pictures, f"train.warm_start={pictures.parent}/ckpt-0")
    assert code == 78
    assert "ckpt-0.data-00000-of-00001. Get all files of the checkpoint." in output
    (pictures.parent / "ckpt-0.data-00000-of-00001").write_bytes(b"none")
    code, output = deep(capsys, pictures, f"train.warm_start={pictures.parent}/ckpt-0")
    assert code == 78 and f"cannot read {pictures.parent}/ckpt-0 as weights" in output


@pytest.mark.training
def test_a_serve_that_does_something_else_is_found_before_the_training(
    pictures, capsys, monkeypatch
):
    """TensorFlow is in a process of its own."""
    for served, fault in (("255 - image", ""), ("250 - image", "makes other pixels of ")):
        text = f"{INVERT}\ndef serve(image, parameters: Invert):\n    return {served}\n"
        name = f"own_served_{len(fault)}"
        (pictures.parent / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(pictures.parent)
        monkeypatch.setenv("PYTHONPATH", str(pictures.parent), prepend=os.pathsep)
        stages = (
            f"[{{decode: {{channels: 1}}}}, {name}:invert, {{resize: {{height: 28, width: 28}}}}]"
        )
        code, output = deep(capsys, pictures, f"preprocess.stages={stages}")
        assert code == (78 if fault else 0), output
        where = f"preprocess.stages.1.{name}:invert: `serve` of the stage {name}:invert {fault}"
        assert (where in output) == bool(fault)


def test_fewer_images_than_one_batch_are_refused_as_the_training_does(pictures, capsys):
    raw = pictures.parent / "raw"
    code, output = deep(capsys, pictures, "train.global_batch_size=30")
    assert code == 65 and output == (
        f"the train split of {raw} has 29 examples, fewer than one global batch (30). "
        "Lower train.global_batch_size or add data.\n"
    )
    per_replica = ("train.batch_size_per_replica=15", "train.global_batch_size=null")
    code, output = deep(capsys, pictures, *per_replica)
    assert code == 65 and "Lower train.batch_size_per_replica or add data" in output
    assert deep(capsys, pictures, "train.global_batch_size=29")[0] == 0


def test_fewer_images_than_shards_are_refused_as_the_preprocessing_does(pictures, capsys):
    code, output = deep(capsys, pictures, "preprocess.shards=30")
    assert code == 65
    assert "the train split has 29 records, too few for 30 shards. Add images, or lower" in output


def test_a_search_needs_enough_images_for_one_of_its_trials(pictures, capsys):
    search = "search={parameters: {train.global_batch_size: [%s]}, max_parallel: 1}"
    assert deep(capsys, pictures, search % "30, 29")[0] == 0
    code, output = deep(capsys, pictures, search % "60, 30")
    assert code == 65 and "fewer than one global batch (30)" in output


SEVERAL = """
from beam_jobs.stages.stage import Example, parameters

@parameters
class Copies:
    pass

def copies(example: Example, parameters: Copies) -> list[Example]:
    return [example.replace(key=f"{example.key}#{number}") for number in range(3)]
"""


def test_a_stage_that_may_make_more_examples_leaves_the_count_to_the_training(
    pictures, capsys, monkeypatch
):
    (pictures.parent / "own_copies.py").write_text(SEVERAL)
    monkeypatch.syspath_prepend(pictures.parent)
    own = "{name: own_copies:copies, served: by_client}"
    for stage in (own, "{name: tile, parameters: {height: 6, width: 6}, served: by_client}"):
        chain = f"preprocess.stages=[{{decode: {{channels: 1}}}}, {stage}]"
        code, output = deep(capsys, pictures, chain, "train.global_batch_size=64")
        assert "fewer than one global batch" not in output, output


def test_small_splits_are_named(pictures, capsys):
    code, output = deep(capsys, pictures)
    counts = re.search("checked +29 train, ([0-9]+) validation, ([0-9]+) test images", output)
    assert code == 0 and counts
    for split, count in zip(("validation", "test"), counts.groups(), strict=True):
        assert f"look at    Only {count} images are in the {split} split, fewer than 30" in output
