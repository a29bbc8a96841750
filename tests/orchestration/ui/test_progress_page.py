"""The page of a run in progress: its tasks, curves, workers and problems."""

from __future__ import annotations

import re
import time

import pytest

from pipeline_ops.contract.progress import ProgressEvent, ProgressReader
from pipeline_ops.contract.results import GpuUsage, StepShares
from pipeline_ops.orchestration.ui.progress import TrainingCurves


def make_event(**values) -> ProgressEvent:
    return ProgressEvent(
        **{"time": time.time(), "phase": "train", "unit": "steps", "total": 300} | values
    )


@pytest.fixture
def read_page(client):
    """Reads the progress page of a run."""
    return lambda run, **query: client("viewer").get(run.address("progress", **query)).text


@pytest.fixture
def training(run_writer, set_states):
    """A run in the middle of its training."""
    set_states("running", preprocess="success", train="deferred")
    run_writer.dataset()
    events = [
        make_event(
            done=step,
            rate=41.5,
            eta_seconds=(300 - step) / 41.5,
            metrics={"loss": 2.0 / step, "accuracy": 1 - 1 / step},
        )
        for step in range(10, 130, 10)
    ]
    metrics = events[5].metrics | {"validation_loss": 0.05, "validation_accuracy": 0.9}
    events[5] = events[5].model_copy(update={"metrics": metrics})
    text = "worker 1 was killed by signal 9; restart <1> of 3"
    note = make_event(done=None, total=None, phase="restart", message=text)
    workers = {
        "worker 0": [make_event(done=120, rate=20.0, worker=0)],
        "worker 1": [make_event(done=118, rate=20.1, worker=1)],
    }
    run_writer.attempt("train", [*events[:4], note, *events[4:]], workers)
    return run_writer


def test_the_progress_of_a_training_is_on_its_page(read_page, training):
    page = read_page(training)
    assert "data-live" in page
    assert "120 of 300" in page
    assert "41.5 steps/s" in page
    assert "<dt>Time left</dt><dd>4 s</dd>" in page
    assert page.count("<svg") == 2, "loss and accuracy, training and validation in one"
    assert page.count('class="curve validation"') == 2
    assert re.search(r"worker 0</th><td>train</td><td class=\"n\">120", page)
    assert re.search(r"worker 1</th><td>train</td><td class=\"n\">118", page)
    assert "restart &lt;1&gt; of 3" in page
    assert re.search(r"train</th><td class=\"n\">1,437</td><td class=\"n\">2<", page)
    assert "2 in quarantine:</b> not an image (2)" in page


def test_the_page_shows_what_takes_the_time_and_what_the_gpus_do(read_page, training):
    shares = StepShares(input=0.125, computing=0.8, communication=0.05, saving=0.025)
    gpu = GpuUsage(name="0", memory_bytes=30e9, memory_limit_bytes=80e9, utilization=0.97)
    full = gpu.model_copy(update={"watts": 612.4, "name": "<1>"})
    events = [make_event(done=step, shares=shares, gpus=[gpu, full]) for step in (10, 20)]
    training.attempt("train", events, {"worker 0": [events[-1]], "worker 1": [make_event(done=9)]})
    page = read_page(training)
    titles = re.findall(r"<figcaption><b>(.+?)</b>", page)
    assert titles == ["Share of time", "GPU utilization", "GPU memory (GB)", "GPU power (W)"]
    assert page.count('class="curve series-3"') == 1, "input, computing, communication, saving"
    numbers = "".join(f'<td class="n">{share} %</td>' for share in ("12.5", "5.0", "2.5"))
    used = "97 %, 30.0 of 80.0 GB"
    assert f"{numbers}<td>0: {used}; &lt;1&gt;: {used}, 612 W</td>" in page
    assert 'worker 1</th><td>train</td><td class="n">9</td>' in page


def test_the_page_of_one_task_shows_that_task_alone(read_page, training):
    page = read_page(training, task_id="train")
    assert re.findall(r'<section class="task[^"]*" id="(\w+)"', page) == ["train"]


def test_a_page_goes_on_with_what_has_come_since(read_page, training):
    read_page(training)
    events = [make_event(done=step, metrics={"loss": 0.01}) for step in range(1, 14)]
    training.attempt("train", events)
    assert "13 of 300" in read_page(training)


def test_the_steps_stay_when_the_job_goes_on_to_what_has_none(read_page, training):
    read_page(training)  # so that the next attempt is newer by the clock of the file system
    steps = [make_event(done=step, metrics={"loss": 0.01}) for step in range(280, 301)]
    training.attempt("train", [*steps, make_event(done=None, total=None, phase="candidate")])
    page = read_page(training)
    assert "300 of 300" in page
    assert "<dt>Now</dt><dd>writing the model</dd>" in page


def test_a_progress_file_with_bad_lines_is_shown_with_what_is_wrong(read_page, training):
    """F16: a metric that is not a number made the page an error 500."""
    read_page(training)  # so that the next attempt is newer by the clock of the file system
    event = make_event(done=7, metrics={"own": float("nan"), "loss": float("inf")})
    attempt = training.attempt("train", [event])
    with open(attempt.progress.local, "ab") as file:
        file.write(b'{"time": 1, "phase": "train", "metrics": {"loss": null}}\n<script>\n')
    page = read_page(training)
    assert "7 of 300" in page
    assert "progress.jsonl, byte" in page and "metrics.loss: Input should be a valid number" in page
    assert "<script>\n" not in page


def test_a_page_of_very_many_events_is_short_and_says_what_it_leaves_out(read_page, training):
    """Nothing of it grows with the training but the digits of its numbers."""
    read_page(training)  # so that the next attempt is newer by the clock of the file system
    events = [
        make_event(done=step, metrics={"loss": 90.0 if step == 1234 else step % 7})
        for step in range(1, 5001)
    ]
    many = make_event(done=5001, metrics={f"own {number}": 1.0 for number in range(300)})
    notes = [make_event(done=None, message=f"message {number}") for number in range(50)]
    training.attempt("train", [*events, many, *notes])
    page = read_page(training)
    [curve] = re.findall(r'<polyline[^>]*points="([^"]*)"[^>]*><title>training', page)[:1]
    heights = [float(pair.split(",")[1]) for pair in curve.split()]
    assert 200 <= len(heights) <= 400
    assert min(heights) < 40, "the only high loss of all is still in the curve"
    assert "steps (lowest and highest values of neighbours)" in page
    assert page.count("<svg") == 200 and "Only the first 200 curves are shown." in page
    assert page.count("<li>") == 8 and "And 42 earlier ones." in page
    assert len(page) < 1_000_000


def test_a_very_long_progress_file_is_read_in_several_requests(read_page, whole_run):
    steps = [make_event(done=step, metrics={"loss": 1 / step}) for step in (1, 300)]
    attempt = whole_run.attempt("train", steps[:1])
    filler = '{"time": 1, "phase": "train", "own": "%s"}\n' % ("x" * 200_000)
    with open(attempt.progress.local, "a") as file:
        file.writelines([filler] * 180)  # 36 MB, of which a request reads 32
        file.write(steps[1].model_dump_json() + "\n")
    first, second = read_page(whole_run, task_id="train"), read_page(whole_run, task_id="train")
    assert "300 of 300" in first, "the newest event does not wait for those before it"
    assert "data-live" in first and "this page is still reading it" in first
    assert "300 of 300" in second
    assert "data-live" not in second and "still reading" not in second


def test_a_run_over_its_error_budget_has_a_progress_page(client, training):
    """The rejected records are next to the progress of the job, and are not a worker."""
    attempt = training.attempt("preprocess", [make_event(done=5)])
    (attempt.folder / "rejected.jsonl").write(b'{"key": "a.png", "reason": "not an image"}\n')
    answer = client("viewer").get(training.address("progress", task_id="preprocess"))
    assert answer.status_code == 200
    assert '<th scope="row">rejected</th>' not in answer.text


def test_a_task_that_waits_for_a_person_says_where_the_answer_is_given(
    read_page, run_writer, set_states
):
    set_states("running", preprocess="awaiting_input")
    page = read_page(run_writer)
    assert "This task waits for a decision." in page and "waits for your decision" in page
    assert re.search(r"runs/manual__[^/]*/required_actions\" target=\"_top\"", page)


def test_what_runs_comes_first_and_what_is_done_is_folded(read_page, run_writer, set_states):
    set_states("running", preprocess="success", train="deferred")
    run_writer.dataset()
    page = read_page(run_writer)
    assert page.index('id="train"') < page.index('id="evaluate"') < page.index('id="preprocess"')
    assert "Preprocess: success 1 min 30 s, 1,795 examples, 2 in quarantine</summary>" in page
    assert ">deferred<" not in page and ">running</b>" in page
    set_states("success", preprocess="success", train="success")
    assert "</summary>" not in read_page(run_writer).partition('id="train"')[0]


@pytest.mark.parametrize(
    ("event", "now"),
    [
        ({"phase": "starting TensorFlow on 2 workers"}, "starting TensorFlow on 2 workers"),
        ({"phase": "candidate", "message": "builds it"}, "writing the model: builds it"),
        ({"phase": "restart", "message": "x" * 101}, "restart"),
    ],
)
def test_a_phase_without_a_count_is_told_in_words_and_without_a_time_left(
    read_page, training, event, now
):
    read_page(training)  # so that the next attempt is newer by the clock of the file system
    steps = [make_event(done=step, rate=2.0, eta_seconds=9.0) for step in (10, 20)]
    training.attempt("train", [*steps, make_event(done=None, total=None, **event)])
    page = read_page(training)
    assert f"<dt>Now</dt><dd>{now}</dd>" in page and "Time left" not in page
    training.attempt("train", [make_event(done=300, rate=2.0, eta_seconds=0.0)])
    assert "Time left" not in read_page(training), "no 0 s while it still works"


def test_a_validation_counts_its_batches_and_leaves_steps_and_curves(read_page, training):
    read_page(training)  # so that the next attempt is newer by the clock of the file system
    batches = {"phase": "validate", "unit": "batches", "total": 4, "rate": 1.0}
    events = [
        make_event(phase="input", done=7, total=7, unit="decoded images"),
        *(make_event(done=step, metrics={"loss": 1 / step}) for step in (10, 20, 30)),
        make_event(**batches, done=0, eta_seconds=4.0),
        make_event(**batches, done=2, eta_seconds=2.0),
    ]
    attempt = training.attempt("train", events)
    page = read_page(training)
    assert "<dt>Steps</dt><dd>30 of 300</dd>" in page
    assert "<dt>Now</dt><dd>validation: 2 of 4 batches</dd>" in page
    assert "Time left" not in page, "that of a validation is not that of the training"
    curves = TrainingCurves()
    for some in ProgressReader(attempt.progress).read_all():
        curves.add(some)
    assert [step for step, _ in curves.points["loss", "training"]] == [10, 20, 30]


def test_a_task_is_starting_until_its_job_reports(read_page, run_writer, set_states):
    set_states("running", preprocess="deferred")
    page = read_page(run_writer)
    assert page.count("<dt>Now</dt><dd>starting</dd>") == 1


def test_a_training_that_has_stopped_early_says_where_and_why(read_page, whole_run):
    why = "stopped early at epoch 20 of 40: no better validation loss for 6 epochs"
    figures = {
        "strategy": "one_device",
        "workers": 1,
        "steps": 892,
        "restarts": 0,
        "weights_digest": "0",
        "worker_weights_digests": [],
        "num_parameters": 1,
        "best_epoch": 13,
        "stopped_early": True,
        "early_stop": why,
        "history": [],
        "seconds": 1.0,
        "class_names": [],
        "image_shape": [8, 8, 1],
    }
    whole_run.artifact("train", {}, figures)
    whole_run.attempt("train", [make_event(phase="trained", done=892, total=1783)])
    page = read_page(whole_run)
    assert f"The training {why}." in page and "892 of 1,783" in page
    assert "<progress" not in page


def test_a_curve_alone_has_no_legend(read_page, training):
    read_page(training)  # so that the next attempt is newer by the clock of the file system
    rates = [make_event(done=step, metrics={"examples_per_second": 4.0}) for step in (10, 20)]
    training.attempt("train", rates)
    [caption] = re.findall(r"<figcaption>(.*?)</figcaption>", read_page(training))
    assert caption == "<b>Examples per second</b>"


def test_a_finished_run_is_not_asked_for_again(read_page, whole_run):
    later = make_event(done=None, total=None, phase="candidate")
    whole_run.attempt("train", [make_event(done=300), later])
    page = read_page(whole_run)
    assert "data-live" not in page
    assert "300 of 300" in page and "candidate" not in page


def test_a_phone_can_open_the_page_alone(read_page, whole_run):
    page = read_page(whole_run)
    assert re.search(
        r"<a href=\"progress\?run_id=manual__[^\"]*\" target=\"_top\">Open alone", page
    )
