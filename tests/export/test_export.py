"""The export job: its versions, the version in service, and the state after a kill."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from export.exports import numbers, planned

from pipeline_ops.contract.manifest import (
    NAME,
    Input,
    find_damage,
    list_files,
    read_manifest,
    write_manifest,
)
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.results import REFERENCE_OUTPUTS, ModelFigures
from pipeline_ops.errors import ConfigError, DataError, ExitCode, OutOfDate
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.open_store import open_root

STRICT = [{"metric": "accuracy", "at_least": 0.99}]


def refused(sandbox, plan: JobPlan, complaint: str) -> None:
    """The export fails with the complaint and leaves nothing."""
    with pytest.raises(DataError, match=complaint):
        sandbox.run(plan)
    assert numbers(sandbox) == [] and sandbox.registry.find_champion() is None
    assert not Path(plan.request.artifact).exists()


def test_a_version_has_the_layout_that_tensorflow_serving_loads(sandbox):
    import tensorflow as tf

    code, folder = sandbox.run(planned(sandbox, "good"))
    assert code == ExitCode.SUCCESS
    version = sandbox.registry.find_champion()
    published = sandbox.root / "models" / "digits" / "1"
    assert version.folder == str(published)
    assert {"saved_model.pb", "variables/variables.index", "manifest.json"} <= {
        str(path.relative_to(published)) for path in published.rglob("*")
    }
    assert "serving_default" in tf.saved_model.load(version.folder).signatures
    assert find_damage(version.uri, version.read_manifest(), checksums=True) == []
    assert ModelFigures.model_validate(
        version.read_manifest().figures
    ) == ModelFigures.model_validate(read_manifest(folder / NAME).figures)


def test_the_manifest_of_a_version_says_where_it_comes_from_and_how_well_it_was_checked(sandbox):
    plan = planned(sandbox, "good")
    sandbox.run(plan)
    manifest = sandbox.registry.find_champion().read_manifest()
    figures = ModelFigures.model_validate(manifest.figures)
    assert (
        manifest.inputs == plan.request.inputs and manifest.fingerprint == plan.request.fingerprint
    )
    assert (
        figures.version,
        figures.compared_with,
        figures.num_checked,
        figures.top1_agreement,
    ) == (1, None, 16, 1.0)
    assert figures.metrics["accuracy"] == 0.87
    [move] = sandbox.registry.read_history().moves
    assert move.version == 1 and "accuracy 0.8700 is at least 0.7000" in move.reason


def test_a_better_model_takes_the_place_of_the_champion(sandbox):
    sandbox.publish("fair")
    sandbox.publish("good")
    assert sandbox.registry.find_champion().number == 2
    assert (
        ModelFigures.model_validate(
            sandbox.registry.find_champion().read_manifest().figures
        ).compared_with
        == 1
    )


def test_a_reference_that_the_model_does_not_confirm_stops_the_publication(sandbox):
    train = Path(sandbox.train("good"))
    np.save(train.parent / REFERENCE_OUTPUTS, np.load(train.parent / REFERENCE_OUTPUTS)[:, ::-1])
    write_manifest(
        train.parent, read_manifest(train).model_copy(update={"files": list_files(train.parent)})
    )
    refused(
        sandbox,
        sandbox.plan("export", str(train), sandbox.evaluate(str(train))),
        "not the model that was trained",
    )


def test_a_reference_that_was_changed_after_training_is_named(sandbox):
    plan = planned(sandbox, "good")
    file = Path(plan.request.inputs["train"].uri).parent / REFERENCE_OUTPUTS
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    refused(sandbox, plan, r"reference\.npy has another checksum")


def test_a_challenger_that_has_not_passed_the_gate_is_not_published(sandbox):
    train = sandbox.train("good")
    refused(
        sandbox,
        sandbox.plan("export", train, sandbox.evaluate(train, evaluate__gate=STRICT)),
        "the gate was not passed",
    )


def test_the_evaluation_of_another_model_does_not_count(sandbox):
    evaluation = sandbox.evaluate(sandbox.train("good"))
    refused(
        sandbox,
        sandbox.plan("export", sandbox.train("poor"), evaluation),
        "the evaluation of another model",
    )


def test_a_candidate_that_was_replaced_after_the_run_was_planned_is_not_published(sandbox):
    plan = planned(sandbox, "good")
    entry = plan.request.inputs["train"]
    changed = plan.request.model_copy(
        update={"inputs": {**plan.request.inputs, "train": Input(uri=entry.uri, digest="0" * 32)}}
    )
    refused(sandbox, dataclasses.replace(plan, request=changed), "when this job was planned")


@pytest.mark.models
def test_a_model_that_a_person_has_rolled_back_is_not_put_in_service_again(sandbox):
    sandbox.publish("fair")
    train = sandbox.publish("good")
    sandbox.registry.roll_back()
    again = sandbox.plan(
        "export", train, sandbox.evaluate(train, evaluate__batch_size=64), export__tolerance=1e-3
    )
    assert not again.is_cached
    code, folder = sandbox.run(again, attempt="again")
    assert code == ExitCode.SUCCESS and read_manifest(folder / NAME).figures["version"] == 2
    assert numbers(sandbox) == [1, 2] and sandbox.registry.find_champion().number == 1
    message = (
        ProgressReader(open_root(sandbox.root) / "again/progress.jsonl").read_new()[-1].message
    )
    assert "in service before, as version 2, and was replaced by version 1" in message


@pytest.mark.models
def test_the_champion_is_not_published_again_when_only_the_gate_changes(sandbox):
    train = sandbox.publish("good")
    evaluation = sandbox.evaluate(train, evaluate__gate=[{"metric": "accuracy", "at_least": 0.6}])
    code, _ = sandbox.run(sandbox.plan("export", train, evaluation))
    assert (
        code == ExitCode.SUCCESS
        and numbers(sandbox) == [1]
        and len(sandbox.registry.read_history().moves) == 1
    )


def test_a_champion_that_was_promoted_meanwhile_stays_and_the_job_says_who_it_is(sandbox):
    late = planned(sandbox, "good")
    sandbox.publish("fair")
    with pytest.raises(
        OutOfDate, match="version 1 is in service now, and version 2 was compared with no version"
    ):
        sandbox.run(late)
    assert sandbox.registry.find_champion().number == 1 and numbers(sandbox) == [1, 2]


def test_a_champion_of_another_pipeline_is_not_replaced_and_nothing_is_published(sandbox):
    """The evaluation was made while the config still shared the model."""
    first = planned(sandbox, "fair")
    pets = first.request.model_copy(update={"pipeline": "pets"})
    sandbox.run(dataclasses.replace(first, request=pets))
    train = sandbox.train("good")
    evaluation = sandbox.evaluate(train, export__shared_with=["pets"])
    with pytest.raises(ConfigError, match="comes from pipeline pets, and this is digits"):
        sandbox.run(sandbox.plan("export", train, evaluation))
    assert sandbox.registry.find_champion().number == 1 and numbers(sandbox) == [1]
    with pytest.raises(ConfigError, match="comes from pipeline pets, and this is digits"):
        sandbox.plan("evaluate", train)
    sandbox.run(sandbox.plan("export", train, evaluation, export__shared_with=["pets"]))
    assert sandbox.registry.find_champion().number == 2


def test_a_damaged_version_is_not_put_in_service(sandbox):
    plan = planned(sandbox, "good")
    sandbox.run(plan)
    shutil.rmtree(sandbox.registry.location / "aliases")
    file = sandbox.registry.location / "1" / "variables" / "variables.index"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"1/variables/variables\.index has another checksum"):
        sandbox.run(plan)
    assert sandbox.registry.find_champion() is None


def test_an_export_whose_version_was_removed_is_made_again(sandbox):
    train = sandbox.publish("good")
    shutil.rmtree(sandbox.registry.location)
    plan = sandbox.plan("export", train, sandbox.evaluate(train))
    assert plan.damage == ("version 1 of the model digits is gone",)


@pytest.mark.models
def test_the_champion_in_other_formats_is_a_new_version_that_takes_its_place(sandbox):
    train = sandbox.publish("good")
    for tolerance in (1e-4, 1e-3):
        sandbox.run(
            sandbox.plan(
                "export",
                train,
                sandbox.evaluate(train),
                export__card={"Intended use": "letters"},
                export__tolerance=tolerance,
            )
        )
    assert numbers(sandbox) == [1, 2] and sandbox.registry.find_champion().number == 2
    assert [move.version for move in sandbox.registry.read_history().moves] == [1, 2]


@pytest.mark.models
def test_a_model_that_was_rolled_back_does_not_come_back_in_other_formats(sandbox):
    sandbox.publish("fair")
    train = sandbox.publish("good")
    sandbox.registry.roll_back()
    evaluation = sandbox.evaluate(train, evaluate__batch_size=64)
    sandbox.run(
        sandbox.plan("export", train, evaluation, export__card={"Intended use": "letters"}),
        attempt="again",
    )
    assert numbers(sandbox) == [1, 2, 3] and sandbox.registry.find_champion().number == 1


@pytest.mark.models
def test_old_versions_are_retired_but_never_the_champion_before(sandbox):
    for model in ("poor", "fair", "good"):
        sandbox.publish(
            model, evaluate__gate=[{"metric": "accuracy", "at_least": 0.1}], export__keep_versions=1
        )
    assert numbers(sandbox) == [2, 3]
    assert sandbox.registry.find_by_alias("previous").number == 2


def test_progress_names_the_steps(sandbox):
    sandbox.run(planned(sandbox, "good"), attempt="export")
    events = ProgressReader(open_root(sandbox.root) / "export/progress.jsonl").read_new()
    assert [event.phase for event in events] == ["check", "check", "serve", "publish", "promote"]
    assert events[-1].message == "version 1 is in service"


def test_a_registry_on_s3_is_published_to_compared_with_and_promoted_in(sandbox, s3_uri):
    """Two runs: the second one's challenger is evaluated against the champion
    that lies in the store."""
    place = {"export__registry": s3_uri.removesuffix("/digits")}
    sandbox.publish("fair", **place)
    train = sandbox.publish("good", **place)
    registry = Registry(s3_uri)
    assert [version.number for version in registry.list_versions()] == [
        1,
        2,
    ] and registry.find_champion().number == 2
    figures = ModelFigures.model_validate(registry.find_champion().read_manifest().figures)
    assert figures.compared_with == 1 and figures.metrics["accuracy"] == 0.87
    local = registry.find_champion().fetch()
    assert find_damage(local / NAME, read_manifest(local / NAME), checksums=True) == []
    evaluation = sandbox.evaluate(train, **place)
    again = sandbox.plan("export", train, evaluation, **place)
    assert again.is_cached and numbers(sandbox) == []
    registry.get_version(2).remove()
    assert sandbox.plan("export", train, evaluation, **place).damage == (
        "version 2 of the model digits is gone",
    )
