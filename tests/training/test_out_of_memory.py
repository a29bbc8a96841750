"""A step for which a device has no memory, under real gangs: TensorFlow's error, from a layer."""

from __future__ import annotations

import pytest
from gangs import ALONE, QUICK, read_state, run_gang

from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.launch.train import warn_of_parts

pytestmark = pytest.mark.training


@pytest.fixture
def run(make_job, host_pool):
    def run(name, num_images, num_evaluated=1000, **options):
        job = make_job(
            name,
            **QUICK | options,
            train__model="acme_vision.memory:build",
            train__model_parameters={"num_images": num_images, "num_evaluated": num_evaluated},
        )
        return run_gang(job, host_pool), job

    return run


def test_a_step_without_memory_is_computed_in_smaller_parts_of_the_same_batch(run):
    """Each of two workers computes 32 images at once, then 16, then 8."""
    divided, job = run("little", 10, train__workers=2, train__global_batch_size=64)
    assert divided.restarts == 2 and divided.config.micro_batches == 4
    asked = Train.model_validate(job.request.config)
    assert "in 4 parts (train.micro_batches)" in warn_of_parts(asked, divided.config)[0]
    assert warn_of_parts(asked, asked) == []
    options = {"train__workers": 2, "train__global_batch_size": 64, "train__micro_batches": 4}
    _, expected = run("enough", 1000, **options)
    [losses, wanted] = [
        [epoch.metrics["loss"] for epoch in read_state(each).history] for each in (job, expected)
    ]
    assert losses == pytest.approx(wanted, rel=1e-6)
    log = (job.attempt.folder / "gang.log").read_text()
    assert "ResourceExhaustedError" in log and "with train.micro_batches: 2" in log


def test_a_validation_without_memory_is_computed_in_smaller_parts(run):
    """The 100 images of the split at once, then 64 of them."""
    divided, job = run("little", 1000, num_evaluated=70, **ALONE)
    assert divided.config.micro_batches == 4
    assert "OOM when allocating 100 images" in (job.attempt.folder / "gang.log").read_text()


def test_a_batch_that_cannot_be_divided_further_is_an_error_with_the_cure(run):
    with pytest.raises(ConfigError, match="OOM when allocating 1 images") as error:
        run("none", 0, **ALONE, train__global_batch_size=2)
    assert "More micro-batches are not possible: global_batch_size must be" in str(error.value)
    assert "Lower train.global_batch_size" in str(error.value)
