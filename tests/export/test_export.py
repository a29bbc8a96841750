"""The export job: what is published, what is put in service, and what a kill leaves behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from signing_keys import make_pair

from pipeline_ops.artifacts.manifest import (
    NAME,
    Input,
    find_damage,
    list_files,
    read_manifest,
    write_manifest,
)
from pipeline_ops.artifacts.results import REFERENCE_OUTPUTS, ModelFigures
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.jobs.progress import ProgressReader
from pipeline_ops.jobs.request import read_status
from pipeline_ops.planning.plan import JobPlan
from pipeline_ops.registry.minisign import read_public_key
from pipeline_ops.registry.registry import Registry

STRICT = [{"metric": "accuracy", "at_least": 0.99}]


def planned(workshop, model: str, tag: str = "", **overrides) -> JobPlan:
    """The export of a model that was trained and evaluated just now."""
    train = workshop.train(model, tag=tag)
    return workshop.plan("export", train, workshop.evaluate(train), **overrides)


def numbers(workshop) -> list[int]:
    return [version.number for version in workshop.registry.versions()]


def refused(workshop, plan: JobPlan, complaint: str) -> None:
    """The export fails with the complaint and leaves nothing."""
    with pytest.raises(DataError, match=complaint):
        workshop.run(plan)
    assert numbers(workshop) == [] and workshop.registry.champion() is None
    assert not Path(plan.request.artifact).exists()


def test_a_version_has_the_layout_that_tensorflow_serving_loads(workshop):
    import tensorflow as tf

    code, folder = workshop.run(planned(workshop, "good"))
    assert code == ExitCode.SUCCESS
    version = workshop.registry.champion()
    published = workshop.root / "models" / "digits" / "1"
    assert version.folder == str(published)
    assert {"saved_model.pb", "variables/variables.index", "manifest.json"} <= {
        str(path.relative_to(published)) for path in published.rglob("*")
    }
    assert "serving_default" in tf.saved_model.load(version.folder).signatures
    assert find_damage(version.uri, version.manifest(), checksums=True) == []
    assert ModelFigures.model_validate(version.manifest().figures) == ModelFigures.model_validate(
        read_manifest(folder / NAME).figures
    )


def test_a_version_is_signed_by_the_key_that_the_config_names(workshop, tmp_path):
    public, secret = make_pair(tmp_path / "keys")
    code, _ = workshop.run(planned(workshop, "good", export__signing_key=str(secret)))
    assert code == ExitCode.SUCCESS
    workshop.registry.champion().copy(
        tmp_path / "copy", tmp_path / "cache", read_public_key(public)
    )
    assert (tmp_path / "copy" / "saved_model.pb").exists()


def test_a_key_that_can_not_sign_is_refused_before_anything_is_made(workshop, tmp_path):
    with pytest.raises(ConfigError, match="can't be read as a secret key: No such file"):
        workshop.run(planned(workshop, "good", export__signing_key=str(tmp_path / "no-key")))
    assert numbers(workshop) == []


def test_the_manifest_of_a_version_says_where_it_comes_from_and_how_well_it_was_checked(workshop):
    plan = planned(workshop, "good")
    workshop.run(plan)
    manifest = workshop.registry.champion().manifest()
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
    [move] = workshop.registry.history()
    assert move.version == 1 and "accuracy 0.8700 is at least 0.7000" in move.reason


def test_a_better_model_takes_the_place_of_the_champion(workshop):
    workshop.publish("fair")
    workshop.publish("good")
    assert workshop.registry.champion().number == 2
    assert (
        ModelFigures.model_validate(workshop.registry.champion().manifest().figures).compared_with
        == 1
    )


def test_a_reference_that_the_model_does_not_confirm_stops_the_publication(workshop):
    train = Path(workshop.train("good"))
    np.save(train.parent / REFERENCE_OUTPUTS, np.load(train.parent / REFERENCE_OUTPUTS)[:, ::-1])
    write_manifest(
        train.parent, read_manifest(train).model_copy(update={"files": list_files(train.parent)})
    )
    refused(
        workshop,
        workshop.plan("export", str(train), workshop.evaluate(str(train))),
        "not the model that was trained",
    )


def test_a_reference_that_was_changed_after_training_is_named(workshop):
    plan = planned(workshop, "good")
    file = Path(plan.request.inputs["train"].uri).parent / REFERENCE_OUTPUTS
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    refused(workshop, plan, r"reference\.npy has another checksum")


def test_a_challenger_that_has_not_passed_the_gate_is_not_published(workshop):
    train = workshop.train("good")
    refused(
        workshop,
        workshop.plan("export", train, workshop.evaluate(train, evaluate__gate=STRICT)),
        "the gate was not passed",
    )


def test_the_evaluation_of_another_model_does_not_count(workshop):
    evaluation = workshop.evaluate(workshop.train("good"))
    refused(
        workshop,
        workshop.plan("export", workshop.train("poor"), evaluation),
        "the evaluation of another model",
    )


def test_a_candidate_that_was_replaced_after_the_run_was_planned_is_not_published(workshop):
    plan = planned(workshop, "good")
    entry = plan.request.inputs["train"]
    changed = plan.request.model_copy(
        update={"inputs": {**plan.request.inputs, "train": Input(uri=entry.uri, digest="0" * 32)}}
    )
    refused(workshop, dataclasses.replace(plan, request=changed), "when this job was planned")


def test_a_model_that_a_person_has_rolled_back_is_not_put_in_service_again(workshop):
    workshop.publish("fair")
    train = workshop.publish("good")
    workshop.registry.roll_back()
    again = workshop.plan(
        "export", train, workshop.evaluate(train, evaluate__batch=64), export__tolerance=1e-3
    )
    assert not again.is_cached
    code, folder = workshop.run(again, attempt="again")
    assert code == ExitCode.SUCCESS and read_manifest(folder / NAME).figures["version"] == 2
    assert numbers(workshop) == [1, 2] and workshop.registry.champion().number == 1
    said = ProgressReader(workshop.root / "again" / "progress.jsonl").new()[-1].message
    assert "version 2 was in service before and was replaced by version 1" in said


def test_the_champion_is_not_published_again_when_only_the_gate_changes(workshop):
    train = workshop.publish("good")
    evaluation = workshop.evaluate(train, evaluate__gate=[{"metric": "accuracy", "at_least": 0.6}])
    code, _ = workshop.run(workshop.plan("export", train, evaluation))
    assert (
        code == ExitCode.SUCCESS
        and numbers(workshop) == [1]
        and len(workshop.registry.history()) == 1
    )


def test_a_champion_that_was_promoted_meanwhile_stays_and_the_job_says_who_it_is(workshop):
    late = planned(workshop, "good")
    workshop.publish("fair")
    with pytest.raises(
        DataError, match="version 2 was chosen over no version, but in service is version 1 by now"
    ):
        workshop.run(late)
    assert workshop.registry.champion().number == 1 and numbers(workshop) == [1, 2]


def test_a_damaged_version_is_not_put_in_service(workshop):
    plan = planned(workshop, "good")
    workshop.run(plan)
    shutil.rmtree(workshop.registry.place / "aliases")
    file = workshop.registry.place / "1" / "variables" / "variables.index"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"1/variables/variables\.index has another checksum"):
        workshop.run(plan)
    assert workshop.registry.champion() is None


def test_an_export_whose_version_was_removed_is_made_again(workshop):
    train = workshop.publish("good")
    shutil.rmtree(workshop.registry.place)
    plan = workshop.plan("export", train, workshop.evaluate(train))
    assert plan.damage == ("version 1 of the model digits is gone",)


def test_two_exporters_at_once_get_two_versions_and_one_champion(workshop):
    plans = [planned(workshop, "good"), planned(workshop, "fair")]
    started = [workshop.start(plan, attempt=f"attempt-{index}") for index, plan in enumerate(plans)]
    codes = [process.wait(240) for process, _ in started]
    statuses = [read_status(attempt) for _, attempt in started]
    assert sorted(codes) == [ExitCode.SUCCESS, ExitCode.DATA], statuses
    assert numbers(workshop) == [1, 2]
    assert all(
        find_damage(version.uri, version.manifest(), checksums=True) == []
        for version in workshop.registry.versions()
    )
    winner, loser = statuses[codes.index(0)], statuses[codes.index(ExitCode.DATA)]
    assert read_manifest(winner.manifest).figures["version"] == workshop.registry.champion().number
    assert "was chosen over no version" in loser.message


def test_the_same_export_twice_at_once_publishes_once(workshop):
    plan = planned(workshop, "good")
    started = [workshop.start(plan, attempt=f"attempt-{index}") for index in range(2)]
    codes = sorted(process.wait(240) for process, _ in started)
    assert codes in (
        [0, 0],
        [0, 75],
    )  # the second was told that the first is at it, or came when all was done
    assert numbers(workshop) == [1] and workshop.registry.champion().number == 1


def kill(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_kill_between_publishing_and_promoting_leaves_a_version_that_the_next_try_promotes(
    workshop,
):
    plan = planned(workshop, "good")
    _, folder = workshop.run(plan)
    shutil.rmtree(folder)
    shutil.rmtree(
        workshop.registry.place / "aliases"
    )  # neither the move nor the artifact was written yet
    assert numbers(workshop) == [1] and workshop.registry.champion() is None
    code, folder = workshop.run(plan)
    assert (
        code == ExitCode.SUCCESS
        and numbers(workshop) == [1]
        and workshop.registry.champion().number == 1
    )
    assert (folder / NAME).exists()


def test_a_kill_after_promoting_is_repaired_by_the_next_try(workshop):
    plan = planned(workshop, "good")
    _, folder = workshop.run(plan)
    (folder / NAME).unlink()
    shutil.rmtree(folder)
    workshop.run(plan)
    assert (
        numbers(workshop) == [1]
        and len(workshop.registry.history()) == 1
        and (folder / NAME).exists()
    )


@pytest.mark.parametrize("after_seconds", [0.4, 1.6, 2.0])
def test_a_kill_at_any_time_is_repaired_by_the_next_try(workshop, after_seconds):
    plan = planned(workshop, "good")
    process, _ = workshop.start(plan)
    time.sleep(after_seconds)
    kill(process)
    for version in workshop.registry.versions():
        assert find_damage(version.uri, version.manifest(), checksums=True) == []
    if not Path(plan.request.artifact).exists():
        workshop.run(plan)
    assert numbers(workshop) == [1] and workshop.registry.champion().number == 1
    assert [path.name for path in workshop.registry.place.glob(".*.staging")] == []


def test_the_champion_in_other_formats_is_a_new_version_that_takes_its_place(workshop):
    train = workshop.publish("good")
    for tolerance in (1e-4, 1e-3):
        workshop.run(
            workshop.plan(
                "export",
                train,
                workshop.evaluate(train),
                export__card={"intended_use": "letters"},
                export__tolerance=tolerance,
            )
        )
    assert numbers(workshop) == [1, 2] and workshop.registry.champion().number == 2
    assert [move.version for move in workshop.registry.history()] == [1, 2]


def test_a_model_that_was_rolled_back_does_not_come_back_in_other_formats(workshop):
    workshop.publish("fair")
    train = workshop.publish("good")
    workshop.registry.roll_back()
    evaluation = workshop.evaluate(train, evaluate__batch=64)
    workshop.run(
        workshop.plan("export", train, evaluation, export__card={"intended_use": "letters"}),
        attempt="again",
    )
    assert numbers(workshop) == [1, 2, 3] and workshop.registry.champion().number == 1


def test_old_versions_are_retired_but_never_the_champion_before(workshop):
    for model in ("poor", "fair", "good"):
        workshop.publish(
            model, evaluate__gate=[{"metric": "accuracy", "at_least": 0.1}], export__keep_versions=1
        )
    assert numbers(workshop) == [2, 3]
    assert workshop.registry.previous().number == 2


def test_progress_names_the_steps(workshop):
    workshop.run(planned(workshop, "good"), attempt="export")
    moments = ProgressReader(workshop.root / "export" / "progress.jsonl").new()
    assert [moment.phase for moment in moments] == ["check", "serve", "publish", "promote"]
    assert moments[-1].message == "version 1 is in service"


def test_a_registry_on_s3_is_published_to_compared_with_and_promoted_in(workshop, s3_place):
    """Two runs: the second one's challenger is evaluated against the champion
    that lies in the store."""
    place = {"export__registry": s3_place.removesuffix("/digits")}
    workshop.publish("fair", **place)
    train = workshop.publish("good", **place)
    registry = Registry(s3_place)
    assert [version.number for version in registry.versions()] == [
        1,
        2,
    ] and registry.champion().number == 2
    figures = ModelFigures.model_validate(registry.champion().manifest().figures)
    assert figures.compared_with == 1 and figures.metrics["accuracy"] == 0.87
    local = registry.champion().fetch(workshop.root / "copy")
    assert find_damage(local / NAME, read_manifest(local / NAME), checksums=True) == []
    evaluation = workshop.evaluate(train, **place)
    again = workshop.plan("export", train, evaluation, **place)
    assert again.is_cached and numbers(workshop) == []
    registry.store.remove(2)
    assert workshop.plan("export", train, evaluation, **place).damage == (
        "version 2 of the model digits is gone",
    )
