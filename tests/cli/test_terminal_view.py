"""The terminal view of a run."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from pipeline_ops.cli.run_view import PlainView, RunStatus, TaskStatus, print_result, terminal_view
from pipeline_ops.contract.progress import ProgressEvent
from pipeline_ops.contract.task_record import TaskRecord
from pipeline_ops.planning.job_kinds import JOBS

EARLY_STOP = "stopped early at epoch 20 of 40: no better validation loss for 6 epochs"


def make_status(*tasks: TaskStatus, state: str = "running") -> RunStatus:
    named = {task.name: task for task in tasks}
    return RunStatus(
        "manual__1", state, 3.0, tuple(named.get(job, TaskStatus(job)) for job in JOBS)
    )


def training(done: int, **more) -> TaskStatus:
    values = {"time": 0, "phase": "train", "total": 90, "unit": "steps"}
    progress = ProgressEvent(**values, done=done, metrics={"loss": 0.5})
    return TaskStatus("train", "running", 1.0, 1, progress, **more)


def make_console(**more) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, width=120, markup=False, highlight=False, **more), output


def make_plain_view() -> tuple[PlainView, Callable[[], list[str]]]:
    """A view, and a function that returns its output, line by line."""
    console, output = make_console()
    return PlainView(console), lambda: output.getvalue().splitlines()


@pytest.fixture
def plain():
    return make_plain_view()


def test_a_change_of_state_is_one_line_with_its_reason(plain):
    view, lines = plain
    record = TaskRecord(state="success", cached=True, reason="unchanged")
    cached = TaskStatus("preprocess", "success", 0.2, 1, record=record)
    for _ in range(3):
        view.show(make_status(cached))
    assert lines() == ["    3.0 s  preprocess  cached: unchanged"]


def test_a_deferred_task_still_runs(plain):
    view, lines = plain
    for state in ("queued", "running", "deferred", "running"):
        view.show(make_status(TaskStatus("train", state, 1.0, 1)))
    assert [line.split()[-1] for line in lines()] == ["queued", "running"]


def test_a_task_that_asks_a_person_says_where_the_answer_is_given(plain):
    view, lines = plain
    asking = TaskStatus("approve", "awaiting_input", 1.0, 1)
    view.show(RunStatus("manual__1", "running", 3.0, (asking,)))
    [line] = lines()
    assert line.startswith("    3.0 s  approve     waiting: for a person's answer")


def test_progress_comes_every_two_seconds_and_messages_at_once():
    begin = -2.0
    # A machine that took two seconds for the two calls may write another line, too.
    while time.monotonic() - begin >= 2.0:
        (view, lines), begin = make_plain_view(), time.monotonic()
        view.show(make_status(training(10)))
        view.show(make_status(training(20, messages=("worker 1 was killed; restart 1 of 3",))))
    assert [line[23:] for line in lines()] == [
        "running",
        "train 10/90 steps  loss 0.5",
        "worker 1 was killed; restart 1 of 3",
    ]
    time.sleep(2.0)
    view.show(make_status(training(30)))
    assert lines()[-1].endswith("train 30/90 steps  loss 0.5")


def test_the_first_metrics_come_at_once(plain):
    view, lines = plain
    without = ProgressEvent(time=0, phase="train", done=0, total=90, unit="steps")
    view.show(make_status(TaskStatus("train", "running", 1.0, 1, without)))
    view.show(make_status(training(1)))
    view.show(make_status(training(2)))
    assert [line[23:] for line in lines()] == [
        "running",
        "train 0/90 steps",
        "train 1/90 steps  loss 0.5",
    ]


def test_a_task_that_will_be_tried_again_says_why(plain):
    view, lines = plain
    record = TaskRecord(state="failed", message="the host went down")
    view.show(make_status(TaskStatus("train", "up_for_retry", 1.0, 1, record=record)))
    assert lines() == ["    3.0 s  train       up for retry: the host went down"]


def test_in_a_terminal_the_tasks_are_drawn_in_place():
    console, output = make_console(force_terminal=True, color_system=None)
    with terminal_view(console) as show:
        show(make_status(training(45)))
        show(make_status(training(90)))
    text = output.getvalue()
    assert f"{'━' * 12}{' ' * 12}  train 45/90 steps  loss 0.5" in text
    assert "\x1b[1A" in text  # the second drawing starts above itself


def test_a_gate_that_was_not_passed_is_said_to_be_no_failure():
    console, output = make_console()
    gate = {"passed": False, "champion_version": 2, "reasons": ["accuracy 0.9 is below 0.975"]}
    sentence = "Refused by the gate: accuracy 0.9 is below 0.975. Version 2 stays in service."
    summary = {
        "outcome": {"kind": "refused", "sentence": sentence, "next_step": ""},
        "dataset": {"rejected": 2, "page": "/data.html"},
        "training": {"warm_start": "/models/digits/2", "early_stop": EARLY_STOP},
        "search": None,
        "metrics": {"accuracy": 0.9},
        "baseline": {"accuracy": 0.25},
        "overfitting": "The training data are too few.",
        "gate": gate,
        "model": {"name": "digits", "version": None, "uri": None},
        "report": "/r/report.html",
        "predictions": "/r/predictions.png",
        "store": {"requests": 5, "bytes_read": 2_000_000, "bytes_written": 0},
    }
    print_result(console, summary, make_status(state="success"))
    assert (
        "Rejected  2 unusable entries of the raw data: /data.html\n"
        "Start     from the weights of /models/digits/2\n"
        f"Training  {EARLY_STOP}\n"
        "Metrics   accuracy 0.9000\n"
        "Baseline  Better than a model that has not looked at the images: "
        "accuracy 0.9000 against 0.2500\n"
        "Note      The training data are too few.\n"
        "Gate      not passed (against version 2)\n"
        "          accuracy 0.9 is below 0.975\n"
        "Report    /r/report.html\nPictures  /r/predictions.png\n"
        "Store     5 requests, 2.0 MB read, 0.0 MB written\n"
    ) in output.getvalue()
    first, *_, last = output.getvalue().splitlines()
    assert first == sentence
    assert last == "Time      3.0 s from the trigger to the end"
    assert "Model " not in output.getvalue()
