"""A model whose step is another one where the config trains it is refused before any work."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from config_files import write_config

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.model_check import check_training, plan_training

ONE = {"strategy": "one_device", "workers": 1}
MIRRORED = {"strategy": "mirrored", "workers": 1, "devices_per_worker": 2}
TOGETHER = MIRRORED | {"synchronized_batch_normalization": True}
GANG = {"strategy": "multi_worker_mirrored", "workers": 2}
GANG_OF_TWO_DEVICES = GANG | {"devices_per_worker": 2}
SERVERS = {"strategy": "parameter_server", "workers": 2, "parameter_servers": 1}
MESH = MIRRORED | {"strategy": "dtensor", "sharding": {"*/kernel": 0}}

SHARED = "on 2 devices of one worker is another one than on one device, first in "
SHARDED = "with sharded weights is another one than on one device, first in "


def check(folder: Path, name: str, options: dict) -> None:
    shutil.copy(Path(__file__).with_name("one_step.py"), folder)
    options = {f"train.{key}": value for key, value in options.items()}
    file = write_config(folder, {"train.model": f"one_step:{name}"} | options)
    training = plan_training(load_config(file), sys.executable)
    check_training(training, "classification", (8, 8, 1), 5)


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "options", "refusal"),
    [
        ("Skipping", TOGETHER, SHARED),
        ("penalized", TOGETHER, SHARED),
        ("penalized", GANG_OF_TWO_DEVICES | {"synchronized_batch_normalization": True}, SHARED),
        ("recomputing", SERVERS, SHARDED),
        ("recomputing", MESH, SHARDED),
        ("hiding", SERVERS, SHARDED),
        ("coding", GANG, "/codes in each call, from its part of the batch"),
        ("coding", MIRRORED, "/codes in each call, from its part of the batch"),
        ("summing", GANG, '/codes with aggregation="sum" would grow'),
    ],
)
def test_a_step_that_is_another_one_is_refused(tmp_path, name, options, refusal):
    with pytest.raises(ConfigError) as refused:
        check(tmp_path, name, options)
    assert f"train.model: one_step:{name}" in str(refused.value)
    assert refusal in str(refused.value)


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Skipping", MIRRORED),
        ("Skipping", GANG | {"synchronized_batch_normalization": True}),
        ("unpenalized", TOGETHER),
        ("penalized", MIRRORED),
        ("recomputing", MIRRORED),
        ("recomputing", ONE),
        ("clipped", SERVERS),
        ("clipped", MIRRORED),
        ("dropping", MIRRORED),
        ("dropping", TOGETHER),
        ("dropping", SERVERS),
        ("spectral", MIRRORED),
        ("spectral", SERVERS),
        ("shaking", MIRRORED),
        ("coding", ONE),
        ("summing", ONE),
    ],
)
def test_a_step_that_is_the_same_one_passes(tmp_path, name, options):
    check(tmp_path, name, options)
