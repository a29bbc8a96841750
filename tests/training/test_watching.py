"""Divergence, the user's own callbacks, TensorBoard and the debugging switches, in real gangs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from pipeline_ops.artifacts.dataset import KEY, LABEL
from pipeline_ops.artifacts.manifest import list_files, read_manifest, write_manifest
from pipeline_ops.artifacts.results import DIVERGED, TENSORBOARD
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.jobs.gang_protocol import STATE, TRAINED
from pipeline_ops.jobs.progress import ProgressReader
from pipeline_ops.launch.gang import Gang
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.launch.local import LocalLauncher
from pipeline_ops.training.checkpointing.state import TrainingState, read_arrays

BROKEN_KEY = "120"
QUICK = {
    "train__epochs": 2,
    "train__checkpoint_every_steps": 8,
    "train__steps_per_call": 5,
    "train__early_stopping": None,
    "train__tensorboard__graph": False,
}
ALONE = {"train__strategy": "one_device", "train__workers": 1}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Its processes find the modules beside this file, as a user's package would be found; so does
    whoever plans a job here."""
    folder = str(Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        )
        fleet = HostPool(LocalLauncher(), "watching", tmp_path_factory.mktemp("host"))
        yield fleet
        fleet.close()


def train(job, fleet, **options) -> TrainingState:
    """The state that a training ends with."""
    gang = Gang(
        Train.model_validate(job.request.config),
        job.attempt,
        job.work,
        fleet,
        job.progress.forward,
        **options,
    )
    job.work.mkdir(parents=True, exist_ok=True)
    gang.run()
    return TrainingState.model_validate(json.loads((job.work / STATE).read_text()))


def messages(job, phase: str) -> list[str]:
    return [
        moment.message
        for moment in ProgressReader(job.attempt.progress).new()
        if moment.phase == phase
    ]


@pytest.fixture(scope="session")
def broken_dataset(dataset, tmp_path_factory) -> str:
    """One training example has a label that makes the loss of its batch no number."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("broken") / "dataset"
    shutil.copytree(Path(dataset).parent, folder)
    counts = {file.path: file.num_examples for file in read_manifest(dataset).files}
    shard = folder / "train-00000-of-00004.tfrecord"
    records = [
        tf.train.Example.FromString(record)
        for record in tf.data.TFRecordDataset([str(shard)]).as_numpy_iterator()
    ]
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for example in records:
            if example.features.feature[KEY].bytes_list.value[0] == BROKEN_KEY.encode():
                example.features.feature[LABEL].int64_list.value[0] = 77
            writer.write(example.SerializeToString(deterministic=True))
    manifest = read_manifest(dataset)
    write_manifest(folder, manifest.model_copy(update={"files": list_files(folder, counts)}))
    return str(folder / "manifest.json")


@pytest.fixture
def make_broken(broken_dataset, make_job_in, tmp_path, fleet):
    make = make_job_in(tmp_path, broken_dataset)
    return lambda name, **more: make(name, **QUICK, train__loss="own_watchers:loss", **more)


def test_a_batch_that_diverges_is_found_left_out_and_kept(make_broken, fleet):
    """By any number of workers at the same step, once in each epoch, and a kill in the middle of it
    changes nothing."""
    skip = {"train__on_divergence__action": "skip_batch"}
    alone = make_broken("alone", **ALONE, **skip)
    state = train(alone, fleet)
    assert [d.is_skipped for d in state.divergences] == [True, True]
    assert all(np.isfinite(list(epoch.metrics.values())).all() for epoch in state.history)
    for diverged in state.divergences:
        kept = json.loads((alone.work / DIVERGED / f"step-{diverged.step:09d}.json").read_text())
        assert BROKEN_KEY in kept["keys"]
        assert (len(kept["keys"]), kept["step"], kept["loss"]) == (32, diverged.step, "nan")
        assert (
            alone.work / DIVERGED / f"step-{diverged.step:09d}.tfrecord"
        ).stat().st_size > 32 * 100
    assert len(state.warnings) == 2
    assert "it was left out" in state.warnings[0]
    assert len(messages(alone, "diverged")) == 4  # it is looked for, and found, twice

    together = make_broken("together", train__workers=2, **skip)
    other = train(together, fleet)
    assert [d.step for d in other.divergences] == [d.step for d in state.divergences]
    same = zip(read_arrays(alone.work / TRAINED), read_arrays(together.work / TRAINED), strict=True)
    assert max(float(np.abs(a - b).max()) for a, b in same) <= 1e-5


@pytest.mark.slow
def test_a_worker_that_is_killed_while_the_batch_is_looked_for_changes_nothing(make_broken, fleet):
    skip = {"train__on_divergence__action": "skip_batch"}
    calm = make_broken("calm", **ALONE, **skip | {"train__seed": 5})
    steps = [d.step for d in train(calm, fleet).divergences]
    killed = make_broken("killed", train__workers=2, **skip | {"train__seed": 5})
    done = []

    def kill_at_the_first(moment):
        killed.progress.forward(moment)
        if moment.phase == "diverged" and not done:
            done.append(moment)
            os.kill(next(pid for pid in _workers(killed)), signal.SIGKILL)

    gang = Gang(
        Train.model_validate(killed.request.config),
        killed.attempt,
        killed.work,
        fleet,
        kill_at_the_first,
    )
    killed.work.mkdir(parents=True)
    gang.run()
    state = TrainingState.model_validate(json.loads((killed.work / STATE).read_text()))
    assert [d.step for d in state.divergences] == steps
    same = zip(read_arrays(calm.work / TRAINED), read_arrays(killed.work / TRAINED), strict=True)
    assert max(float(np.abs(a - b).max()) for a, b in same) <= 1e-5


def _workers(job) -> list[int]:
    """Pids of processes that write to a worker's log of this job."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "fd" / "1").startswith(
                str(job.attempt.folder / "worker")
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_without_an_action_it_stops_and_says_where_the_batch_is(make_broken, fleet):
    job = make_broken("stop", **ALONE)
    with pytest.raises(
        ConfigError, match=r"diverged at step \d+ \(loss nan.*its batch is in .*step-\d+.tfrecord"
    ) as error:
        train(job, fleet)
    assert "train.on_divergence" in str(error.value)
    [kept] = (job.work / DIVERGED).glob("*.json")
    assert BROKEN_KEY in json.loads(kept.read_text())["keys"]


def test_a_budget_ends_it(make_broken, fleet):
    job = make_broken(
        "budget",
        **ALONE,
        train__on_divergence__action="skip_batch",
        train__on_divergence__max_times=1,
    )
    with pytest.raises(
        ConfigError, match=r"once more than train.on_divergence.max_times \(1\) allows"
    ):
        train(job, fleet)


def test_a_loss_that_explodes_lowers_the_learning_rate_until_it_does_not(make_job, fleet):
    job = make_job(
        "rate",
        **QUICK,
        **ALONE,
        train__optimizer={"name": "sgd", "learning_rate": 10.0, "momentum": 0.9},
        train__on_divergence={
            "action": "lower_learning_rate",
            "factor": 0.05,
            "max_times": 5,
            "max_loss": 50.0,
        },
    )
    state = train(job, fleet)
    assert 1 <= len(state.divergences) <= 5
    assert state.learning_rate == pytest.approx(10 * 0.05 ** len(state.divergences))
    assert all(epoch.metrics["loss"] < 50 for epoch in state.history)


@pytest.mark.parametrize(
    "config", [{"action": "lower_learning_rate"}, {"action": "skip_batch", "factor": 0.1}]
)
def test_a_factor_without_the_action_that_needs_it_is_refused_and_the_other_way_round(
    make_job, config
):
    with pytest.raises(ConfigError, match="on_divergence"):
        make_job("refused", train__on_divergence=config)


def test_own_callbacks_change_the_training_alike_on_all_workers_and_remember_across_restarts(
    make_job, fleet
):
    callbacks = [f"own_watchers:{name}" for name in ("HalveTwice", "Diary", "after_each_epoch")]
    job = make_job(
        "callbacks", **QUICK | {"train__epochs": 9}, train__callbacks=callbacks, train__workers=2
    )
    train(
        job, fleet, steps_limit=40
    )  # stops in the second epoch; the next gang goes on from a checkpoint
    state = train(job, fleet)
    assert len(state.history) == 4
    assert state.learning_rate == pytest.approx(1e-3 / 4)
    assert state.memory == {
        "own_watchers:HalveTwice": {"begun_at": 0, "times": 2},
        "own_watchers:after_each_epoch": {"last": 3},
    }
    assert json.loads((job.work / TENSORBOARD / "diary.json").read_text()) == pytest.approx(
        [1e-3, 5e-4, 2.5e-4, 2.5e-4]
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Meddler", "own_watchers:Meddler stops the training, so it has to run on all workers"),
        ("clumsy", "own_watchers:clumsy raised KeyError in after_epoch"),
        ("nothing", "has no function 'nothing'"),
    ],
)
def test_a_callback_that_can_not_be_is_named(make_job, fleet, name, message):
    with pytest.raises(ConfigError, match=message):
        train(make_job("bad", **QUICK, **ALONE, train__callbacks=[f"own_watchers:{name}"]), fleet)


def test_all_workers_lines_are_in_one_log_and_the_first_failure_is_its_last(make_job, fleet):
    job = make_job("merged", **QUICK, train__workers=2, train__callbacks=["own_watchers:clumsy"])
    with pytest.raises(ConfigError, match="all workers' lines in one: .*gang.log"):
        train(job, fleet)
    lines = (job.attempt.folder / "gang.log").read_text().splitlines()
    for worker in ("worker 0", "worker 1"):
        assert any(
            re.match(
                rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}Z  {worker}   train \d+/44 steps", line
            )
            for line in lines
        )
    assert "FAILED: worker" in lines[-1]
    assert "own_watchers:clumsy raised KeyError in after_epoch" in lines[-1]


def test_tensorboard_has_scalars_graph_histograms_and_pictures(make_job, fleet):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = make_job(
        "board",
        **QUICK | {"train__tensorboard": {"graph": True, "histograms": True, "images": 5}},
        train__workers=2,
    )
    train(job, fleet)
    events = EventAccumulator(str(job.work / TENSORBOARD), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()
    assert {"loss", "accuracy", "validation_loss", "learning_rate", "predictions"} <= set(
        tags["tensors"]
    )
    assert sum(tag.startswith("weights/") for tag in tags["tensors"]) == 8
    assert tags["graph"]
    images = events.Tensors("predictions")[-1].tensor_proto.string_val
    assert len(images) == 2 + 5  # width and height come first
    assert (int(images[0]), int(images[1])) == (96, 96 + 14)


def test_numeric_checks_name_the_operation(make_broken, fleet):
    with pytest.raises(ConfigError, match="train.debug: numerics: .*own_watchers.py"):
        train(make_broken("numerics", **ALONE, train__debug=["numerics"]), fleet)


def test_tensors_are_recorded_for_tensorboards_debugger_by_each_worker(make_job, fleet):
    from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

    job = make_job("dump", **QUICK, train__workers=2, train__debug=["dump"])
    train(job, fleet, steps_limit=3)
    for folder in (job.work / TENSORBOARD / "debugger" / f"worker-{worker}" for worker in range(2)):
        with DebugDataReader(str(folder)) as reader:
            reader.update()
            recorded = {trace.op_type for trace in reader.graph_execution_traces()}
            assert {"Conv2D", "MatMul"} <= recorded
            assert reader.source_file_list()


def test_a_training_without_compilation_gives_the_same_result(make_job, fleet):
    few = {**QUICK, **ALONE, "train__epochs": 1}
    jobs = [
        make_job("compiled", **few),
        make_job("eager", **few, train__debug=["eager", "determinism"]),
    ]
    losses = [train(job, fleet, steps_limit=4).epoch_sums[0] for job in jobs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_each_report_has_what_a_person_wants_to_know(make_job, fleet):
    job = make_job("reports", **QUICK, train__workers=2)
    train(job, fleet)
    for worker in range(2):
        moments = [
            m
            for m in ProgressReader(job.attempt.worker_progress(f"worker {worker}")).new()
            if m.phase == "train"
        ]
        assert moments[-1].done == moments[-1].total == 44
        assert {"loss", "accuracy", "examples_per_second"} <= moments[1].metrics.keys()
        assert any(moment.eta_seconds for moment in moments)
