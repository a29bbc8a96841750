"""Whole train jobs on a GPU: a killed worker, the exported model, and the check of the devices."""

from __future__ import annotations

import json
import os
import signal

import pytest
from gangs import ALONE
from launch.outcomes import assert_went_on
from launch.running import STEPS_PER_EPOCH, RunningJob, starting

from pipeline_ops.errors import ExitCode

SERVE = """
import sys
from pathlib import Path
from pipeline_ops.contract.results import SAVED_MODEL
from pipeline_ops.config.export import Export
from pipeline_ops.export.check import check_format, check_serving
from pipeline_ops.served.references import References

training = Path(sys.argv[1])
folder, config = training / SAVED_MODEL, Export(model="digits")
references = References(training, folder, num_classes=10)
check_serving(folder, references, config)
print(check_format("saved_model", references, folder, config).num_checked)
"""


@pytest.fixture(scope="module")
def start_in(dataset, make_job_in, gpus):
    """Starts repeatable jobs of two epochs on the GPU, in a folder."""
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[:1])}
    hosts = {"launcher": "local", "environment": environment}
    options = ALONE | {"train__epochs": 2, "train__debug": ["determinism"]}
    return lambda folder: starting(make_job_in, dataset, folder, hosts, **options)


@pytest.fixture(scope="module")
def undisturbed(start_in, tmp_path_factory) -> RunningJob:
    with start_in(tmp_path_factory.mktemp("undisturbed")) as start:
        job = start()
        assert job.end() == ExitCode.SUCCESS, job.job.attempt.log.read_text()
        yield job


def test_a_killed_worker_goes_on_from_the_checkpoint_to_the_same_weights(
    start_in, undisturbed, tmp_path
):
    with start_in(tmp_path) as start:
        job = start(is_held=True)
        job.wait_until_held()
        os.kill(job.worker("worker 0"), signal.SIGKILL)
        assert_went_on(undisturbed, job)
        assert job.steps("restored") == [STEPS_PER_EPOCH]
        assert job.figures().restarts == 1
        assert job.figures().weights_digest == undisturbed.figures().weights_digest


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_the_model_answers_as_it_did_after_the_training(undisturbed, run_on, gpus, kind):
    """Every signature, and `trainyard serve`, on the GPU of the training and on the CPU."""
    visible = ",".join(gpus[:1]) if kind == "gpu" else ""
    assert run_on(visible, "-c", SERVE, undisturbed.job.folder.local) == "64"


def test_the_check_of_the_devices_finds_nothing(run_on, gpus):
    kind = "gpu" if gpus else "cpu"
    found = run_on(",".join(gpus), "-m", "pipeline_ops.training.device_check", kind)
    problems = [each for each in json.loads(found) if each["problem"] and not each["is_warning"]]
    assert problems == []
