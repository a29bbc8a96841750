"""`validate` and `run` refuse a config that would train a wrong model or none, in less than two
seconds and without TensorFlow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from config_files import set_words

from pipeline_ops.cli.main import main
from pipeline_ops.config.model_catalogue import CATALOGUE
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError

COCO = "{type: coco, path: raw, parts: [{annotations: a.json}]}"
BOXES = ("train.best_checkpoint=null", "evaluate.gate=[{metric: map_50, at_least: 0.1}]")
RAW_PATH = "Correct preprocess.source.path in "


@pytest.fixture
def refuse(config_file, command):
    """Runs a command with overrides, which must end with a status. Returns its errors."""

    def refuse(*overrides: str, status: int = 78, name: str = "validate") -> str:
        return command(name, config_file, *set_words(*overrides), status=status)

    return refuse


@pytest.mark.parametrize("name", ["validate", "run"])
@pytest.mark.parametrize(
    "value, message",
    [
        ("rwa", f"/rwa: no such folder; the nearest valid name is 'raw'. {RAW_PATH}"),
        ("raw/0/a.png", f"raw/0/a.png: is a file, not a folder. {RAW_PATH}"),
        ("empty", f"/empty: is empty. Put the raw data there, or {RAW_PATH.replace('C', 'c')}"),
        (
            "raw/0",
            "raw/0: its files lie in no folder. Put the images of each class into a folder of its "
            "own, named as the class",
        ),
    ],
)
def test_a_folder_without_raw_data_is_refused_before_anything_runs(
    config_file, refuse, name, value, message
):
    (config_file.parent / "empty").mkdir()
    assert message in refuse(f"preprocess.source.path={value}", status=65, name=name)


def test_a_folder_that_cannot_be_read_is_refused(config_file):
    code = (
        "import os, sys; from pipeline_ops.cli.arguments import check_folder; from "
        "pipeline_ops.config.pipeline import load_config; "
        "config = load_config(sys.argv[1], {'preprocess.source.path': '/root'}); os.getuid() or "
        "os.setuid(65534); check_folder(config)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(config_file)], capture_output=True, text=True, check=False
    )
    cure = "Change its permissions, or correct preprocess.source.path in "
    assert f"DataError: /root: this user cannot read it. {cure}" in done.stderr


@pytest.mark.parametrize(
    "more, file, key",
    [
        ("type: coco, parts: [{annotations: m}]", "m", "parts.0.annotations"),
        ("type: csv, manifest: m.csv, task: detection", "m.csv", "manifest"),
        ("type: tfrecord, task: detection, label_map: m, parts: [{files: '*'}]", "m", "label_map"),
    ],
)
def test_a_file_that_the_source_names_must_be_there(refuse, more, file, key):
    errors = refuse(
        f"preprocess.source={{path: raw, {more}}}",
        "train.model=center_detector",
        "preprocess.stages=[decode, {resize: {height: 32, width: 32}}]",
        *BOXES,
        status=65,
    )
    assert f"raw/{file}: no such file. Correct preprocess.source.{key} in " in errors


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            [f"preprocess.source={COCO}"],
            "preprocess.source.type coco is for detection, and train.model digits_cnn is for "
            "classification. Set train.model to center_detector, retinanet, or choose another "
            "source",
        ),
        (
            ["preprocess.source={type: voc, path: raw}"],
            "preprocess.source.type voc is for detection, and train.model digits_cnn is for",
        ),
        (
            ["preprocess.source={type: yolo, path: raw}"],
            "preprocess.source.type yolo is for detection, and train.model digits_cnn is for",
        ),
        (
            [f"preprocess.source={COCO}", "train.model=my_nets:build"],
            "preprocess.source.type coco is for detection, and train.model my_nets:build is for",
        ),
        (
            ["preprocess.source={type: jsonl, path: raw, manifest: m, task: detection}"],
            "preprocess.source.task detection is for detection, and",
        ),
        (
            ["train.model=retinanet", *BOXES],
            "preprocess.source.type image_folder is for classification, and train.model retinanet "
            "is for detection. Set train.model to a classifier",
        ),
        (
            ["train.model=resnet50"],
            "preprocess.stages.1.resize makes images of 28x28, and train.model resnet50 takes "
            "images of at least 32x32 pixels",
        ),
        (
            [
                "train.model=xception",
                "preprocess.stages=[decode, {resize: {height: 70, width: 90}}, equalize]",
            ],
            "makes images of 70x90, and train.model xception takes images of at least 71x71 "
            "pixels. Enlarge them there, or choose another model",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused_with_the_place_and_the_cure(
    config_file, refuse, overrides, message
):
    (config_file.parent / "my_nets.py").write_text("def build(shape, classes): ...\n")
    assert message in refuse(*overrides)


def test_the_place_is_a_line_where_the_file_has_the_value(config_file, refuse):
    config_file.write_text(config_file.read_text().replace("model: digits_cnn", "model: resnet50"))
    line = config_file.read_text().splitlines().index("  - resize:") + 1
    assert refuse().startswith(
        f"{config_file}:{line}: preprocess.stages.1.resize makes images of 28x28"
    )


@pytest.mark.parametrize(
    ("key", "name", "nearest"),
    [
        ("train.model", "smal", "small"),
        ("train.loss", "los", "loss"),
        ("train.metrics.0", "lost", "loss"),
        ("train.callbacks.0", "Watsh", "Watch"),
    ],
)
def test_a_misspelt_function_is_refused_with_the_nearest_name_and_without_running_the_module(
    config_file, refuse, key, name, nearest
):
    file = config_file.parent / "my_nets.py"
    file.write_text(
        "raise SystemExit\ndef small(shape, classes): ...\nif True:\n    from somewhere import "
        "thing as loss\nclass Watch: ...\n"
    )
    override = f"{key}=my_nets:{name}"
    if key.endswith(".0"):
        override = f"{key[:-2]}=[my_nets:{name}]"
    assert (
        f"{key}: my_nets:{name}: {file} defines no '{name}'; the nearest valid name is '{nearest}'"
    ) in refuse(override)


def test_a_module_that_is_not_valid_python_is_refused_with_its_line(config_file, refuse):
    file = config_file.parent / "broken.py"
    file.write_text("def build(:\n")
    assert f"train.model: {file}:1: not valid Python: " in refuse("train.model=broken:build")


@pytest.mark.parametrize(
    "text",
    ["from acme import *", "def __getattr__(name): ...", "import acme.nets as small", "small = 1"],
)
def test_a_name_that_may_be_there_is_not_refused(config_file, capsys, text):
    (config_file.parent / "my_nets.py").write_text(f"{text}\n")
    assert main(["validate", str(config_file), "--set", "train.model=my_nets:small"]) == 0
    assert capsys.readouterr().err == ""


def test_validate_takes_less_than_two_seconds_of_a_core_and_no_tensorflow(config_file):
    code = (
        "import json, sys, time; from pipeline_ops.cli.main import main; code = main(['validate', "
        "sys.argv[1]]); "
        "print(json.dumps([code, time.process_time(), "
        "sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, str(config_file)], capture_output=True, text=True, check=True
    )
    exit_code, seconds, modules = json.loads(done.stdout.splitlines()[-1])
    print(f"{seconds:.2f} s of a core, {time.monotonic() - started:.2f} s in all")
    assert exit_code == 0
    assert seconds < 2
    assert not {"tensorflow", "keras", "apache_beam", "cv2"} & set(modules)


def test_the_smallest_images_of_the_catalogue_are_those_that_the_models_can_be_built_for():
    from pipeline_ops.models import build_model

    for name, entry in CATALOGUE.items():
        if entry.min_size > 1:
            size = entry.min_size - 1
            config = Train.model_validate({"model": name, "best_checkpoint": None})
            with pytest.raises(ConfigError):
                build_model(config, (size, size, 3), 3, Path(), for_training=False)


SOME = "compact_cnn digits_cnn center_detector inception_v3 mobilenet_v3_small resnet50 xception"


@pytest.mark.parametrize("name", SOME.split())
def test_a_model_can_be_built_for_the_smallest_images(name):
    from pipeline_ops.models import build_model

    size = CATALOGUE[name].min_size
    config = Train.model_validate({"model": name, "best_checkpoint": None})
    assert build_model(config, (size, size, 1), 3, Path(), for_training=False).built
