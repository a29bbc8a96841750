"""The pruner of a search, and the records in the store by which trials on all hosts compare."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.contract.pruning import (
    PlannedTrial,
    check_pruned,
    find_pruned,
    record_finished,
)
from pipeline_ops.errors import DataError, Pruned
from pipeline_ops.job.study import TrialReport
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

COUNT = 25
WRITER = """
import sys
from pipeline_ops.contract.pruning import PlannedTrial, record_epoch

for training in (sys.argv[2] * 32, "c" * 32):
    planned = PlannedTrial(study=sys.argv[1], training=training, monitor="loss", min_epochs=1)
    for epoch in range(1, int(sys.argv[3]) + 1):
        print(record_epoch(planned, epoch, float(sys.argv[4])))
"""


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.stores)])
def root(request, tmp_path) -> StorePath:
    return request.getfixturevalue("s3_root") if request.param == "s3" else open_root(tmp_path)


def plan(root: StorePath, number: int, **changes) -> PlannedTrial:
    values = {"monitor": "validation_loss", "min_epochs": 1} | changes
    return PlannedTrial(study=f"{root}/study", training=f"{number:032x}", **values)


def train(planned: PlannedTrial, figures: list[float], epoch: int = 1) -> None:
    """Reports one figure for each epoch from the given one on, and waits for each decision."""
    report = TrialReport(planned, 100, lambda event: None)
    for number, figure in enumerate(figures, epoch):
        metrics = {planned.monitor: figure}
        report(ProgressEvent(time=1.0, phase="train", epoch=number, metrics=metrics))
        while report._reports and not report._reports[0].done():
            pass
        report(ProgressEvent(time=1.0, phase="train"))


def test_of_two_writers_at_the_same_time_one_records_each_figure_and_none_is_lost(root):
    study = f"{root}/study"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, study, name, str(COUNT), figure], stdout=subprocess.PIPE
        )
        for name, figure in (("a", "0.5"), ("b", "0.6"))
    ]
    answers = [writer.communicate(timeout=120)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    own, shared = zip(*((answer[:COUNT], answer[COUNT:]) for answer in answers), strict=True)
    assert {*own[0], *own[1]} == {b"True"}
    assert [{*pair} for pair in zip(*shared, strict=True)] == [{b"True", b"False"}] * COUNT
    assert len(plan(root, 0).folder.list_folder()) == 3 * COUNT


def test_a_trial_that_is_worse_than_the_best_quarter_is_pruned_once_and_for_all(root):
    train(plan(root, 0), [0.5, 0.4])
    with pytest.raises(Pruned, match=r"pruned after epoch 1: validation_loss 0.9000"):
        train(plan(root, 1), [0.9, 0.1])
    for again in (check_pruned, lambda planned: train(planned, [0.1], epoch=2)):
        with pytest.raises(Pruned, match=r"after epoch 1: validation_loss 0.9000"):
            again(plan(root, 1))
    assert find_pruned(plan(root, 0)) == ""
    train(plan(root, 2), [0.4])


def test_trials_are_compared_again_after_four_times_the_epochs(tmp_path):
    root = open_root(tmp_path)
    train(plan(root, 0), [0.5, 0.5, 0.5, 0.2, 0.1])
    train(plan(root, 1), [0.4, 0.5, 0.9])
    with pytest.raises(Pruned, match=r"after epoch 4: validation_loss 0.3000"):
        train(plan(root, 1), [0.3], epoch=4)


def test_an_accuracy_is_better_when_it_is_higher(root):
    train(plan(root, 0, monitor="validation_accuracy"), [0.5])
    train(plan(root, 1, monitor="validation_accuracy"), [0.9])
    with pytest.raises(Pruned):
        train(plan(root, 2, monitor="validation_accuracy"), [0.1])


def test_no_trial_is_compared_before_min_epochs_nor_after_its_last_epoch(tmp_path):
    root = open_root(tmp_path)
    train(plan(root, 0, min_epochs=2), [0.5, 0.4])
    train(plan(root, 1, min_epochs=2), [0.9])
    report = TrialReport(plan(root, 1, min_epochs=2), 2, lambda event: None)
    report._report(2, 0.9)


def test_a_figure_that_is_not_a_number_loses(tmp_path):
    root = open_root(tmp_path)
    train(plan(root, 0), [0.5])
    with pytest.raises(Pruned, match="validation_loss nan"):
        train(plan(root, 1), [math.nan])
    train(plan(root, 2), [0.4])


def test_a_training_of_an_earlier_run_competes_with_its_figures(tmp_path):
    root = open_root(tmp_path)
    for _ in range(2):
        record_finished(plan(root, 0), [0.5, 0.3])
    with pytest.raises(Pruned):
        train(plan(root, 1), [0.8])


def test_a_restarted_gang_repeats_an_epoch_and_a_finished_trial_may_train_again(tmp_path):
    root = open_root(tmp_path)
    train(plan(root, 0), [0.5, 0.4])
    train(plan(root, 0), [0.4, 0.3], epoch=2)
    record_finished(plan(root, 0), [0.5, 0.4, 0.3])
    train(plan(root, 0), [0.9, 0.9])


INVALID = [
    b"",
    b"{",
    b"[]",
    b"\xff" * 9,
    b'{"figures": [0.5], "first_epoch": 0}',
    b'{"figures": [0.5], "first_epoch": 1e400}',
    b'{"figures": ["good"]}',
    b'{"figures": 0.5}',
    b'{"reason": 7}',
    b'{"reason": "%s"}' % (b"x" * 2000),
]


@pytest.mark.parametrize("content", INVALID)
def test_an_invalid_record_is_one_problem_that_names_its_file(tmp_path, content):
    root = open_root(tmp_path)
    folder = plan(root, 0).folder
    (folder / f"{7:032x}-000001.json").write(content)
    with pytest.raises(DataError, match="7-000001.json: not a valid StudyRecord"):
        train(plan(root, 0), [0.5])
    (folder / f"{7:032x}-pruned.json").write(content)
    with pytest.raises(DataError, match="7-pruned.json: not a valid StudyRecord"):
        check_pruned(plan(root, 7))


def test_files_with_other_names_play_no_part(tmp_path):
    root = open_root(tmp_path)
    for name in ("00000007.json", f"{7:032x}-1.json", f"{7:032x}-000001.json.tmp", "x"):
        (plan(root, 0).folder / name).write(b"{")
    train(plan(root, 0), [0.5])
