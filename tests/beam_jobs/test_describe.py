"""Statistics, schema and page of a data set, and what happens when the next one is not like it."""

from __future__ import annotations

import json
import shutil

import cv2
import numpy as np
import pytest

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import Input, Manifest, read_manifest, write_manifest
from pipeline_ops.errors import ExitCode
from pipeline_ops.registry.registry import Registry

ALLOW_ALL = ["new_classes", "missing_classes", "task", "channels"]


def statistics(outcome) -> dict:
    return json.loads((outcome.artifact / "statistics.json").read_text())


def publish_champion(pipeline, data_manifest) -> None:
    """A champion that was trained on a data set."""
    config = load_config(pipeline.config_file)
    registry = Registry(config.registry)

    def manifest(job: str, inputs) -> Manifest:
        fingerprint = Fingerprint(
            config={"of": str(data_manifest)}, inputs={}, code={}, versions={}
        )
        return Manifest(
            job=job,
            pipeline="tiny",
            fingerprint=fingerprint,
            fingerprint_digest=fingerprint.digest,
            inputs=inputs,
            files=[],
        )

    training = pipeline.folder / "training" / data_manifest.parent.name
    training.mkdir(parents=True)
    write_manifest(
        training,
        manifest(
            "train",
            {
                "preprocess": Input(
                    uri=str(data_manifest), digest=read_manifest(data_manifest).digest
                )
            },
        ),
    )
    version = registry.publish(
        f"training {data_manifest}",
        lambda folder, number: write_manifest(
            folder,
            manifest(
                "export",
                {
                    "train": Input(
                        uri=str(training / "manifest.json"), digest=f"training {data_manifest}"
                    )
                },
            ),
        ),
    )
    registry.promote(version.number, "test")


def darken(animals) -> None:
    for file in animals.raw.rglob("*.png"):
        cv2.imwrite(str(file), cv2.imread(str(file), cv2.IMREAD_GRAYSCALE) // 4)


# Statistics


def test_statistics_are_those_of_the_images_by_split(animals):
    found = statistics(animals.run())
    assert {
        split: entry["num_examples"] for split, entry in found["splits"].items()
    } == animals.run().manifest.figures["num_examples"]
    brightness = [
        cv2.imread(str(file), cv2.IMREAD_GRAYSCALE).mean() for file in animals.raw.rglob("*.png")
    ]
    histograms = [entry["features"]["brightness"] for entry in found["splits"].values()]
    assert sum(histogram["total"] for histogram in histograms) / 60 * 1e-6 == pytest.approx(
        np.mean(brightness), abs=1e-6
    )
    assert max(histogram["maximum"] for histogram in histograms) == pytest.approx(max(brightness))
    assert (
        found["splits"]["train"]["features"]["image_width"]["counts"]
        == [found["splits"]["train"]["num_examples"]] + [0] * 21
    )
    assert len(found["edges"]["image_width"]) == 21


def test_not_a_byte_of_statistics_and_page_depends_on_the_runner(animals):
    animals.add("cat/broken.png", b"no image")
    found = []
    for workers in (1, 2):
        outcome = animals.run(runner={"workers": workers}, rejects={"max_count": 1})
        found.append(outcome.contents)
        shutil.rmtree(outcome.artifact)
    assert found[1] == found[0]


def test_duplicates_are_found_within_and_across_splits(animals, encode):
    for index in range(12):
        animals.add(f"cat/copy{index}.png", encode(seed=1))
    duplicates = statistics(animals.run())["duplicates"]
    assert (
        duplicates["num_groups"],
        duplicates["num_groups_across_splits"],
        duplicates["num_superfluous"],
    ) == (1, 1, 12)
    [group] = duplicates["groups"]
    assert group["keys"] == sorted(
        ["cat/001.png", *(f"cat/copy{index}.png" for index in range(12))]
    )
    assert len(set(group["splits"])) > 1


def test_a_record_in_quarantine_is_no_duplicate(animals):
    animals.add("cat/a.png", b"no image")
    animals.add("dog/b.png", b"no image")
    assert statistics(animals.run(rejects={"max_count": 2}))["duplicates"]["num_groups"] == 0


# Schema


def test_the_schema_is_inferred_on_the_first_run(animals):
    outcome = animals.run()
    assert json.loads((outcome.artifact / "schema.json").read_text()) == {
        "task": "classification",
        "class_names": ["cat", "dog"],
        "channels": 1,
        "height": [8, 8],
        "width": [8, 8],
        "has_boxes": False,
    }
    assert statistics(outcome)["comparison"] is None


def add_birds(animals, encode) -> None:
    for index in range(20):
        animals.add(f"bird/{index}.png", encode(seed=1000 + index))


def test_a_new_class_fails_and_says_how_to_allow_it(animals, encode):
    animals.run()
    add_birds(animals, encode)
    outcome = animals.run()
    assert outcome.exit_code is ExitCode.DATA
    assert "the data differ from the previous data set" in outcome.message
    assert (
        "new classes: bird (allow it with preprocess.allowed_changes: [new_classes])"
        in outcome.message
    )
    assert not outcome.artifact.exists()
    assert "new classes: bird" in (outcome.attempt.folder.local / "data.html").read_text()


def test_what_the_config_allows_is_reported(animals, encode):
    animals.run()
    add_birds(animals, encode)
    shutil.rmtree(animals.raw / "dog")
    outcome = animals.run(
        allowed_changes=ALLOW_ALL, stages=["decode", {"resize": {"height": 8, "width": 8}}]
    )
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    violations = statistics(outcome)["comparison"]["schema_violations"]
    assert [
        (violation["rule"], violation["text"], violation["fails"]) for violation in violations
    ] == [
        ("new_classes", "new classes: bird", False),
        ("missing_classes", "missing classes: dog", False),
        ("channels", "images have 3 channels, had 1", False),
    ]


def test_a_missing_class_and_other_channels_fail(animals, encode):
    add_birds(animals, encode)
    animals.run()
    shutil.rmtree(animals.raw / "dog")
    outcome = animals.run(stages=["decode", {"resize": {"height": 8, "width": 8}}])
    assert outcome.exit_code is ExitCode.DATA
    assert "missing classes: dog" in outcome.message
    assert "images have 3 channels, had 1" in outcome.message


# The reference


def test_an_unchanged_second_run_has_nothing_to_do(animals):
    animals.run()
    assert animals.plan().is_cached


@pytest.mark.parametrize("action", ["report", "fail"])
def test_a_run_after_a_change_is_cached_too_and_keeps_its_reference(animals, encode, action):
    drift = {"action": action, "max_js_distance": 1.0, "max_linf_distance": 1.0}
    first = animals.run(drift=drift)
    animals.add("cat/new.png", encode(seed=500))
    second = animals.run(drift=drift)
    assert second.exit_code is ExitCode.SUCCESS, second.message
    assert second.manifest.inputs["previous_data"].digest == first.manifest.digest
    assert animals.plan(drift=drift).is_cached


def test_the_champions_data_counts_before_a_newer_data_set(animals, encode):
    first = animals.run()
    publish_champion(animals, first.artifact / "manifest.json")
    animals.add("cat/new.png", encode(seed=500))
    animals.run()
    animals.add("cat/newer.png", encode(seed=501))
    third = animals.run()
    assert third.manifest.inputs["champion_data"].digest == first.manifest.digest
    assert statistics(third)["comparison"]["reference"] == "champion_data"
    assert animals.plan().is_cached


def test_the_data_of_the_champion_itself_stays_cached(animals, encode):
    animals.run()
    animals.add("cat/new.png", encode(seed=500))
    second = animals.run()
    publish_champion(animals, second.artifact / "manifest.json")
    plan = animals.plan()
    assert plan.is_cached
    assert plan.request.inputs == second.manifest.inputs


def test_another_reference_with_the_same_schema_is_the_same_question_where_drift_is_only_reported(
    animals, encode
):
    first = animals.run()
    animals.add("cat/new.png", encode(seed=500))
    animals.run()
    animals.add("cat/newer.png", encode(seed=501))
    before = animals.plan().request.fingerprint
    publish_champion(animals, first.artifact / "manifest.json")
    assert animals.plan().request.fingerprint == before
    fails = {"action": "fail", "max_js_distance": 0.9}
    assert "reference statistics" in animals.plan(drift=fails).request.fingerprint.inputs
    assert "reference statistics" not in before.inputs


def test_without_a_rule_that_can_fail_the_reference_is_no_part_of_the_fingerprint(animals, encode):
    animals.run()
    animals.add("cat/new.png", encode(seed=500))
    plan = animals.plan(allowed_changes=ALLOW_ALL)
    assert set(plan.request.fingerprint.inputs) == {"raw files", "base"}
    assert set(plan.request.inputs) == {"previous_data", "base"}


def test_another_champion_is_another_question_where_drift_can_fail_and_is_answered_without_building(
    animals, encode
):
    drift = {"action": "fail", "max_js_distance": 1.0, "max_linf_distance": 1.0}
    first = animals.run(drift=drift)
    animals.add("cat/new.png", encode(seed=500))
    second = animals.run(drift=drift)
    animals.add("cat/newer.png", encode(seed=501))
    third = animals.run(drift=drift)
    for champion, is_known in [
        (first, False),
        (second, True),
    ]:  # of the second the third has been asked already
        publish_champion(animals, champion.artifact / "manifest.json")
        plan = animals.plan(drift=drift)
        assert plan.is_cached == is_known
        if not is_known:
            assert plan.reason == "inputs reference statistics changed"
            outcome = animals.run(plan)
            assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
            assert outcome.manifest.inputs["base"].digest == third.manifest.digest
            assert (
                outcome.shards,
                [moment for moment in outcome.progress if moment.phase == "preprocess"],
            ) == (third.shards, [])
            assert animals.plan(drift=drift).is_cached


def test_a_damaged_data_set_is_no_reference(animals, encode):
    first = animals.run()
    animals.add("cat/new.png", encode(seed=500))
    second = animals.run()
    next(second.artifact.glob("*-g0002-*.tfrecord")).write_bytes(b"")
    plan = animals.plan()
    assert plan.damage
    assert {name: entry.digest for name, entry in plan.request.inputs.items()} == dict.fromkeys(
        ("previous_data", "base"), first.manifest.digest
    )


def test_a_reference_that_vanished_since_the_plan_is_named(animals, encode):
    first = animals.run()
    animals.add("cat/new.png", encode(seed=500))
    plan = animals.plan()
    shutil.rmtree(first.artifact)
    outcome = animals.run(plan)
    assert outcome.exit_code is ExitCode.DATA
    assert f"{first.artifact / 'manifest.json'}: there is no such manifest" in outcome.message


def test_an_artifact_without_a_schema_is_no_reference(animals, encode):
    first = animals.run()
    manifest = first.manifest
    write_manifest(
        first.artifact,
        manifest.model_copy(
            update={"files": [file for file in manifest.files if file.path != "schema.json"]}
        ),
    )
    animals.add("cat/new.png", encode(seed=500))
    assert set(animals.plan().request.inputs) == {"base"}


# Drift


def test_a_drift_is_reported_with_its_distance(animals):
    animals.run()
    darken(animals)
    outcome = animals.run()
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    drift = {entry["feature"]: entry for entry in statistics(outcome)["comparison"]["drift"]}
    assert drift["brightness"]["is_above"]
    assert drift["brightness"]["jensen_shannon"] > 0.9
    assert not drift["labels"]["is_above"]
    assert "Drifted from the previous data set: " in (outcome.artifact / "data.html").read_text()


def test_a_drift_can_fail_the_task_with_features_and_numbers(animals):
    animals.run()
    darken(animals)
    outcome = animals.run(drift={"action": "fail", "max_js_distance": 0.5})
    assert outcome.exit_code is ExitCode.DATA
    assert (
        "brightness has drifted: Jensen-Shannon 1.000 (at most 0.5), L-infinity" in outcome.message
    )
    assert "labels" not in outcome.message


# The page
