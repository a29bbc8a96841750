"""The preprocess job checks the training that it works for, before any image is built."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from beam_jobs.checks import sample_image_shape
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.model_check import plan_training
from pipeline_ops.storage.open_store import open_root


def run_for(pipeline, *, python: str = sys.executable, preprocess: dict | None = None, **train):
    """The job's outcome, with a request as the preprocess task writes it."""
    plan = pipeline.plan(**preprocess or {})
    overrides = {f"train.{key}": value for key, value in train.items()}
    if train.get("model") == "center_detector":
        overrides["evaluate.gate"] = [{"metric": "map_50", "at_least": 0.1}]
    training = plan_training(load_config(pipeline.config_file, overrides), python)
    request = plan.request.model_copy(update={"training": training})
    return pipeline.run(dataclasses.replace(plan, request=request))


def phases(outcome) -> set[str]:
    return {moment.phase for moment in outcome.progress}


def test_probabilities_without_a_softmax_at_the_end_are_refused_before_the_work(
    user_package, animals
):
    """Walk stumble 5: they were trained with a softmax, and published."""
    outcome = run_for(animals, model="acme_vision.mistakes:averaged")
    assert outcome.exit_code is ExitCode.CONFIG
    assert "averaged returns probabilities (the outputs of every image sum to 1)" in outcome.message
    assert outcome.message.startswith(f"{animals.config_file}:")
    assert phases(outcome) == {"list", "check"}
    assert not outcome.artifact.exists()


def test_a_pattern_that_freezes_nothing_is_refused_before_the_work(animals):
    preprocess = {"stages": ["decode", {"resize": {"height": 12, "width": 12}}]}
    outcome = run_for(animals, preprocess=preprocess, freeze={"*conv9*": None})
    assert outcome.exit_code is ExitCode.CONFIG
    assert "train.freeze: no weight matches *conv9*. The weights are " in outcome.message
    assert not outcome.artifact.exists()


@pytest.mark.parametrize(
    "train, message",
    [
        (
            {"model": "center_detector", "best_checkpoint": None},
            "the data set is for classification, and train.model center_detector is for detection",
        ),
        (
            {"model": "resnet50"},
            "train.model: resnet50 takes images of at least 32x32 pixels, and those of the data "
            "set are 8x8. Change preprocess.stages or choose another model.",
        ),
    ],
)
def test_the_data_decide_without_tensorflow(animals, train, message):
    outcome = run_for(animals, python="/nowhere/python", **train)
    assert (outcome.exit_code, message in outcome.message) == (ExitCode.CONFIG, True)
    assert phases(outcome) == {"list", "check"}


def test_a_model_of_the_catalogue_costs_no_process(animals):
    preprocess = {"stages": ["decode", {"resize": {"height": 12, "width": 12}}]}
    outcome = run_for(animals, python="/nowhere/python", preprocess=preprocess)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_what_is_no_interpreter_is_named_and_no_reason_to_retry(user_package, animals, python):
    outcome = run_for(animals, python=python, model="acme_vision.nets:smooth")
    assert outcome.exit_code is ExitCode.CONFIG
    assert f"{python} cannot be used as an interpreter" in outcome.message


def test_the_shape_is_that_of_an_image_that_the_stages_keep(animals):
    from beam_jobs.sources import read_records
    from beam_jobs.stages import bind_stages
    from pipeline_ops.raw_data.folder import find_raw_folder, list_folder

    config = load_config(animals.config_file)
    (animals.raw / "cat" / "0.png").write_bytes(b"no image")
    listing = list_folder(find_raw_folder(config), open_root(animals.folder) / "listings")
    records = read_records(config.preprocess.source, listing).records
    stages = bind_stages(config.preprocess.stages)
    assert sample_image_shape(records, stages, listing.folder) == (8, 8, 1)
    damaged = [record for record in records if record.key == "cat/0.png"]
    assert damaged
    assert sample_image_shape(damaged, stages, listing.folder) is None
