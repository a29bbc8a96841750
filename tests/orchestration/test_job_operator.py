"""The policy of the operators, with a real train job."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from config_files import DIGITS, write_config
from launch.running import config_with_hosts
from manifests import make_manifest
from processes import Stopwatch, wait_until
from task_contexts import Store, make_context
from upstream_artifacts import copy_artifacts

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.cancellation import STORE_KEY, request_cancellation
from pipeline_ops.contract.layout import Layout, find_checkpoint_step
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.request import read_status
from pipeline_ops.contract.results import (
    EvaluationFigures,
    ModelEvaluation,
    RuleVerdict,
    TrainingFigures,
)
from pipeline_ops.contract.task_record import read_record
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.job.model_check import check_training, plan_training
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.tasks import ExportOperator, PreprocessOperator, TrainOperator
from pipeline_ops.orchestration.trigger import JobTrigger
from pipeline_ops.orchestration.ui.progress import TrainingCurves
from pipeline_ops.places.local import read_identity
from pipeline_ops.places.place import build_job_environment
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.system.processes import JOB_PYTHON, find_group_members

NETS = """
from keras import Input, Sequential, layers

def several_labels(shape, classes):
    return Sequential([Input(shape), layers.Flatten(), layers.Dense(classes, "sigmoid")])
"""


class Run:
    """One task of one run, over several tries."""

    def __init__(
        self, root, manifests, base: Path = DIGITS, author: Mapping[str, Any] | None = None, **conf
    ):
        quick = {
            "storage.root": str(root),
            "train.epochs": 4,
            "train.checkpoint_every_steps": 5,
            "train.early_stopping": None,
        }
        folder = base.parent if base != DIGITS else root / "configs"
        self.config = write_config(folder, quick | dict(author or {}), base)
        self.conf = conf
        self.layout = Layout(open_root(root), "digits")
        self.store, self._manifests = Store(), copy_artifacts(self.layout, "manual__1", manifests)

    def context(self) -> dict:
        return make_context(self._manifests, conf=self.conf, store=self.store, id=uuid.uuid4())

    def execute(self, defer_after_seconds: float = 240) -> str:
        """Executes the task. The test has no triggerer, so the task waits long before it defers."""
        self.operator = TrainOperator(config_file=str(self.config))
        self.operator.defer_after_seconds = defer_after_seconds
        return self.operator.execute(self.context())

    def start(self) -> JobHandle:
        """Starts the job and leaves it running, as a task does that defers at once."""
        with pytest.raises(TaskDeferred) as deferred:
            self.execute(defer_after_seconds=0)
        self.trigger = deferred.value.trigger
        return self.handle

    @property
    def handle(self) -> JobHandle:
        """The handle of the claimed job."""
        name = self.store[STORE_KEY]["attempt"]
        return JobHandle(self.layout.attempt("manual__1", "train", name))

    def record(self):
        return read_record(self.layout.task_record("manual__1", "train"))


@pytest.fixture
def run(dataset, tmp_path):
    runs = []

    def make(**conf) -> Run:
        runs.append(Run(tmp_path, {"preprocess": dataset}, **conf))
        return runs[-1]

    yield make
    for made in runs:
        if STORE_KEY in made.store:
            made.handle.end("the test is over")


def list_group(handle: JobHandle) -> list:
    return find_group_members(read_identity(handle.attempt.process).pid)


def wait_for_workers(handle: JobHandle, count: int) -> None:
    wait_until(lambda: len(list_group(handle)) >= count, 120)


def test_data_that_fill_no_batch_fail_the_task_before_it_starts_a_job(run):
    made = run(**{"train.global_batch_size": 100_000})
    problem = r"the train split of .* has \d+ examples, fewer than one global batch \(100000\)"
    with pytest.raises(AirflowFailException, match=problem):
        made.execute()
    assert STORE_KEY not in made.store and made.record().exit_code == ExitCode.DATA


def test_a_wrong_model_is_told_as_by_the_first_task_and_before_shards_are_read(run, tmp_path):
    """That task does not check it if the data set is there already."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "nets.py").write_text(NETS)
    made = run(author={"train.model": "nets:several_labels"})
    for shard in made.layout.artifacts("preprocess").local.glob("*/*.tfrecord"):
        shard.unlink()
    training = plan_training(load_config(made.config), sys.executable)
    with pytest.raises(ConfigError, match="nets:several_labels ends in sigmoid") as expected:
        check_training(training, "classification", (16, 16, 1), 10)
    with pytest.raises(AirflowFailException) as told:
        made.execute()
    assert str(told.value) == f"train: CONFIG: {expected.value}"


STOPS = """
from keras.callbacks import Callback

class Stops(Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 2:
            return logs["lose"]
"""


def test_a_failed_job_leaves_the_authors_line_the_cure_and_its_checkpoint(run, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "stops.py").write_text(STOPS)
    made = run(author={"train.callbacks": ["stops:Stops"]})
    with pytest.raises(AirflowFailException, match="Correct it, then retry.$"):
        made.execute()
    record = made.record()
    assert record.cure == "Correct it, then retry."
    where = record.location
    assert (where.file, where.line, where.function) == ("stops.py", 7, "on_epoch_end")
    assert where.source[where.line - where.first_line] == '            return logs["lose"]'
    assert len(where.source) == 4 and where.first_line == 4, "the file has 7 lines"
    problem = record.hide_folders(record.problem, str(tmp_path))
    assert problem.endswith("raised KeyError in on_epoch_end: 'lose' (stops.py:7)")
    assert str(tmp_path) not in problem
    assert find_checkpoint_step(open_path(record.artifact)) >= 5


def test_a_training_says_that_it_starts_and_why_it_has_stopped_early(run):
    rule = {"monitor": "validation_loss", "patience_epochs": 1, "min_delta": 100.0}
    made = run(author={"train.early_stopping": rule})
    manifest = read_manifest(open_path(made.execute()))
    figures = TrainingFigures.model_validate(manifest.figures)
    reason = "no better validation loss for 1 epoch"
    assert figures.early_stop == f"stopped early at epoch 2 of 4: {reason}"
    events = ProgressReader(made.handle.attempt.progress).read_new()
    phases = [event.phase for event in events]
    assert "starting TensorFlow on 2 workers" in phases
    assert phases.index("starting TensorFlow on 2 workers") < phases.index("joining")
    curves = TrainingCurves()
    curves.add(events)
    ends = {epoch.step for epoch in figures.history}
    validated = [step for step, _ in curves.points["loss", "validation"]]
    assert set(validated) == ends, "a validation leaves the curves as they are"
    assert min(step for step, _ in curves.points["loss", "training"]) < min(ends)


def test_a_job_runs_once_and_an_unchanged_second_run_starts_nothing(run):
    first, second = run(), run()
    manifest = first.execute()
    assert first.record().state == "success"
    assert not first.record().cached
    assert first.record().reason == "never made before"
    assert second.execute() == manifest
    assert second.record().cached
    assert second.record().reason.startswith("unchanged")
    assert STORE_KEY not in second.store


@pytest.mark.airflow
def test_a_changed_learning_rate_is_named_as_the_reason(run):
    run().execute()
    changed = run(**{"train.optimizer.learning_rate": 0.002})
    changed.start()
    assert changed.handle.reason == "config optimizer.learning_rate: 0.001 -> 0.002"


@pytest.mark.airflow
def test_a_killed_job_is_retried_and_goes_on_from_its_checkpoint(run, tmp_path, monkeypatch):
    (tmp_path / "hold").touch()
    monkeypatch.setenv("TRAINYARD_TEST_HOLD", str(tmp_path))
    config = config_with_hosts(tmp_path / "configs", {"launcher": "local"})
    task = run(base=config, author={"train.callbacks": ["holding:Hold"]})
    handle = task.start()
    wait_until((tmp_path / "held").exists, 120)
    os.kill(read_identity(handle.attempt.process).pid, signal.SIGKILL)
    [event] = asyncio.run(collect_events(task.trigger))
    message = r"was killed or its host went down\.\nThe end of its output:\n(.*\n)+See .*job\.log\."
    with pytest.raises(AirflowException, match=message):
        task.operator.resume(task.context(), event.payload)
    assert list_group(handle) == []
    assert task.record().exit_code == ExitCode.RETRY
    assert task.record().cure == f"See {handle.attempt.log}."
    assert read_manifest(task.execute()).job == "train"
    assert task.handle != handle
    events = ProgressReader(task.handle.attempt.worker_progress("worker 0")).read_new()
    [restored] = [event for event in events if event.phase == "restored"]
    # Of 22 steps. The newest checkpoint may have been in the making.
    assert restored.done in (20, 22)


async def collect_events(trigger: JobTrigger) -> list:
    return [event async for event in trigger.run()]


@pytest.mark.faults
def test_a_second_try_follows_the_process_that_still_runs(run):
    task = run()
    handle = task.start()
    assert read_manifest(task.execute()).job == "train"
    assert task.handle.attempt == handle.attempt


@pytest.mark.parametrize("who", ["operator", "trigger"])
def test_marking_the_task_failed_leaves_no_process_within_five_seconds(run, who):
    task = run(**{"train.epochs": 5000})
    handle = task.start()
    wait_for_workers(handle, 5)
    watch = Stopwatch()
    task.operator.on_kill() if who == "operator" else asyncio.run(task.trigger.on_kill())
    assert list_group(handle) == []
    assert watch.seconds < 5


@pytest.mark.faults
def test_a_job_that_is_told_to_end_ends_with_all_its_processes_though_nobody_signals_it(run):
    task = run(**{"train.epochs": 5000})
    handle = task.start()
    wait_for_workers(handle, 5)
    request_cancellation(handle.attempt, "the test cancels it")
    wait_until(lambda: list_group(handle) == [], 120)


def test_a_restart_of_the_triggerer_does_not_touch_the_job(run):
    task = run()
    handle = task.start()
    path, arguments = task.trigger.serialize()
    asyncio.run(task.trigger.cleanup())
    assert path == "pipeline_ops.orchestration.trigger.JobTrigger"
    [event] = asyncio.run(collect_events(JobTrigger(**arguments)))
    assert task.operator.resume(task.context(), event.payload).endswith("manifest.json")
    assert task.handle.attempt == handle.attempt


def test_an_unknown_key_from_the_rest_api_is_refused_before_any_work(run):
    task = run(**{"train.epoch": 3})
    message = "conf train.epoch: unknown key; the nearest valid name is 'train.epochs'"
    with pytest.raises(AirflowFailException, match=message):
        task.execute()
    assert task.store == {}


def test_an_earlier_task_that_was_marked_a_success_by_hand_is_named(tmp_path):
    task = Run(tmp_path, {"preprocess": None})
    message = "preprocess has left no manifest, so it was marked a success before it had ended. "
    with pytest.raises(AirflowFailException, match=f"{message}Clear preprocess"):
        task.execute()
    assert task.record().exit_code == ExitCode.DATA
    assert task.store == {}


@pytest.mark.parametrize("key", ["train.runs_on", "evaluate.runs_on"])
def test_who_may_start_a_run_may_not_choose_the_program_that_it_starts(run, key):
    task = run(**{key: "other"})
    message = f"conf {key}: cannot be overridden for a single run: it selects a program"
    with pytest.raises(AirflowFailException, match=message):
        task.execute()
    assert task.store == {}


@pytest.mark.faults
def test_a_job_that_is_not_done_in_time_ends_itself_with_all_its_processes(run):
    task = run(author={"train.timeout_seconds": 8}, **{"train.epochs": 5000})
    handle = task.start()
    # A machine so busy that there are no workers before the time is up has the others to end.
    wait_for_workers(handle, 3)
    group = read_identity(handle.attempt.process).pid
    [event] = asyncio.run(collect_events(task.trigger))
    assert event.payload == {"attempt": handle.attempt.folder.name}
    assert read_status(handle.attempt).message == "not done after timeout_seconds (8)"
    wait_until(lambda: find_group_members(group) == [], 120)
    assert not list(task.layout.artifacts("train").local.glob("[!.]*"))


@pytest.mark.faults
def test_a_damaged_artifact_is_made_again(run):
    task = run()
    manifest = task.execute()
    weights = Path(manifest).with_name("weights.npz")
    weights.unlink()
    again = run()
    assert again.execute() == manifest
    assert again.record().reason == f"the artifact was damaged: {weights} is missing"
    assert weights.exists()


def test_a_storage_root_that_can_not_be_made_is_named_although_no_record_can_be_written(tmp_path):
    (tmp_path / "root").touch()
    changes = {"storage.root": "root", "preprocess.source.path": str(tmp_path)}
    operator = PreprocessOperator(config_file=str(write_config(tmp_path, changes)))
    problem = f"cannot write {tmp_path / 'root'}: file exists. Remove the file of that name"
    with pytest.raises(AirflowException, match=f"preprocess: RETRY: {problem}"):
        operator.execute(make_context({}))


def test_a_model_that_has_not_passed_the_gate_is_not_exported_and_that_is_no_failure(tmp_path):
    challenger = ModelEvaluation(metrics={}, classes=[], confusion=[])
    rule = RuleVerdict(metric="accuracy", passed=False, text="accuracy 0.5 is below 0.9")
    evaluation = EvaluationFigures(
        num_examples=1,
        challenger=challenger,
        champion=None,
        champion_version=None,
        gate_passed=False,
        rules=[rule],
    )
    manifests = {}
    for job, figures in (("train", {}), ("evaluate", evaluation.model_dump())):
        (tmp_path / job).mkdir()
        write_manifest(tmp_path / job, make_manifest(job, figures=figures))
        manifests[job] = str(tmp_path / job / "manifest.json")
    task, reason = Run(tmp_path, manifests), "trained, not published: accuracy 0.5 is below 0.9"
    with pytest.raises(AirflowSkipException, match=reason):
        ExportOperator(config_file=str(task.config)).execute(task.context())
    assert read_record(task.layout.task_record("manual__1", "export")).state == "skipped"


def test_a_job_does_not_inherit_airflows_secrets():
    environment = {
        "PATH": "/bin",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "y",
        "AIRFLOW_CONN_AWS": "z",
    }
    assert build_job_environment(environment) == {"PATH": "/bin"} | JOB_PYTHON
