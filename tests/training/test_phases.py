"""Phases of a training that last longer than a step may: slow is not dead, and a hang is found.

Two workers of a real gang. A step may take a second here.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest
from gangs import QUICK, read_state, run_gang
from launch.running import starting
from manifests import list_counted

from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.launch.gang import StopRequest
from pipeline_ops.storage.open_store import open_path

pytestmark = pytest.mark.training
STEPS_PER_EPOCH = 22
OPTIONS = QUICK | {
    "train__workers": 2,
    "train__epochs": 2,
    "train__checkpoint_every_steps": 1000,
    "train__step_timeout_seconds": 1,
    "train__steps_per_call": 1,
    "train__max_restarts": 1,
    "train__micro_batches": 8,  # and so more batches of the validation
    "train__model": "slow_phases:build",
}


@pytest.fixture
def make_slow_job(make_job, tmp_path):
    def make(seconds: float = 0.0, trouble=None, **options):
        parameters = {"seconds": seconds, "folder": str(tmp_path), "trouble": trouble}
        return make_job("slow", **OPTIONS | {"train__model_parameters": parameters} | options)

    return make


def read_events(job, name: str = "worker 0"):
    return ProgressReader(open_path(job.attempt.worker_progress(name))).read_new()


def read_steps(job, phase: str) -> list[int]:
    return [event.done for event in read_events(job) if event.phase == phase]


def test_a_slow_validation_is_alive_while_it_advances(make_slow_job, host_pool):
    """It lasts more than five times as long as a step may, and as a phase may be silent."""
    job = make_slow_job(4.0, train__phase_timeout_seconds=12)
    began, gang = time.monotonic(), run_gang(job, host_pool)
    assert gang.restarts == 0 and len(read_state(job).history) == 2
    validations = [event for event in read_events(job) if event.phase == "validate"]
    assert validations[0].done == 0 and validations[0].total > 1
    assert {0, 1} <= {event.done for event in validations}
    assert time.monotonic() - began > 2 * 4.0 * validations[0].total


@pytest.mark.parametrize(
    "hook",
    [
        "on_train_begin",
        "on_epoch_begin",
        "on_train_batch_begin",
        "on_train_batch_end",
        "on_test_begin",
        "on_test_end",
        "on_epoch_end",
        "on_train_end",
    ],
)
def test_a_slow_callback_is_no_slow_step(make_slow_job, host_pool, hook):
    """Also not of the worker that waits for it."""
    callback = {"slow_phases:SlowCallback": {"hook": hook, "seconds": 6.0}}
    job = make_slow_job(train__callbacks=[callback], train__epochs=1)
    assert run_gang(job, host_pool).restarts == 0
    assert len(read_state(job).history) == 1


def test_a_callback_that_holds_the_interpreters_lock_is_alive(make_slow_job, host_pool):
    """It does so for more than twice as long as a process may be stopped."""
    callback = {"slow_phases:GreedyCallback": {"seconds": 8.0}}
    job = make_slow_job(
        train__callbacks=[callback], train__epochs=1, train__heartbeat_timeout_seconds=3
    )
    assert run_gang(job, host_pool).restarts == 0


@contextlib.contextmanager
def stopping_as_it_joins(job, name: str, seconds: float | None = None):
    """Stops a worker with SIGSTOP as soon as it joins the gang, for so many seconds."""

    def stop() -> None:
        process = None
        while not process:
            with contextlib.suppress(AssertionError):
                process = find_worker(job, name)
        progress = job.attempt.worker_progress(name)
        while not (progress.exists() and progress.stat().st_size):
            time.sleep(0.001)
        process.suspend()
        if seconds is not None:
            time.sleep(seconds)
            process.resume()

    thread = threading.Thread(target=stop)
    thread.start()
    yield
    thread.join()


def test_a_gang_that_is_slow_in_every_phase_succeeds_without_a_restart(
    make_slow_job, host_pool, tmp_path
):
    """Each lasts more than five times as long as a step may."""
    trouble = {"slow_in": ["building", "classes", "decoding", "tracing"]}
    job = make_slow_job(
        6.0,
        trouble,
        train__epochs=1,
        train__phase_timeout_seconds=12,
        train__input__cache="disk",
        train__input__repeat_threshold=0.5,
        train__input__local_folder=str(tmp_path / "cache"),
    )
    with stopping_as_it_joins(job, "worker 1", 6.0):
        assert run_gang(job, host_pool).restarts == 0
    by_worker = [read_events(job, f"worker {worker}") for worker in range(2)]
    for phase in ("joining", "model", "input", "tracing"):
        lasted = [
            after.time - event.time
            for events in by_worker
            for event, after in itertools.pairwise(events)
            if event.phase == phase
        ]
        assert max(lasted) > 5, phase


@pytest.fixture(scope="module")
def large_dataset(dataset, tmp_path_factory) -> str:
    """A data set that is not held in memory, so that its records are found by offsets."""
    import tensorflow as tf

    manifest, folder = read_manifest(dataset), tmp_path_factory.mktemp("large") / "dataset"
    shutil.copytree(Path(dataset).parent, folder)
    padding = tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(400_000)]))
    for shard in folder.glob("train-*.tfrecord"):
        records = [*tf.data.TFRecordDataset([str(shard)]).as_numpy_iterator()]
        with tf.io.TFRecordWriter(str(shard)) as writer:
            for record in records:
                example = tf.train.Example.FromString(record)
                example.features.feature["padding"].CopyFrom(padding)
                writer.write(example.SerializeToString())
    counts = {file.path: file.num_examples for file in manifest.files}
    write_manifest(folder, manifest.model_copy(update={"files": list_counted(folder, counts)}))
    return str(folder / "manifest.json")


def test_a_slow_and_then_hung_scan_of_offsets_is_found_and_keeps_what_is_scanned(
    large_dataset, make_job_in, host_pool, tmp_path
):
    (tmp_path / "hang").touch()
    trouble = {"slow_in": ["offsets"], "hang_in": "offsets", "after": 2}
    parameters = {"seconds": 6.0, "folder": str(tmp_path), "trouble": trouble}
    job, messages, kept = (
        make_job_in(tmp_path, large_dataset)(
            "slow",
            **OPTIONS
            | {
                "train__model_parameters": parameters,
                "train__epochs": 1,
                "train__step_timeout_seconds": 5,
                "train__phase_timeout_seconds": 12,
                "train__input__cache": "none",
                "train__input__local_folder": str(tmp_path / "cache"),
            },
        ),
        [],
        [],
    )

    def list_scanned():
        files = (tmp_path / "cache").rglob("offsets.npz")
        return {(file, file.stat().st_ino) for file in files if ".staging" not in str(file)}

    def watch(event):
        if event.phase == "restart":
            (tmp_path / "hang").unlink()
            messages.append(event.message)
            kept.extend(list_scanned())

    assert run_gang(job, host_pool, watch).restarts == 1
    [message] = messages
    assert message.startswith(tuple((tmp_path / "hangs").read_text().splitlines()))
    assert "for 12 s in the phase input (train.phase_timeout_seconds is 12), after " in message
    assert " of 4 scanned shards" in message
    assert kept and set(kept) < list_scanned() and len(list_scanned()) == 4


def test_a_step_has_a_limit_of_its_own(make_slow_job, host_pool):
    limits = {"train__phase_timeout_seconds": 7, "train__step_timeout_seconds": 20}
    job = make_slow_job(9.0, {"slow_in": ["step"]}, train__epochs=1, **limits)
    assert run_gang(job, host_pool).restarts == 0
    assert len(read_state(job).history) == 1


@pytest.mark.parametrize(
    ("place", "kind", "phase", "rule"),
    [
        ("joining", "stop", "joining", "heartbeat_timeout_seconds is 4"),
        ("building", "loop", "model", "phase_timeout_seconds is 7"),
        ("building", "stop", "model", "heartbeat_timeout_seconds is 4"),
        ("classes", "loop", "input", "phase_timeout_seconds is 7), after "),
        ("decoding", "loop", "input", "phase_timeout_seconds is 7), after "),
        ("decoding", "stop", "input", "heartbeat_timeout_seconds is 4"),
        ("tracing", "loop", "tracing", "phase_timeout_seconds is 7"),
        ("step", "loop", "train", "step_timeout_seconds is 2"),
        ("step", "stop", "train", "heartbeat_timeout_seconds is 4"),
        ("callback", "loop", "callbacks", "phase_timeout_seconds is 7"),
        ("callback", "collective", "callbacks", "phase_timeout_seconds is 7"),
        ("saving", "loop", "saving", "phase_timeout_seconds is 7"),
    ],
)
def test_a_worker_that_hangs_is_found_and_named_with_its_phase(
    make_slow_job, host_pool, tmp_path, place, kind, phase, rule
):
    """And the gang goes on after one restart."""
    (tmp_path / "hang").touch()
    worker = {"classes": None, "decoding": None, "saving": 0}.get(place, 1)
    trouble = {"hang_in": place, "kind": kind, "worker": worker}
    trouble["after"] = 400 if place == "decoding" else 0  # two of four shards are decoded
    callback = {"slow_phases:StuckCallback": trouble | {"hook": "on_epoch_begin"}}
    callback["slow_phases:StuckCallback"]["folder"] = str(tmp_path)
    job, messages, kept = (
        make_slow_job(
            0.0,
            trouble,
            train__callbacks=[callback] if place == "callback" else [],
            train__epochs=1,
            train__checkpoint_every_steps=8,
            train__step_timeout_seconds=60 if kind == "stop" else 2,
            train__phase_timeout_seconds=60 if kind == "stop" or place == "step" else 7,
            train__heartbeat_timeout_seconds=4 if kind == "stop" else 60,
            train__input__cache="disk",
            train__input__repeat_threshold=0.5,
            train__input__local_folder=str(tmp_path / "cache"),
        ),
        [],
        [],
    )

    def list_decoded():
        files = (tmp_path / "cache").rglob("features.tfrecord")
        return {(file, file.stat().st_ino) for file in files if ".staging" not in str(file)}

    def watch(event):
        if event.phase == "restart":
            (tmp_path / "hang").unlink()
            messages.append(event.message)
            kept.extend(list_decoded())

    with contextlib.ExitStack() as stack:
        if place == "joining":
            (tmp_path / "hangs").write_text("worker 1")
            stack.enter_context(stopping_as_it_joins(job, "worker 1"))
        assert run_gang(job, host_pool, watch).restarts == 1
    [message] = messages
    assert len(list_decoded()) == 4 and list_decoded() > set(kept[:3])
    assert len(kept) == {"decoding": 2, "joining": 0, "building": 0, "classes": 0}.get(place, 4)
    assert f" s in the phase {phase} (train.{rule}" in message
    named = (tmp_path / "hangs").read_text().splitlines()
    # Where all wait for each other, in a step and while variables are created, others look alike.
    assert message.startswith(tuple(named)) or (
        (place, kind) in [("step", "loop"), ("building", "loop")]
        and f"its peers in this phase: {named[0]} on localhost" in message
    )
    assert len(read_state(job).history) == 1


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("loop", "phase_timeout_seconds is 12"), ("stop", "heartbeat_timeout_seconds is 4")],
)
def test_a_process_that_hangs_where_it_writes_the_candidate_is_replaced(
    make_job_in, dataset, host_pool, tmp_path, kind, rule
):
    """The next one is slow, and succeeds. The gang trains nothing again."""
    (tmp_path / "hang").touch()
    trouble = {"slow_in": ["candidate"], "hang_in": "candidate", "kind": kind}
    parameters = {"seconds": 6.0, "folder": str(tmp_path), "trouble": trouble}
    options = OPTIONS | {"train__epochs": 1, "train__phase_timeout_seconds": 12}
    options |= {"train__model_parameters": parameters}
    options |= {"train__heartbeat_timeout_seconds": 4 if kind == "stop" else 60}
    with starting(make_job_in, dataset, tmp_path / "jobs", {"launcher": "local"}) as start:
        job = start(**options)
        restart = job.wait_for(lambda event: event.phase == "restart").message
        (tmp_path / "hang").unlink()
        assert job.end() == ExitCode.SUCCESS, job.message()
        assert job.figures().restarts == 0
    assert restart.startswith("the process that writes the candidate on localhost has reported no")
    assert f" s in the phase candidate (train.{rule})" in restart


def test_a_slow_disk_makes_no_slow_step(make_slow_job, host_pool):
    """The first checkpoint is still being written when the next one is due."""
    trouble = {"slow_in": ["saving"]}
    job = make_slow_job(6.0, trouble, train__epochs=1, train__checkpoint_every_steps=8)
    assert run_gang(job, host_pool).restarts == 0
    phases = [event.phase for event in read_events(job)]
    saved = phases.index("saving")
    assert "train" in phases[:saved]
    assert phases[saved + 1] == "train", "the clock of a step begins anew"


def test_a_hang_in_a_validation_is_found_and_costs_the_validation_alone(
    make_slow_job, host_pool, tmp_path
):
    (tmp_path / "hang").touch()
    job, messages = make_slow_job(train__phase_timeout_seconds=10), []

    def watch(event):
        if event.phase == "restart":
            (tmp_path / "hang").unlink()
            messages.append(event.message)

    assert run_gang(job, host_pool, watch).restarts == 1
    [message] = messages
    assert "has reported no progress for 10 s in the phase validate (train.phase_timeout" in message
    assert read_steps(job, "restored") == [STEPS_PER_EPOCH]
    assert len(read_state(job).history) == 2


def test_a_detectors_validation_that_is_killed_costs_the_validation_alone(
    scenes, make_job_in, tmp_path, host_pool
):
    """SIGKILL to the second worker after the first batch of the first validation."""
    from scenes import DIGIT_SCENES

    job = make_job_in(tmp_path, scenes, DIGIT_SCENES)(
        "killed",
        **QUICK
        | {
            "train__workers": 2,
            "train__epochs": 2,
            "train__checkpoint_every_steps": 1000,
            "train__micro_batches": 4,
            "train__model": "center_detector",
            "train__model_parameters": {"width": 8},
        },
    )
    killed = []

    def watch(event):
        if event.phase == "validate" and not killed:
            killed.append(find_worker(job, "worker 1"))
            killed[0].kill()

    assert run_gang(job, host_pool, watch).restarts == 1
    [steps] = {epoch.step for epoch in read_state(job).history[:1]}
    assert read_steps(job, "restored") == [steps]
    assert [epoch.step for epoch in read_state(job).history] == [steps, 2 * steps]


def find_worker(job, name: str) -> psutil.Process:
    """The process that writes a worker's log."""
    log = job.attempt.worker_log(name).resolve()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if Path(f"/proc/{process.pid}/fd/1").resolve() == log:
                return process
    raise AssertionError(f"{name} does not run")


def test_a_stop_during_a_validation_leaves_at_once_with_the_epoch_saved(
    make_slow_job, host_pool, tmp_path
):
    """SIGTERM to the job. All workers are in their first batch, and leave after it."""
    job, stop, asked = make_slow_job(2.0), StopRequest(), []

    def watch(event):
        if event.phase == "validate" and not asked:
            stop.is_requested = True
            asked.append(time.monotonic())

    with pytest.raises(MachineError, match="stopped by SIGTERM"):
        run_gang(job, host_pool, watch, stop=stop)
    assert time.monotonic() - asked[0] < 10
    assert read_steps(job, "preempted") == [STEPS_PER_EPOCH]
    assert run_gang(make_slow_job(2.0), host_pool).restarts == 0
    assert read_steps(job, "restored") == [STEPS_PER_EPOCH]
