"""A GPU trains as the CPU does, and as itself with every strategy, precision and option of XLA.

All trainings take the same 20 steps by SGD, in float32 without TF32 unless a row says otherwise.
The tolerances are those of weights, absolute, and of losses, relative. Devices add in another
order, and XLA also fuses operations. With DEVICE=cpu, GPU and CPU are the same training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gangs import read_state
from scenes import DETECTORS, DIGIT_SCENES
from scenes import SGD as DETECTOR_SGD
from training.test_equality import ALONE, GANG, SGD, distance, trained_weights

SAME_DEVICE, OTHER_DEVICE, XLA, HALF_PRECISION = 1e-5, 1e-4, 2e-3, 1e-2
CLASSIFIER = ALONE | {"optimizer": SGD}
DETECTORS_ALONE = {
    model: ALONE
    | {
        "model": model,
        "model_parameters": parameters,
        "optimizer": DETECTOR_SGD,
        "global_batch_size": 8,
    }
    for model, parameters in DETECTORS.items()
}


class Trained(NamedTuple):
    weights: list[np.ndarray]
    losses: list[float]
    """Of the last epoch, which is not finished, and of each one before and its validation."""


@pytest.fixture(scope="module")
def train(dataset, scenes, make_job_in, open_pool, tmp_path_factory):
    """Trains with the devices that the gang may see. Each training runs once."""
    known: dict[str, Trained] = {}
    folder = tmp_path_factory.mktemp("trainings")
    makers = make_job_in(folder, dataset), make_job_in(folder, scenes, DIGIT_SCENES)

    def train(visible: list[str], options: dict[str, Any]) -> Trained:
        key = json.dumps([visible, options], sort_keys=True)
        if key not in known:
            make = makers[options["model"] in DETECTORS]
            job = make(
                f"attempt-{len(known)}", **{f"train__{name}": options[name] for name in options}
            )
            weights, state = trained_weights(job, open_pool(",".join(visible))), read_state(job)
            losses = [state.epoch_sums.loss / state.epoch_sums.count]
            for epoch in state.history:
                losses += [epoch.metrics["loss"], epoch.metrics["validation_loss"]]
            known[key] = Trained(weights, losses)
        return known[key]

    return train


def assert_close(found: Trained, expected: Trained, tolerance: float) -> None:
    difference = distance(found.weights, expected.weights)
    print(f"weights differ by {difference:.1e}, losses are {found.losses} and {expected.losses}")
    assert difference <= tolerance
    assert found.losses == pytest.approx(expected.losses, rel=tolerance)


@pytest.mark.parametrize(
    "options", [CLASSIFIER, *DETECTORS_ALONE.values()], ids=lambda options: options["model"]
)
def test_a_gpu_trains_as_the_cpu_does(train, gpus, options):
    on_gpu, on_cpu = train(gpus[:1], options), train([], options)
    assert_close(on_gpu, on_cpu, OTHER_DEVICE)
    # Equal bits would come from the CPU.
    assert not gpus or distance(on_gpu.weights, on_cpu.weights) > 0


def test_two_workers_on_one_gpu_train_as_one(train, gpus):
    """NCCL refuses two ranks on one GPU, so this is the ring over gRPC."""
    together = train(2 * gpus[:1], CLASSIFIER | GANG | {"communication": "ring"})
    assert_close(together, train(gpus[:1], CLASSIFIER), SAME_DEVICE)


def test_two_logical_devices_of_one_gpu_train_as_one(run_on, gpus, user_package):
    script = Path(__file__).with_name("logical_devices.py")
    difference = run_on(",".join(gpus[:1]), script, "GPU" if gpus else "CPU")
    assert float(difference) <= SAME_DEVICE


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_reaches_the_loss_of_float32(train, gpus, precision):
    half = train(gpus[:1], CLASSIFIER | {"precision": precision})
    whole = train(gpus[:1], CLASSIFIER)
    assert half.losses == pytest.approx(whole.losses, rel=HALF_PRECISION)
    assert half.losses != whole.losses


@pytest.mark.parametrize("part", ["gradients", "step"])
def test_xla_changes_rounding_alone(train, gpus, part):
    assert_close(train(gpus[:1], CLASSIFIER | {"xla": part}), train(gpus[:1], CLASSIFIER), XLA)
