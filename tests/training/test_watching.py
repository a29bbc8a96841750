"""The user's own callbacks, progress, TensorBoard and the debugging switches, in real gangs."""

from __future__ import annotations

import json
import re

import keras
import pytest
from gangs import ALONE, QUICK, train

from pipeline_ops.contract.gang_protocol import STATE
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.results import CALLBACKS, TENSORBOARD
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.training.trainer import describe_model


@pytest.mark.training
def test_own_callbacks_change_the_training_alike_on_all_workers_and_remember_across_restarts(
    make_job, host_pool
):
    job = make_job(
        "callbacks",
        **QUICK | {"train__epochs": 9},
        train__callbacks=["own_watchers:HalveTwice", {"own_watchers:DieOnce": {"epoch": 1}}],
        train__workers=2,
    )
    train(job, host_pool, steps_limit=40)  # stops in the second epoch, and resumes
    state = train(job, host_pool)
    assert len(state.history) == 4
    assert not any("HalveTwice" in warning for warning in state.warnings)
    assert state.learning_rate == pytest.approx(1e-3 / 4)
    assert [epoch.learning_rate for epoch in state.history] == pytest.approx(
        [1e-3, 5e-4, 2.5e-4, 2.5e-4]
    )


@pytest.mark.training
def test_a_callback_without_a_state_begins_anew_after_a_restart_and_the_report_says_so(
    make_job, host_pool
):
    callbacks = ["own_watchers:Forgetful", {"own_watchers:DieOnce": {"epoch": 1}}]
    job = make_job("forgetful", **QUICK | {"train__epochs": 3}, train__callbacks=callbacks)
    state = train(job, host_pool)
    assert len(state.history) == 3
    assert int((job.work / CALLBACKS / "epochs.txt").read_text()) < 3
    message = "own_watchers:Forgetful has no get_state and set_state, so the state of its own code "
    assert sum(message in warning for warning in state.warnings) == 1


@pytest.mark.training
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Meddler",
            "own_watchers:Meddler changes the end of the training, so it must run on all workers",
        ),
        ("clumsy", "own_watchers:clumsy raised KeyError in on_epoch_end: 'oh' "),
        ("Thawer", "own_watchers:Thawer changes which weights learn. Use train.freeze or "),
        ("Hoarder", "own_watchers:Hoarder: there is a set in what its get_state returns, which a"),
        ("nothing", "has no function 'nothing'"),
    ],
)
def test_a_callback_that_can_not_be_is_named(make_job, host_pool, name, message):
    with pytest.raises(ConfigError, match=message):
        train(
            make_job("bad", **QUICK, **ALONE, train__callbacks=[f"own_watchers:{name}"]), host_pool
        )


@pytest.mark.training
def test_a_full_disk_in_a_callback_is_an_error_of_the_machine(make_job, host_pool):
    job = make_job(
        "full", **QUICK, **ALONE, train__callbacks=["own_watchers:Writer"], train__max_restarts=0
    )
    with pytest.raises(
        MachineError, match="Writer raised OSError in on_epoch_end: .*No space left"
    ):
        train(job, host_pool)


def test_all_workers_lines_are_in_one_log_and_the_first_failure_is_its_last(make_job, host_pool):
    job = make_job("merged", **QUICK, train__workers=2, train__callbacks=["own_watchers:clumsy"])
    with pytest.raises(ConfigError):
        train(job, host_pool)
    lines = (job.attempt.folder / "gang.log").read_text().splitlines()
    for worker in ("worker 0", "worker 1"):
        assert any(
            re.match(
                rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}Z  {worker}   train \d+/44 steps", line
            )
            for line in lines
        )
    assert "FAILED: worker" in lines[-1]
    assert "own_watchers:clumsy raised KeyError in on_epoch_end" in lines[-1]


@pytest.mark.training
def test_what_the_authors_code_prints_and_logs_is_in_the_workers_log(make_job, host_pool):
    job = make_job("talk", **QUICK, train__workers=2, train__loss="own_watchers:talkative")
    train(job, host_pool, steps_limit=3)
    for text in (
        *("printed while it is traced", "INFO own_watchers: logged while it is traced"),
        "printed in a step: 16",
    ):
        for worker in ("worker 0", "worker 1"):
            assert text in job.attempt.worker_log(worker).read_text()
        assert text in (job.attempt.folder / "gang.log").read_text()


@pytest.mark.training
def test_what_was_printed_before_a_kill_is_in_the_log(make_job, host_pool):
    job = make_job(
        "killed",
        **QUICK,
        **ALONE,
        train__callbacks=["own_watchers:TalkAndDie"],
        train__max_restarts=0,
    )
    with pytest.raises(MachineError, match="SIGKILL"):
        train(job, host_pool)
    log = (job.attempt.folder / "gang.log").read_text()
    assert "printed before the end \N{SNOWMAN}" in log and "logged before the end" in log


@pytest.mark.training
def test_the_log_has_the_layers_of_the_model_once(make_job, host_pool):
    job = make_job("layers", **QUICK, train__workers=2)
    train(job, host_pool, steps_limit=30)
    train(job, host_pool)
    logs = [job.attempt.worker_log(f"worker {index}").read_text() for index in range(2)]
    assert logs[0].count("Total params:") == 1 and "Conv2D" in logs[0]
    assert "Total params:" not in logs[1]
    assert "Total params:" in json.loads((job.work / STATE).read_text())["model_summary"]


def test_a_long_summary_is_cut_and_a_broken_one_is_no_error():
    class Shapeless(keras.layers.Layer):
        def call(self, inputs):
            return inputs

        def compute_output_shape(self, input_shape):
            raise AttributeError("no shape")

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.part = Shapeless()

        def call(self, inputs):
            return self.part(inputs)

    layers = [keras.layers.Dense(1) for _ in range(300)]
    lines = describe_model(keras.Sequential([keras.Input((1,)), *layers])).splitlines()
    assert len(lines) == 201 and lines[100].endswith("lines are left out ...")
    broken = Own()
    broken(keras.ops.zeros((1, 3)))
    assert "There is no summary of the model: AttributeError: no shape" in describe_model(broken)


@pytest.mark.training
def test_steps_are_profiled_for_tensorboard(make_job, host_pool):
    job = make_job(
        "profile", **QUICK, train__workers=2, train__tensorboard={"profile_steps": [8, 9]}
    )
    train(job, host_pool)
    [trace] = (job.work / TENSORBOARD).glob("plugins/profile/*/*.xplane.pb")
    content = trace.read_bytes()
    assert b"MatMul" in content and b"CollectiveReduce" in content


@pytest.mark.training
def test_tensorboard_has_scalars_graph_histograms_and_pictures(make_job, host_pool):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = make_job(
        "board",
        **QUICK | {"train__tensorboard": {"histograms": True, "images": 5}},
        train__workers=2,
    )
    train(job, host_pool)
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
    assert (int(images[0]), int(images[1])) == (260, 260 + 34)


@pytest.mark.training
def test_tensorboard_shows_a_detectors_boxes_beside_the_labelled_ones(
    scenes, make_job_in, tmp_path, host_pool
):
    from scenes import DIGIT_SCENES
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    job = make_job_in(tmp_path, scenes, DIGIT_SCENES)(
        "boxes",
        **ALONE | QUICK | {"train__epochs": 1},
        train__model="center_detector",
        train__model_parameters={"width": 8},
        train__tensorboard__images=3,
    )
    train(job, host_pool)
    events = EventAccumulator(str(job.work / TENSORBOARD), size_guidance={"tensors": 0})
    events.Reload()
    images = events.Tensors("predictions")[-1].tensor_proto.string_val
    assert len(images) == 2 + 3
    assert (int(images[0]), int(images[1])) == (2 * 260, 260 + 34)


@pytest.mark.training
def test_an_operation_that_cannot_be_repeated_is_an_error_that_names_the_switch(
    make_job, host_pool
):
    """TensorFlow refuses the gradient of a maximum under XLA."""
    job = make_job(
        "unrepeatable", **QUICK, **ALONE, train__xla="step", train__debug=["determinism"]
    )
    with pytest.raises(ConfigError, match="train.debug: determinism: .*MaxPool.*Leave out"):
        train(job, host_pool)


@pytest.mark.training
def test_numeric_checks_name_the_operation(make_broken, host_pool):
    with pytest.raises(ConfigError, match="train.debug: numerics: .*own_watchers.py"):
        train(make_broken("numerics", **ALONE, train__debug=["numerics"]), host_pool)


@pytest.mark.training
def test_a_training_without_compilation_gives_the_same_result(make_job, host_pool):
    few = {**QUICK, **ALONE, "train__epochs": 1}
    jobs = [
        make_job("compiled", **few),
        make_job("eager", **few, train__debug=["eager", "determinism"]),
    ]
    losses = [train(job, host_pool, steps_limit=4).epoch_sums.loss for job in jobs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_each_report_has_what_a_person_wants_to_know(make_job, host_pool):
    job = make_job("reports", **QUICK, train__workers=2)
    train(job, host_pool)
    for worker in range(2):
        moments = [
            m
            for m in ProgressReader(
                open_path(job.attempt.worker_progress(f"worker {worker}"))
            ).read_new()
            if m.phase == "train"
        ]
        assert moments[-1].done == moments[-1].total == 44
        assert {"loss", "accuracy", "examples_per_second"} <= moments[1].metrics.keys()
        assert any(moment.eta_seconds for moment in moments)
