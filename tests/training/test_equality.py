"""Every strategy and every option gives the weights that one device gives: same global batches,
same gradients, same steps.

Each row is two trainings by real gangs: with the options on one device, and then under another
strategy, or with an option that must not change anything. All weights are compared. Where only the
order of additions differs, the weights may differ by 1e-6. Other rows give their own tolerance.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from typing import Any

import numpy as np
import pytest
from gangs import run_gang
from launch.running import make_agent_spec

from pipeline_ops.contract.gang_protocol import TRAINED, format_worker_digest_name
from pipeline_ops.launch.host_pool import HostPool
from pipeline_ops.places.local import LocalLauncher
from pipeline_ops.training.weight_files import read_arrays

STEPS = 20
SAME = 1e-6

ALONE = {"model": "acme_vision.nets:smooth", "strategy": "one_device", "workers": 1}
MIRRORED = {"strategy": "mirrored", "workers": 1, "devices_per_worker": 2}
GANG = {"strategy": "multi_worker_mirrored", "workers": 2}
SERVERS = {
    "strategy": "parameter_server",
    "workers": 1,
    "parameter_servers": 2,
}
PLACED = {
    "strategy": "device_placement",
    "devices_per_worker": 2,
    "placement": {"conv2d": "CPU:1", "hidden": "CPU:0", "log*": "CPU:1"},
}
SHARDED = {
    "strategy": "dtensor",
    "devices_per_worker": 2,
    "sharding": {"*/hidden/kernel": 1, "*/hidden/bias": 0, "*/logits/kernel": 0},
}

SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9}
SLOW_SGD = {"name": "sgd", "learning_rate": 0.01}
ADAM = {"name": "adam", "learning_rate": 1e-3}
RMSPROP = {"name": "rmsprop", "learning_rate": 1e-3, "momentum": 0.9, "rho": 0.8, "epsilon": 0.5}
ADAMW = {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01}
SUBCLASSED = {"model": "acme_vision.endings:Subclassed", "model_parameters": {"penalty": 0.1}}


@dataclasses.dataclass(frozen=True)
class Row:
    """Two trainings: `options` are those of both, `changed` those of the second."""

    changed: dict[str, Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    tolerance: float = SAME


ROWS = {
    "gang of one": Row(GANG | {"workers": 1}),
    "gang of two": Row(GANG),
    "gang of two, digits_cnn": Row(GANG, {"model": "digits_cnn", "optimizer": SGD}),
    "two devices": Row(MIRRORED),
    "two workers with two devices each": Row(GANG | {"devices_per_worker": 2}),
    "auto": Row({"strategy": "auto", "workers": 2}),
    "one worker and two parameter servers": Row(SERVERS),
    "parameter servers with everything": Row(
        SERVERS | {"micro_batches": 2},
        {
            "optimizer": ADAMW
            | {
                "clip": {"norm": 0.1},
                "average_weights": 0.9,
                "schedule": {"type": "constant", "warmup_steps": 9},
            }
        },
    ),
    "layers on two devices": Row(PLACED),
    "divided layers": Row(SHARDED),
    "divided layers with everything": Row(
        SHARDED, {"optimizer": SGD | {"clip": {"global_norm": 0.1}, "average_weights": 0.9}}
    ),
    "tf-slim": Row(GANG, {"model": "acme_vision.old:build", "optimizer": SGD}),
    "tf-slim on two devices": Row(MIRRORED, {"model": "acme_vision.old:build", "optimizer": SGD}),
    "own loss and metric": Row(
        GANG,
        {"loss": "acme_vision.objectives:focal_loss", "metrics": ["acme_vision.objectives:top3"]},
    ),
    "sgd": Row(GANG, {"optimizer": SGD}),
    "adamw": Row(GANG, {"optimizer": ADAMW}),
    "rmsprop": Row(GANG, {"optimizer": RMSPROP}),
    "divided layers with rmsprop": Row(SHARDED, {"optimizer": RMSPROP}),
    "micro-batches": Row(GANG | {"micro_batches": 4}),
    "clipping by global norm": Row(GANG, {"optimizer": SGD | {"clip": {"global_norm": 0.1}}}),
    "clipping by norm": Row(GANG, {"optimizer": SGD | {"clip": {"norm": 0.1}}}),
    "clipping by value": Row(GANG, {"optimizer": SGD | {"clip": {"value": 0.01}}}),
    "averaged weights": Row(GANG, {"optimizer": ADAM | {"average_weights": 0.9}}),
    "synchronised normalisation": Row(
        GANG,
        {
            "model": "acme_vision.nets:normalized",
            "optimizer": SGD,
            "synchronized_batch_normalization": True,
        },
        1e-5,
    ),
    # Each replica normalizes by its own part of a batch. The weights differ from those of one
    # device by design, but are the same on every worker.
    "normalisation by replica": Row(
        GANG, {"model": "acme_vision.nets:normalized", "optimizer": SLOW_SGD}, 0.1
    ),
    "bfloat16": Row(GANG, {"optimizer": SLOW_SGD, "precision": "bfloat16"}, 1e-3),
    "float16": Row(GANG, {"optimizer": SLOW_SGD, "precision": "float16"}, 1e-3),
    "xla for the gradients": Row(GANG | {"xla": "gradients"}),
    "xla for the whole step": Row(ALONE | {"xla": "step"}),
    "xla and micro-batches": Row(
        {"xla": "step", "micro_batches": 2}, {"model": "digits_cnn", "optimizer": SGD}
    ),
    "xla for the gradients and micro-batches": Row(GANG | {"xla": "gradients", "micro_batches": 2}),
    "one step per call": Row(GANG | {"steps_per_call": 1}),
    "warm-up and cosine": Row(
        GANG,
        {
            "optimizer": ADAM
            | {"schedule": {"type": "cosine", "warmup_steps": 5, "decay_steps": 12}}
        },
    ),
    "a layer of int8": Row(GANG, {"model": "acme_vision.nets:quantized", "optimizer": SLOW_SGD}),
    "class weights": Row(GANG, {"class_weights": True}),
    "label smoothing": Row(GANG, {"label_smoothing": 0.1}),
    "softmax at the end": Row(GANG | {"model": "acme_vision.endings:layer"}),
    "softmax at the end, and xla": Row({"model": "acme_vision.endings:layer", "xla": "step"}),
    "softmax at the end, without a graph": Row(
        {"model": "acme_vision.endings:layer", "debug": ["eager"]}
    ),
    "subclassed, with losses of its own": Row(GANG, SUBCLASSED),
    "subclassed, with losses of its own, and micro-batches": Row(
        GANG | {"micro_batches": 2}, SUBCLASSED
    ),
    "subclassed, with losses of its own, on parameter servers": Row(SERVERS, SUBCLASSED),
    "subclassed, with losses of its own, divided": Row(
        SHARDED | {"sharding": {"*/hidden/kernel": 1}}, SUBCLASSED
    ),
}

AUGMENT = {
    "flip_left_right": True,
    "scale": {"min": 0.8, "max": 1.2},
    "brightness": 0.2,
    "contrast": 0.2,
}

MIXED = {
    "input.augment": {"mixup": 0.4, "cutmix": 1.0, "rotation": 15, "flip_left_right": True},
    "label_smoothing": 0.1,
    "class_weights": True,
}
OWN = {"input.augment": {"mixup": 0.4, "own": "acme_vision.changes:jitter"}}

ROWS |= {
    "mixtures of two images": Row(GANG, MIXED),
    "mixtures and micro-batches": Row(GANG | {"micro_batches": 2}, MIXED),
    "mixtures and xla": Row({"xla": "step"}, MIXED),
    "mixtures on parameter servers": Row(SERVERS, MIXED),
    "mixtures with divided layers": Row(SHARDED, MIXED),
    "own changes and an own loss": Row(GANG, OWN | {"loss": "acme_vision.objectives:focal_loss"}),
    "three workers, an odd batch and augmentation": Row(
        GANG | {"workers": 3}, {"global_batch_size": 31, "input.augment": AUGMENT}
    ),
    "gang of four": Row(GANG | {"workers": 4}),
    "gang of three with uneven parts": Row(GANG | {"workers": 3}),
} | {
    f"two devices, {name}": dataclasses.replace(row, changed=row.changed | MIRRORED)
    for name, row in ROWS.items()
    if row.changed.items() >= GANG.items()
}

BY_REPLICA = {"global_batch_size": None, "batch_size_per_replica": 8}
LINEAR, SQRT = ({"scale_learning_rate": rule} for rule in ("linear", "sqrt"))
WARM = SGD | {"learning_rate": 0.01, "schedule": {"type": "constant", "warmup_steps": 5}}


def by_replica(replicas: int, factor: float, changed: dict[str, Any]) -> Row:
    """A batch of 8 for each replica, beside the global batch and rate that it stands for."""
    whole = {
        "global_batch_size": 8 * replicas,
        "optimizer": WARM | {"learning_rate": WARM["learning_rate"] * factor},
    }
    return Row({"optimizer": WARM} | BY_REPLICA | changed, whole)


ROWS |= {
    "a batch for one replica": by_replica(1, 1, LINEAR),
    "a batch for each of two workers": by_replica(2, 2, GANG | LINEAR),
    "a batch for each of two devices": by_replica(2, 2**0.5, MIRRORED | SQRT),
    "a batch for each of four workers": by_replica(4, 4, GANG | {"workers": 4} | LINEAR),
    "a batch for each of four replicas": by_replica(4, 2, GANG | {"devices_per_worker": 2} | SQRT),
    "a batch for each replica at the rate of one": by_replica(2, 1, GANG),
}

OF_EACH_STRATEGY = {
    "a batch for each of two workers",
    "gang of two",
    "two devices",
    "one worker and two parameter servers",
    "layers on two devices",
    "divided layers",
}
"""The rows that `make test` runs."""


@pytest.fixture(scope="module")
def trained(weighted_dataset, make_job_in, tmp_path_factory, host_pool):
    """Returns the weights after STEPS steps, by options. Each training runs once."""
    known: dict[str, list[np.ndarray]] = {}
    make = make_job_in(tmp_path_factory.mktemp("equality"), weighted_dataset)

    def train(options: dict[str, Any], pool: HostPool = host_pool) -> list[np.ndarray]:
        key = json.dumps(options, sort_keys=True)
        if key not in known:
            job = make(
                f"attempt-{len(known)}",
                preprocess__balance="by_class",
                **{f"train__{name}": value for name, value in options.items()},
            )
            known[key] = trained_weights(job, pool)
        return known[key]

    return train


def trained_weights(job, host_pool) -> list[np.ndarray]:
    shutil.rmtree(job.work, ignore_errors=True)  # operational options share a work folder
    gang = run_gang(job, host_pool, steps_limit=STEPS)
    assert gang.restarts == 0
    workers = gang.config.effective_min_workers  # a gang takes as many as the pool has
    digests = {
        (job.work / format_worker_digest_name(w)).read_text()
        for w in range(1 if gang.config.parameter_servers else workers)
    }
    assert len(digests) == 1, "the workers of one gang ended with different weights"
    return read_arrays(job.work / TRAINED)


def distance(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=name, marks=[pytest.mark.training] * (name not in OF_EACH_STRATEGY))
        for name, row in ROWS.items()
    ],
)
@pytest.mark.training
def test_the_weights_are_those_of_one_device(trained, row, record_property):
    difference = distance(trained(ALONE | row.options), trained(ALONE | row.options | row.changed))
    record_property("difference", difference)
    print(f"difference {difference:.1e}")
    assert difference <= row.tolerance


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 2},
        *(
            pytest.param(options, marks=pytest.mark.training)
            for options in (
                {"optimizer": SGD},
                {"optimizer": ADAM | {"learning_rate": 1.1e-3}},
                {"class_weights": True},
                {"label_smoothing": 0.1},
                {"optimizer": ADAM | {"average_weights": 0.9}},
                {
                    "optimizer": ADAM
                    | {"schedule": {"type": "cosine", "warmup_steps": 5, "decay_steps": 12}}
                },
                {"optimizer": ADAM | {"clip": {"value": 1e-8}}},
            )
        ),
    ],
    ids=lambda options: "-".join(f"{key}" for key in options),
)
def test_what_must_change_the_weights_does(trained, options):
    """Shows that the comparison above can fail, and that every option has an effect."""
    assert distance(trained(ALONE), trained(ALONE | options)) > 1e-3


@pytest.mark.training
def test_a_gang_with_fewer_workers_keeps_the_batch_and_the_rate(trained, host_pool, tmp_path):
    """`host_pool` is there for the modules that its processes find."""
    row = by_replica(4, 4, GANG | {"workers": 4, "min_workers": 2} | LINEAR)
    spec = make_agent_spec(tmp_path)
    with contextlib.closing(HostPool(LocalLauncher(workers=2), spec)) as half:
        shrunk = trained(ALONE | row.options | row.changed, half)
    assert distance(trained(ALONE | row.options), shrunk) <= SAME


@pytest.mark.training
@pytest.mark.parametrize("strategy", [{}, GANG, SERVERS], ids=["one device", "gang", "servers"])
def test_the_losses_of_a_model_count(trained, strategy):
    subclassed = ALONE | SUBCLASSED | strategy
    without = subclassed | {"model_parameters": {"penalty": 0.0}}
    assert distance(trained(subclassed), trained(without)) > 1e-3


@pytest.mark.training
def test_with_dropout_the_number_of_workers_changes_the_masks(trained):
    """Each replica draws its own masks. Two trainings by two workers draw the same ones."""
    dropping = {"model": "acme_vision.nets:dropping", "optimizer": SGD}
    two = trained(ALONE | dropping | GANG)
    again = trained(ALONE | dropping | GANG | {"heartbeat_timeout_seconds": 29})
    assert distance(two, again) == 0
    assert distance(two, trained(ALONE | dropping)) > 1e-3
