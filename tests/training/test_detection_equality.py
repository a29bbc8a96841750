"""The number of workers changes nothing for detectors: the loss is divided by the number of boxes
of all workers, which differs from worker to worker."""

from __future__ import annotations

import pytest
from gangs import train
from scenes import AUGMENT, DETECTOR_KINDS, DETECTORS, SGD

STEPS = 30
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(600)]
"""A test has up to four trainings."""

MODELS = pytest.mark.parametrize("model", DETECTORS)
KINDS = pytest.mark.parametrize("model", DETECTOR_KINDS)


def losses(make_job, host_pool, model: str, name: str, **overrides) -> list[float]:
    """Returns the mean losses of all epochs and of the validation split, and that of the last,
    unfinished epoch."""
    options = {
        "train__model": DETECTOR_KINDS[model][0],
        "train__model_parameters": DETECTOR_KINDS[model][1],
        "train__global_batch_size": 16,
        # The first steps of separable heads are small.
        "train__optimizer": SGD if model in DETECTORS else SGD | {"learning_rate": 1e-3},
        "train__input.augment": AUGMENT,
    }
    job = make_job(name, **options | overrides)
    state = train(job, host_pool, steps_limit=STEPS)
    assert state.step == STEPS
    return [
        state.epoch_sums.loss / state.epoch_sums.count,
        *(epoch.metrics[key] for epoch in state.history for key in ("loss", "validation_loss")),
    ]


@KINDS
def test_workers_and_devices_reach_the_losses_of_one_device(make_detection_job, host_pool, model):
    alone = losses(
        make_detection_job,
        host_pool,
        model,
        "alone",
        train__strategy="one_device",
        train__workers=1,
    )
    assert (
        len(alone) == 7 and alone[5] < alone[1]
    )  # the third epoch's training loss, and the first's
    others = {
        "two workers": {"train__workers": 2},
        "four workers": {"train__workers": 4},
        "two devices": {
            "train__workers": 1,
            "train__strategy": "mirrored",
            "train__devices_per_worker": 2,
        },
    }
    for name, options in others.items():
        together = losses(make_detection_job, host_pool, model, name, **options)
        assert together == pytest.approx(alone, rel=1e-5), name


WEIGHTED = {"preprocess__balance": "by_class", "train__class_weights": True}
REPEATED = {"train__input.repeat_threshold": 0.9}


@MODELS
@pytest.mark.parametrize("options", [WEIGHTED, REPEATED], ids=["class weights", "repeats"])
def test_rare_classes_count_more_alike_with_any_number_of_workers(
    make_detection_job, host_pool, model, options
):
    alone = {"train__strategy": "one_device", "train__workers": 1}
    plain, changed, together = (
        losses(make_detection_job, host_pool, model, name, **each)
        for name, each in {
            "plain": alone,
            "changed": alone | options,
            "together": {"train__workers": 2} | options,
        }.items()
    )
    assert together == pytest.approx(changed, rel=1e-5)
    assert changed != pytest.approx(plain, rel=1e-3)


def test_a_metric_of_the_gate_selects_the_best_epoch_with_any_number_of_workers(
    make_detection_job, host_pool
):
    figures = []
    for workers in (1, 2):
        job = make_detection_job(
            f"map-{workers}",
            train__workers=workers,
            train__model_parameters=DETECTORS["center_detector"],
            train__best_checkpoint={"monitor": "validation_map"},
            train__early_stopping={"monitor": "validation_mar_100"},
            train__epochs=4,
            # Adam makes rounding errors so large that a detection or two differ.
            train__optimizer={"name": "sgd", "learning_rate": 0.02, "momentum": 0.9},
        )
        state = train(job, host_pool)
        names = ("validation_map", "validation_map_50", "validation_mar_100")
        figures.append([[epoch.metrics[name] for name in names] for epoch in state.history])
        maps = [epoch[0] for epoch in figures[-1]]
        assert maps[state.best_epoch] == max(maps) > 0
    # At the rank where two scores are equal but for rounding, two detections may change places.
    assert figures[0][:2] == [pytest.approx(epoch, rel=0.01) for epoch in figures[1][:2]]


@KINDS
def test_micro_batches_change_nothing(make_detection_job, host_pool, model):
    whole, parts = (
        losses(
            make_detection_job,
            host_pool,
            model,
            f"parts-{parts}",
            train__strategy="one_device",
            train__workers=1,
            train__micro_batches=parts,
        )
        for parts in (1, 4)
    )
    assert parts == pytest.approx(whole, rel=1e-5)


@MODELS
def test_another_seed_reaches_other_losses(make_detection_job, host_pool, model):
    """Shows that the comparisons above can fail."""
    one, other = (
        losses(
            make_detection_job,
            host_pool,
            model,
            f"seed-{seed}",
            train__strategy="one_device",
            train__workers=1,
            train__seed=seed,
        )
        for seed in (1, 2)
    )
    assert other != pytest.approx(one, rel=1e-3)
