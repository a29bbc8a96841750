"""An author edits the code while it trains: the model is that of the fingerprint, to the bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from launch.running import RunningJob, starting

from pipeline_ops.contract.request import read_status
from pipeline_ops.contract.results import REFERENCE_OUTPUTS
from pipeline_ops.errors import ExitCode
from pipeline_ops.storage.open_store import open_path

NET = """
from pathlib import Path

import keras
from keras import layers

from edited_parts import ACTIVATION, Watch

SCALE = float((Path(__file__).parent / "tables" / "scale.txt").read_text())


def build(image_shape, num_classes):
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Rescaling(SCALE),
            layers.Flatten(),
            layers.Dense(32, ACTIVATION),
            layers.Dense(num_classes),
        ]
    )


def loss(labels, logits):
    if ACTIVATION == "relu":
        logits = 2 * logits
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
"""
PARTS = """
import keras

ACTIVATION = "tanh"


class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.002 if ACTIVATION == "tanh" else 0.5
"""
TRAINING = {
    "train__model": "edited:build",
    "train__loss": "edited:loss",
    "train__callbacks": ["holding:Hold", "edited:Watch"],
    "train__files": ["tables/*.txt"],
    "train__epochs": 3,
    "train__workers": 2,
}


def write_code(folder: Path) -> None:
    """Writes an author's code beside the config."""
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "tables" / "scale.txt").write_text("0.00392")
    (folder / "edited.py").write_text(NET)
    (folder / "edited_parts.py").write_text(PARTS)


def edit_code(folder: Path) -> None:
    """Edits the model, the loss, a callback and a file, as a change of the branch does."""
    (folder / "edited_parts.py").write_text(PARTS.replace('"tanh"', '"relu"', 1))
    (folder / "tables" / "scale.txt").write_text("0.1")


def remove_code(folder: Path) -> None:
    for name in ("edited.py", "edited_parts.py", "tables/scale.txt"):
        (folder / name).unlink()


def break_code(folder: Path) -> None:
    (folder / "edited.py").write_text("<<<<<<< HEAD\n")


@pytest.fixture(scope="module")
def unedited(dataset, make_job_in, tmp_path_factory):
    """The result of a training that nobody edits."""
    folder = tmp_path_factory.mktemp("unedited")
    write_code(folder)
    with starting(make_job_in, dataset, folder, {"launcher": "local"}, **TRAINING) as start_job:
        job = start_job()
        assert job.end() == ExitCode.SUCCESS, job.message()
        yield read_result(job)


@pytest.fixture
def author(dataset, make_job_in, tmp_path):
    """Starts trainings of an author's code, which is beside the config."""
    write_code(tmp_path)
    with starting(make_job_in, dataset, tmp_path, {"launcher": "local"}, **TRAINING) as start_job:
        yield start_job


def read_result(job: RunningJob) -> tuple[str, bytes, list]:
    """The weights, the answers of the SavedModel, and the curve."""
    figures, artifact = job.figures(), open_path(job.job.request.artifact).local
    answers = np.load(artifact / REFERENCE_OUTPUTS).tobytes()
    return figures.weights_digest, answers, [epoch.metrics for epoch in figures.history]


@pytest.mark.faults
def test_a_restarted_gang_and_the_candidate_have_the_code_of_the_fingerprint(
    author, tmp_path, unedited
):
    job = author(is_held=True)
    job.wait_until_held()
    edit_code(tmp_path)
    os.kill(job.worker("worker 1"), signal.SIGKILL)
    job.release()
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert job.figures().restarts == 1
    assert read_result(job) == unedited


@pytest.mark.faults
@pytest.mark.parametrize("edit", [edit_code, remove_code, break_code])
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_no_edit_changes_a_running_training(author, tmp_path, unedited, edit, number):
    job = author(is_held=True)
    job.wait_until_held()
    edit(tmp_path)
    if number:
        os.kill(job.worker("worker 0" if number == signal.SIGTERM else "worker 1"), number)
    job.release()
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert read_result(job) == unedited


@pytest.mark.faults
def test_an_edit_before_the_first_import_changes_nothing(author, tmp_path, unedited):
    job = author()
    edit_code(tmp_path)
    assert job.end() == ExitCode.SUCCESS, job.message()
    assert read_result(job) == unedited


@pytest.mark.faults
def test_a_cleared_task_with_other_code_begins_anew_and_with_the_old_code_goes_on(
    author, tmp_path, unedited
):
    first = author("first", is_held=True)
    first.wait_until_held()
    edit_code(tmp_path)
    first.kill_launcher()
    second = author("second")
    assert second.job.request.artifact != first.job.request.artifact
    assert second.end() == ExitCode.SUCCESS, second.message()
    assert min(second.steps("train")) < 22  # it has not resumed
    assert read_result(second)[0] != unedited[0]
    write_code(tmp_path)
    third = author("third")
    assert third.job.request.artifact == first.job.request.artifact
    assert third.end() == ExitCode.SUCCESS, third.message()
    assert min(third.steps("train")) >= 22  # it has resumed
    assert read_result(third) == unedited


@pytest.mark.faults
def test_an_edit_of_a_module_on_pythons_path_ends_a_restarted_gang(author, tmp_path, monkeypatch):
    write_code(tmp_path / "path")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    remove_code(tmp_path)
    table = '(Path(__file__).parent / "tables" / "scale.txt").read_text()'
    (tmp_path / "path" / "edited.py").write_text(NET.replace(table, "0.004"))
    job = author(is_held=True, train__files=[])
    job.wait_until_held()
    edit_code(tmp_path / "path")
    os.kill(job.worker("worker 1"), signal.SIGKILL)
    job.release()
    assert job.end() == ExitCode.CONFIG
    assert f"{tmp_path}/path/edited_parts.py on " in job.message()
    assert "Clear the task" in job.message()


@pytest.mark.faults
@pytest.mark.parametrize("place", ["model", "loss", "callback"])
def test_a_file_that_is_not_named_ends_the_job_before_its_first_step(author, tmp_path, place):
    opened = tmp_path / "aside" / "secret.txt"
    opened.parent.mkdir()
    opened.write_text("0.004")
    line = f"open({str(opened)!r}).read()"
    at = {
        "model": ("    return keras.Seq", f"    {line}\n    return keras.Seq"),
        "loss": ("    if ACTIVATION ==", f"    {line}\n    if ACTIVATION =="),
        "callback": (
            "    def on_epoch",
            f"    def __init__(self):\n        {line}\n    def on_epoch",
        ),
    }[place]
    for name in ("edited.py", "edited_parts.py"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace(*at, 1))
    job = author()
    assert job.end() == ExitCode.CONFIG
    assert f"opens {opened}" in job.message() and "train.files" in job.message()
    assert job.steps("train") == []
    assert read_status(job._attempt).manifest is None
