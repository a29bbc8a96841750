"""The first task ends a run that would train a wrong model, by a real job or before one."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowFailException
from config_files import use_interpreter, write_config
from task_contexts import make_context

from pipeline_ops.contract.layout import Layout
from pipeline_ops.orchestration.tasks import PreprocessOperator
from pipeline_ops.storage.open_store import open_root

NETS = """
from keras import Input, Sequential, layers

def logits(shape, classes):
    return Sequential([Input(shape), layers.Flatten(), layers.Dense(classes)])

def several_labels(shape, classes):
    return Sequential([Input(shape), layers.Flatten(), layers.Dense(classes, "sigmoid")])
"""


class Events(dict):
    """Airflow's events of the outlets of a task, which are not read here."""

    def __missing__(self, key: object) -> SimpleNamespace:
        return SimpleNamespace(add=lambda asset, extra: None)


@pytest.fixture
def execute(tmp_path):
    """Executes the first task of a pipeline on 40 pictures of two classes, with changed keys."""
    for index in range(40):
        folder = tmp_path / "raw" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = np.random.default_rng(index).integers(0, 256, (12, 12), np.uint8)
        cv2.imwrite(str(folder / f"{index}.png"), image)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "nets.py").write_text(NETS)

    def execute(**changes: Any) -> str:
        keys = {
            "storage.root": "../root",
            "preprocess.source.path": "../raw",
            "preprocess.shards": 2,
        }
        keys |= {name.replace("__", "."): value for name, value in changes.items()}
        operator = PreprocessOperator(config_file=str(write_config(tmp_path / "configs", keys)))
        operator.defer_after_seconds = 240
        return operator.execute(make_context({}, id=uuid.uuid4()) | {"outlet_events": Events()})

    return execute


def attempts(folder: Path) -> int:
    return len(list((folder / "root" / "runs").rglob("attempt-*")))


@pytest.mark.airflow
def test_a_model_of_several_labels_is_refused_by_the_job(execute, tmp_path):
    with pytest.raises(AirflowFailException, match="nets:several_labels ends in sigmoid"):
        execute(train__model="nets:several_labels")
    artifacts = Layout(open_root(tmp_path / "root"), "digits").artifacts("preprocess")
    assert not list(artifacts.local.glob("*/manifest.json"))


def test_a_data_set_that_is_there_already_is_taken_without_a_check(execute, tmp_path):
    """The train job checks the model."""
    made = execute(train__model="dense")
    checker = tmp_path / "python"
    checker.write_text(f'#!/bin/sh\ntouch {tmp_path}/started\nexec {sys.executable} "$@"\n')
    checker.chmod(0o755)
    changes = use_interpreter(tmp_path / "configs", checker, "train")
    assert execute(train__model="nets:several_labels", **changes) == made
    assert attempts(tmp_path) == 1
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"train__model": "resnet50"}, "makes images of 28x28, and train.model resnet50 takes"),
        (
            {
                "preprocess__source": {"type": "voc", "path": "../raw"},
            },
            "preprocess.source.type voc is for detection, and train.model digits_cnn is for",
        ),
    ],
)
def test_what_the_config_alone_says_is_refused_before_a_job_starts(
    execute, tmp_path, changes, message
):
    with pytest.raises(AirflowFailException, match=message):
        execute(**changes)
    assert attempts(tmp_path) == 0
