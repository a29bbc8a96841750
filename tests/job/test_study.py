"""The journal of a search: two processes write at the same moment, and a third one reads."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from pipeline_ops.config.search import Search
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.contract.request import PlannedTrial
from pipeline_ops.errors import DataError, Pruned
from pipeline_ops.job.study import (
    StoreJournal,
    TrialReport,
    check_pruned,
    create_study,
    draw_parameters,
    tell_finished,
)
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import StorePath

SEARCH = Search(
    method="random", trials=6, parameters={"train.a": {"low": 0.0, "high": 1.0}}, pruner="asha"
)
COUNT = 25
WRITER = """
import sys
from pipeline_ops.job.study import StoreJournal
from pipeline_ops.storage.open_store import open_root

journal = StoreJournal(open_root(sys.argv[1]) / "journal")
for number in range(int(sys.argv[3])):
    journal.append_logs([{"writer": sys.argv[2], "number": number}])
"""


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.stores)])
def root(request, tmp_path) -> StorePath:
    return request.getfixturevalue("s3_root") if request.param == "s3" else open_root(tmp_path)


def plan(root: StorePath, number: int, **changes) -> PlannedTrial:
    values = {"monitor": "validation_loss", "min_epochs": 1} | changes
    planned = PlannedTrial(study=f"{root}/study", number=number, **values)
    create_study(planned, SEARCH, draw_parameters(SEARCH))
    return planned


def train(planned: PlannedTrial, figures: list[float], epoch: int = 1) -> None:
    """Reports one figure for each epoch from the given one on, and waits for each decision."""
    report = TrialReport(planned, 100, lambda event: None)
    for number, figure in enumerate(figures, epoch):
        metrics = {planned.monitor: figure}
        report(ProgressEvent(time=1.0, phase="train", epoch=number, metrics=metrics))
        while report._reports and not report._reports[0].done():
            pass
        report(ProgressEvent(time=1.0, phase="train"))


def test_two_writers_at_the_same_time_lose_nothing(root):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(root), name, str(COUNT)])
        for name in "ab"
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    found = list(StoreJournal(root / "journal").read_logs(0))
    assert len(found) == 2 * COUNT
    for name in "ab":
        assert [log["number"] for log in found if log["writer"] == name] == list(range(COUNT))
    assert list(StoreJournal(root / "journal").read_logs(2 * COUNT - 1)) == found[-1:]


def test_a_trial_that_is_worse_than_the_best_quarter_is_pruned_once_and_for_all(root):
    train(plan(root, 0), [0.5, 0.4])
    with pytest.raises(Pruned, match=r"pruned after epoch 1: validation_loss 0.9000"):
        train(plan(root, 1), [0.9, 0.1])
    for again in (check_pruned, lambda planned: train(planned, [0.1], epoch=2)):
        with pytest.raises(Pruned, match=r"after epoch 1: validation_loss 0.9000"):
            again(plan(root, 1))
    train(plan(root, 2), [0.4])


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


def test_a_training_of_an_earlier_run_competes_with_its_figures(tmp_path):
    root = open_root(tmp_path)
    for _ in range(2):
        tell_finished(plan(root, 0), [0.5, 0.3], 0.3)
    with pytest.raises(Pruned):
        train(plan(root, 1), [0.8])


def test_a_restarted_gang_repeats_an_epoch_and_a_finished_trial_may_train_again(tmp_path):
    root = open_root(tmp_path)
    train(plan(root, 0), [0.5, 0.4])
    train(plan(root, 0), [0.4, 0.3], epoch=2)
    tell_finished(plan(root, 0), [0.5, 0.4, 0.3], 0.3)
    train(plan(root, 0), [0.9, 0.9])


def test_all_trials_are_entered_once_with_their_parameters(tmp_path):
    root = open_root(tmp_path)
    for number in range(3):
        plan(root, number)
    longer = SEARCH.model_copy(update={"trials": 8})
    create_study(plan(root, 0), longer, draw_parameters(longer))
    logs = list(StoreJournal(work_folder(root / "study")).read_logs(0))
    assert [log["params"] for log in logs[1:]] == draw_parameters(longer)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"op_code": 77}', b'{"op_code": 4, "study_id": []}', b"\xff" * 9],
)
def test_an_entry_that_is_not_optunas_is_named(tmp_path, content):
    planned = plan(open_root(tmp_path), 0)
    file = work_folder(open_root(tmp_path) / "study") / "00000007.json"
    file.write(content)
    with pytest.raises(DataError, match="00000007.json: (this entry|not a valid)"):
        check_pruned(planned)


CREATE = {"op_code": 0, "study_name": "search", "directions": [1], "worker_id": "x"}
TRIAL = {
    "op_code": 4,
    "study_id": 0,
    "worker_id": "x",
    "datetime_start": "2026-01-01T00:00:00",
    "state": 0,
}
REPORT = {"op_code": 7, "trial_id": 0, "worker_id": "x", "step": 1, "intermediate_value": 0.5}
PRUNED = {
    "op_code": 6,
    "trial_id": 0,
    "worker_id": "x",
    "state": 2,
    "values": None,
    "datetime_complete": "2026-01-01T00:00:00",
}
RANGE = {"low": 0.0, "high": math.inf, "log": False, "step": 0.5}
TRIALS = [CREATE] + [TRIAL] * SEARCH.trials
HOSTILE = {
    "another_name": [CREATE | {"study_name": "theirs"}] + TRIALS[1:],
    "two_studies": [CREATE, CREATE | {"study_name": "theirs"}, *TRIALS[1:]],
    "deleted_study": [*TRIALS, {"op_code": 1, "study_id": 0, "worker_id": "x"}],
    "missing_trial": TRIALS[:1],
    "text_as_a_figure": [*TRIALS, REPORT | {"intermediate_value": "good"}, PRUNED],
    "text_as_a_figure_of_another": [
        *TRIALS,
        REPORT | {"trial_id": 3, "intermediate_value": "good"},
        PRUNED | {"trial_id": 3},
    ],
    "text_as_a_rung": [
        *TRIALS,
        {"op_code": 9, "trial_id": 3, "worker_id": "x", "system_attr": {"completed_rung_0": "x"}},
    ],
    "endless_range": [
        CREATE,
        TRIAL
        | {
            "params": {"a": 0.5},
            "distributions": {
                "a": json.dumps({"name": "FloatDistribution", "attributes": RANGE}).replace(
                    "Infinity", "1e400"
                )
            },
        },
        *TRIALS[2:],
    ],
}


@pytest.mark.parametrize("logs", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_journal_is_one_problem_that_names_its_file(tmp_path, logs):
    """Whatever of it a task reads: the last of these calls needs all entries to be right."""
    root = open_root(tmp_path)
    StoreJournal(work_folder(root / "study")).append_logs(logs)
    planned = PlannedTrial(study=f"{root}/study", number=0, monitor="validation_loss", min_epochs=1)
    with pytest.raises(DataError, match=r"000\d\.json: this entry.* Remove .*study"):
        check_pruned(planned)
        train(planned, [0.5])
        tell_finished(planned, [0.5], 0.5)
        create_study(planned, SEARCH, draw_parameters(SEARCH))


def test_the_entries_of_the_hostile_journals_are_otherwise_right(tmp_path):
    root = open_root(tmp_path)
    StoreJournal(work_folder(root / "study")).append_logs(TRIALS)
    train(plan(root, 0), [0.5])
    tell_finished(plan(root, 0), [0.5], 0.5)
