"""The number of workers changes nothing for detectors: the loss is divided by the number of boxes
of all workers, which differs from worker to worker."""

from __future__ import annotations

import pytest
from gangs import train

STEPS = 30
SGD = {"name": "sgd", "learning_rate": 3e-5, "momentum": 0.9, "clip": {"global_norm": 10.0}}
"""And not Adam, which divides by the size of a gradient, and so makes much of the last digit of a
small one."""
AUGMENT = {
    "flip_left_right": True,
    "scale": {"min": 0.8, "max": 1.25},
    "brightness": 0.1,
    "contrast": 0.1,
    "mosaic": 0.5,
}
"""Everything that moves boxes: each worker has to change its examples as any other would have."""
SMALL = {
    "center_detector": {"width": 8},
    "retinanet": {
        "backbone": "MobileNetV2",
        "backbone_parameters": {"alpha": 0.35},
        "width": 16,
        "depth": 1,
        "normalization": "group",
        "frozen_batch_normalization": True,
        "anchor_scale": 2.0,
    },
}
pytestmark = pytest.mark.training

MODELS = pytest.mark.parametrize("model", ["center_detector", "retinanet"])


def losses(make_job, host_pool, model: str, name: str, **overrides) -> list[float]:
    """Returns the mean losses of all epochs and of the validation split, and that of the last,
    unfinished epoch."""
    options = {
        "train__model": model,
        "train__model_parameters": SMALL[model],
        "train__global_batch_size": 16,
        "train__optimizer": SGD,
        "train__input.augment": AUGMENT,
    }
    job = make_job(name, **options | overrides)
    state = train(job, host_pool, steps_limit=STEPS)
    assert state.step == STEPS
    return [
        state.epoch_sums.loss / state.epoch_sums.count,
        *(epoch.metrics[key] for epoch in state.history for key in ("loss", "validation_loss")),
    ]


@MODELS
def test_one_two_and_four_workers_reach_the_same_losses(make_detection_job, host_pool, model):
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
    for workers in (2, 4):
        together = losses(
            make_detection_job, host_pool, model, f"gang-{workers}", train__workers=workers
        )
        assert together == pytest.approx(alone, rel=1e-5), f"{workers} workers"


@MODELS
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
