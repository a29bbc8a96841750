"""Data sets that continue one another: repeated runs of the job on raw files that change."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from beam_jobs.planning.generations import read_index
from pipeline_ops.contract.dataset import (
    KEY,
    SPLITS,
    DatasetFigures,
    list_removed_positions,
    list_shards,
)
from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ExitCode
from pipeline_ops.system.processes import find_group_members


@pytest.fixture
def read_keys(read_records):
    """What a reader of a data set gets: the key of every example, by split."""

    def key_of(example: bytes) -> str:
        return (
            example.split(KEY.encode())[1].split(b".png")[0].split(b"\n")[-1][1:].decode() + ".png"
        )

    def read(outcome) -> dict[str, list[str]]:
        found = {}
        for split in SPLITS:
            shards = zip(
                list_shards(outcome.manifest, split),
                list_removed_positions(outcome.manifest, split),
                strict=True,
            )
            found[split] = [
                key_of(example)
                for shard, removed in shards
                for position, example in enumerate(read_records(shard.locate(outcome.artifact)))
                if position not in removed
            ]
        return found

    return read


def figures(outcome) -> DatasetFigures:
    return DatasetFigures.model_validate(outcome.manifest.figures)


def num_processed(outcome) -> int:
    return max(
        (moment.done or 0 for moment in outcome.progress if moment.phase == "preprocess"), default=0
    )


def change(pipeline, encode) -> None:
    """One file new, one changed, one gone, one re-labelled."""
    pipeline.add("cat/new.png", encode(seed=100))
    pipeline.add("dog/002.png", encode(seed=101))
    (pipeline.raw / "dog" / "004.png").unlink()
    (pipeline.raw / "dog" / "006.png").rename(pipeline.raw / "cat" / "006.png")


def test_only_changed_files_are_processed_and_shards_that_stay_are_not_written_again(
    animals, encode, read_keys
):
    first = animals.make()
    change(animals, encode)
    second = animals.make()
    assert num_processed(second) == 3
    assert figures(second).generation == 2
    assert sum(figures(second).num_examples.values()) == 60
    assert sum(map(len, figures(second).removed.values())) == 3
    later = {name for name in second.shards if "-g0002-" in name}
    assert (
        later
        and {name: second.shards[name] for name in second.shards.keys() - later} == first.shards
    )
    written = {path.name.removeprefix("raw-") for path in second.artifact.glob("*.tfrecord")}
    assert written == later
    wanted = {
        f"{label}/{path.name}"
        for label in ("cat", "dog")
        for path in (animals.raw / label).iterdir()
    }
    keys = [key for found in read_keys(second).values() for key in found]
    assert sorted(keys) == sorted(wanted)


ABOUT_OTHERS = {
    "generation",
    "removed",
    "seconds_by_stage",
    "came",
    "left",
    "drift",
    "drift_limits",
}


def said_of(outcome) -> tuple:
    """All that a data set says about itself, but what is about its generations, the time, and
    other data sets."""
    return (
        figures(outcome).model_dump(exclude=ABOUT_OTHERS),
        described(outcome),
        outcome.contents["schema.json"],
        [line | {"file": bool(line["file"])} for line in outcome.quarantine],
        outcome.bad_bytes,
    )


def described(outcome) -> dict:
    return {
        name: value
        for name, value in json.loads(outcome.contents["statistics.json"]).items()
        if name != "comparison"
    }


def assert_second_says_what_a_first_run_says(pipeline, **overrides) -> None:
    found = []
    for generation in (2, 1):
        outcome = pipeline.make(**overrides)
        assert figures(outcome).generation == generation
        found.append(said_of(outcome))
        shutil.rmtree(pipeline.folder / "root" / "artifacts")
    assert found[0] == found[1]


def test_after_changes_figures_statistics_and_quarantine_are_those_of_a_first_run(animals, encode):
    overrides = {
        "rejects": {"max_count": 3},
        "stages": [
            {"decode": {"channels": 1}},
            {"tile": {"height": 8, "width": 8}, "served": "by_client"},
        ],
    }
    animals.add("cat/broken.png", b"no image")
    animals.add("dog/truncated.png", encode(seed=9)[:-30])
    animals.add("cat/large.png", encode(16, 12, seed=5))
    animals.add("stray.txt", b"shopping list")
    animals.add("cat/copy.png", encode(seed=1))
    animals.make(**overrides)
    change(animals, encode)
    (animals.raw / "dog" / "truncated.png").unlink()
    animals.add("dog/text.png", b"text")
    assert_second_says_what_a_first_run_says(animals, **overrides)


def test_after_changes_the_statistics_of_boxes_are_those_of_a_first_run(pipeline, encode):
    def add(number: int, seed: int) -> dict:
        pipeline.add(f"{number}.png", encode(20, 30, 1, seed))
        boxes = [
            {
                "xmin": index / 7,
                "ymin": index,
                "xmax": 10.1 + seed % 9,
                "ymax": 12 + index / 3,
                "label": f"class {index % 2}",
            }
            for index in range(seed % 4)
        ]
        return {"path": f"{number}.png", "boxes": boxes}

    def annotate() -> None:
        pipeline.add(
            "boxes.jsonl", b"\n".join(json.dumps(line).encode() for line in lines.values())
        )

    source = {"type": "jsonl", "path": "../raw", "manifest": "boxes.jsonl", "task": "detection"}
    overrides = {"source": source, "stages": [{"decode": {"channels": 1}}]}
    lines = {number: add(number, number) for number in range(60)}
    annotate()
    pipeline.make(**overrides)
    lines |= {number: add(number, 100 + number) for number in (7, 60, 61)}
    del lines[11]
    lines[14]["boxes"].pop()
    annotate()
    assert_second_says_what_a_first_run_says(pipeline, **overrides)


def test_the_bytes_of_a_record_that_is_rejected_as_before_are_taken_over(animals, encode):
    allowed = {"rejects": {"max_count": 2}}
    animals.add("cat/broken.png", b"no image")
    first = animals.make(**allowed)
    for generation in (2, 3):
        animals.add(f"cat/new{generation}.png", encode(seed=100 + generation))
        outcome = animals.make(**allowed)
        assert (figures(outcome).generation, num_processed(outcome)) == (generation, 1)
        assert outcome.bad_bytes == first.bad_bytes == {"cat/broken.png": b"no image"}
        assert not list(outcome.artifact.glob("quarantine-*"))


def test_a_generation_whose_images_are_gone_keeps_its_name_for_its_bad_records(animals, encode):
    """A later shard of the same name would replace the file with their bytes."""
    allowed = {"rejects": {"max_count": 2}}
    animals.make(**allowed)
    animals.add("cat/broken.png", b"no image")
    animals.add("cat/new.png", encode(seed=100))
    assert figures(animals.make(**allowed)).generation == 2
    (animals.raw / "cat" / "new.png").unlink()
    animals.add("cat/text.png", b"text")
    outcome = animals.make(**allowed)
    assert outcome.bad_bytes == {"cat/broken.png": b"no image", "cat/text.png": b"text"}
    assert sum("-g0003-" in line["file"] for line in outcome.quarantine) == 1


def test_drift_after_a_removal_is_that_of_all_images(animals):
    """Not of the new ones, of which there are none."""
    first = animals.make()
    (animals.raw / "cat" / "001.png").unlink()
    second = animals.make()
    drift = json.loads(second.contents["statistics.json"])["comparison"]["drift"]
    assert {entry["feature"] for entry in drift} >= {"labels", "brightness", "image_width"}
    assert not any(entry["jensen_shannon"] > 0.2 for entry in drift)
    assert first.artifact != second.artifact


def test_a_reader_of_any_generation_finds_each_record_in_its_split(animals, encode, read_keys):
    animals.make()
    for number in range(3):
        animals.add(f"dog/more{number}.png", encode(seed=200 + number))
        (animals.raw / "cat" / f"{2 * number + 1:03d}.png").unlink()
        outcome = animals.make()
    assert figures(outcome).generation == 4
    counted = {split: len(keys) for split, keys in read_keys(outcome).items()}
    assert counted == figures(outcome).num_examples
    index = read_index(outcome.artifact / "index.jsonl.gz")
    assert {split: sorted(keys) for split, keys in read_keys(outcome).items()} == {
        split: sorted(entry.key for entry in index.values() if entry.split == split)
        for split in SPLITS
    }


def test_a_removal_alone_builds_nothing(animals):
    first = animals.make()
    (animals.raw / "cat" / "001.png").unlink()
    second = animals.make()
    assert second.shards == first.shards
    assert num_processed(second) == 0
    assert sum(map(len, figures(second).removed.values())) == 1
    assert second.manifest.digest != first.manifest.digest


def test_files_as_they_were_once_are_answered_by_the_data_set_of_then(animals):
    first = animals.make()
    os.rename(animals.raw / "cat" / "001.png", animals.folder / "aside.png")
    animals.make()
    os.rename(animals.folder / "aside.png", animals.raw / "cat" / "001.png")
    plan = animals.plan()
    assert plan.is_cached
    assert plan.manifest.parent.local == first.artifact


def test_an_unchanged_data_set_of_a_later_generation_is_cached(animals, encode):
    animals.make()
    change(animals, encode)
    second = animals.make()
    plan = animals.plan()
    assert plan.is_cached
    assert plan.manifest.parent.local == second.artifact


def test_the_request_covers_the_data_set_that_is_gone_on_from(animals, encode):
    first = animals.make()
    change(animals, encode)
    plan = animals.plan()
    assert plan.reason == "inputs raw files changed; inputs reference schema is new"
    assert plan.request.inputs["base"].digest == first.manifest.digest
    assert plan.request.fingerprint.inputs["base"] == first.manifest.digest
    assert animals.make().manifest.inputs["base"].uri == str(first.artifact / "manifest.json")


def test_another_config_goes_on_from_nothing(animals, encode):
    animals.make()
    change(animals, encode)
    assert "base" not in animals.plan(stages__1__resize__height=9).request.inputs


@pytest.mark.parametrize(
    "rules",
    [
        {"rejects": {"max_count": 5}},
        {"allowed_changes": ["new_classes"]},
        {"drift": {"action": "fail"}},
        {"balance": "by_class"},
        {"incremental": {"max_fraction": 0.2}},
    ],
    ids=str,
)
def test_other_rules_are_checked_anew_and_no_shard_is_made(animals, rules):
    animals.add("cat/broken.png", b"no image")
    first = animals.run(rejects={"max_count": 1})
    outcome = animals.run(**({"rejects": {"max_count": 1}} | rules))
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert outcome.artifact != first.artifact
    assert outcome.shards == first.shards
    assert not list(outcome.artifact.glob("*.tfrecord"))
    assert figures(outcome).num_rejected == 1


def test_stricter_rules_fail_what_was_good_enough_before(animals):
    animals.add("cat/broken.png", b"no image")
    assert animals.run(rejects={"max_count": 1}).exit_code is ExitCode.SUCCESS
    outcome = animals.run(rejects={"max_count": 0})
    assert outcome.exit_code is ExitCode.DATA
    assert "1 of 61 raw files are unusable, and the budget is 0" in outcome.message


def test_a_damaged_data_set_is_not_gone_on_from(animals, encode):
    first = animals.make()
    os.truncate(first.artifact / next(iter(first.shards)), 10)
    change(animals, encode)
    assert animals.plan().request.inputs == {}


def test_everything_anew_has_the_bytes_of_a_first_run(animals, encode):
    animals.make()
    for index in range(30):
        animals.add(f"cat/more{index}.png", encode(seed=300 + index))
    compacted = animals.make()
    assert "base" in compacted.manifest.inputs
    assert figures(compacted).generation == 1
    compares = {
        "statistics.json",
        "data.html",
    }  # they also have the distance from the previous data set
    found = [
        (
            described(compacted),
            {name: content for name, content in compacted.contents.items() if name not in compares},
        )
    ]
    shutil.rmtree(animals.folder / "root" / "artifacts")
    fresh = animals.make()
    found.append(
        (
            described(fresh),
            {name: content for name, content in fresh.contents.items() if name not in compares},
        )
    )
    assert found[0] == found[1]


def test_the_same_files_and_generations_give_the_same_bytes(animals, encode):
    first = animals.make()
    change(animals, encode)
    digests = set()
    for workers in (1, 2):
        outcome = animals.make(runner__workers=workers)
        digests.add(outcome.manifest.digest)
        shutil.rmtree(outcome.artifact)
    assert len(digests) == 1
    assert first.artifact.exists()


def test_a_changed_image_of_another_size_is_told(animals, encode):
    stages = [{"decode": {"channels": 1}}]
    animals.make(stages=stages)
    animals.add("cat/large.png", encode(9, 8))
    outcome = animals.run(stages=stages)
    assert outcome.exit_code is ExitCode.DATA
    assert "cat/large.png has (9, 8, 1)" in outcome.message


def test_an_index_that_cannot_be_read_is_told(animals, encode):
    first = animals.make()
    size = (first.artifact / "index.jsonl.gz").stat().st_size
    (first.artifact / "index.jsonl.gz").write_bytes(b"x" * size)
    change(animals, encode)
    outcome = animals.run()
    assert outcome.exit_code is ExitCode.DATA
    assert "index.jsonl.gz: the index cannot be read" in outcome.message


def examples_of(outcome) -> int:
    return sum(figures(outcome).num_examples.values())


def test_equal_images_are_removed_named_and_not_held_against_the_data(animals):
    for index in range(3):
        shutil.copy(animals.raw / "cat" / "001.png", animals.raw / "cat" / f"copy{index}.png")
    outcome = animals.make(duplicates="remove_exact")
    assert examples_of(outcome) == 60
    assert [line["reason"] for line in outcome.quarantine] == ["duplicate"] * 3
    assert outcome.bad_bytes == {}
    assert figures(outcome).rejected_by_reason == {"duplicate": 3}


def test_equal_images_of_two_classes_count_as_rejects(animals):
    shutil.copy(animals.raw / "cat" / "001.png", animals.raw / "dog" / "copy.png")
    outcome = animals.run(duplicates="remove_exact")
    assert outcome.exit_code is ExitCode.DATA
    assert "2 of 61 raw files are unusable, and the budget is 0" in outcome.message
    assert (
        "cat/001.png: conflicting_labels (duplicates: equal to dog/copy.png, which is dog, "
        "while this is cat)"
    ) in outcome.message


def test_images_that_contradict_one_another_are_kept_with_their_bytes(animals):
    content = (animals.raw / "cat" / "001.png").read_bytes()
    animals.add("dog/copy.png", content)
    outcome = animals.make(duplicates="remove_exact", rejects={"max_count": 2})
    assert outcome.bad_bytes == {"cat/001.png": content, "dog/copy.png": content}


def test_no_class_is_lost_because_all_its_images_contradict_others(animals):
    for index in range(2):
        animals.add(
            f"bird/{index}.png", (animals.raw / "cat" / f"00{2 * index + 1}.png").read_bytes()
        )
    outcome = animals.run(duplicates="remove_exact", rejects={"max_fraction": 1.0})
    assert outcome.exit_code is ExitCode.DATA
    assert "every record of bird is unusable" in outcome.message


def test_a_copy_takes_the_place_of_an_original_that_is_gone(animals, read_keys):
    shutil.copy(animals.raw / "cat" / "001.png", animals.raw / "cat" / "copy.png")
    first = animals.make(duplicates="remove_exact")
    [gone] = [line["detail"].removeprefix("equal to ") for line in first.quarantine]
    (animals.raw / gone).unlink()
    second = animals.make(duplicates="remove_exact")
    assert num_processed(second) == 1
    assert (examples_of(second), second.quarantine) == (60, [])
    keys = {key for found in read_keys(second).values() for key in found}
    assert len(keys & {"cat/001.png", "cat/copy.png"}) == 1
    assert gone not in keys


@pytest.fixture
def scenes(pipeline):
    """40 images of 64x64 that have a structure, in two classes,
    and two of them once more in another format."""
    import cv2
    import numpy as np

    for index in range(40):
        coarse = np.random.default_rng(index).integers(0, 256, (7, 7), dtype=np.uint8)
        image = cv2.resize(coarse, (64, 64), interpolation=cv2.INTER_CUBIC)
        folder = "cat" if index % 2 else "dog"
        pipeline.add(f"{folder}/{index:03d}.png", cv2.imencode(".png", image)[1].tobytes())
        if index < 2:
            pipeline.add(f"{folder}/{index:03d}.jpg", cv2.imencode(".jpg", image)[1].tobytes())
    return pipeline


@pytest.mark.parametrize("workers", [1, 2])
def test_nearly_equal_images_are_removed(scenes, workers):
    outcome = scenes.make(duplicates="remove_near", runner={"workers": workers})
    assert examples_of(outcome) == 40
    assert [line["reason"] for line in outcome.quarantine] == ["duplicate"] * 2
    assert {
        frozenset([line["key"].split(".")[0], line["detail"].split()[1].split(".")[0]])
        for line in outcome.quarantine
    } == {frozenset(["cat/001"]), frozenset(["dog/000"])}


def test_an_image_is_hashed_once_in_the_life_of_a_data_set(scenes):
    scenes.make(duplicates="remove_near")
    (scenes.raw / "cat" / "039.png").unlink()
    second = scenes.make(duplicates="remove_near")
    assert [moment.phase for moment in second.progress if moment.phase == "compare"] == []
    assert (examples_of(second), len(second.quarantine)) == (39, 2)
    os.rename(scenes.raw / "dog" / "038.png", scenes.raw / "cat" / "038.png")
    assert [
        moment.phase
        for moment in scenes.make(duplicates="remove_near").progress
        if moment.phase == "compare"
    ] == []


@pytest.fixture
def grown(large_animals):
    """Images that take some seconds, after a run on the first of them;
    returns the plan of the next run."""
    rest = large_animals.folder / "rest"
    for label in ("cat", "dog"):
        (rest / label).mkdir(parents=True)
        for index in range(20, 100):
            os.rename(large_animals.raw / label / f"{index}.jpg", rest / label / f"{index}.jpg")
    large_animals.make(incremental={"max_fraction": 1.0})
    for label in ("cat", "dog"):
        for file in (rest / label).iterdir():
            os.rename(file, large_animals.raw / label / file.name)
    return large_animals.plan(incremental={"max_fraction": 1.0})


@pytest.fixture
def half_way(large_animals, grown, wait_for):
    """Starts the next run, and returns when its first images are done."""

    process, attempt = large_animals.start(grown)
    reader = ProgressReader(attempt.progress)
    wait_for(
        lambda: (
            process.poll() is not None
            or any(moment.phase == "preprocess" and moment.done for moment in reader.read_new())
        )
    )
    assert process.poll() is None, attempt.log.local.read_text()
    yield process
    if find_group_members(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.faults
def test_a_killed_run_and_a_retry_give_the_bytes_of_a_run_that_was_not_killed(
    large_animals, grown, half_way
):
    half_way.kill()
    half_way.wait()
    assert not grown.manifest.exists()
    again = large_animals.plan(incremental={"max_fraction": 1.0})
    assert again.request.artifact == grown.request.artifact
    retried = large_animals.run(again)
    assert retried.exit_code is ExitCode.SUCCESS, retried.message
    digest = retried.manifest.digest
    assert figures(retried).generation == 2
    shutil.rmtree(retried.artifact)
    assert large_animals.run(again).manifest.digest == digest


@pytest.mark.faults
def test_a_second_run_on_the_same_change_waits_while_the_first_one_works(
    large_animals, grown, half_way
):
    large_animals.check_that_a_second_run_waits(grown, half_way)
    assert half_way.wait(240) == 0
    assert grown.manifest.exists()


def moves(outcome) -> tuple:
    return figures(outcome).came, figures(outcome).left


def test_the_first_data_set_says_nothing_of_what_came_and_left(animals):
    assert moves(animals.make()) == (None, None)


@pytest.mark.parametrize("max_fraction", [0.5, 0.0], ids=["a generation", "a rebuild"])
def test_what_came_and_left_is_counted_by_content(animals, encode, max_fraction):
    animals.make(incremental__max_fraction=max_fraction)
    for number in range(5):
        animals.add(f"cat/new{number}.png", encode(seed=500 + number))
    for file in sorted((animals.raw / "dog").iterdir())[:3]:
        file.unlink()
    renamed = animals.raw / "dog" / "058.png"
    renamed.rename(renamed.with_name("renamed.png"))
    (animals.raw / "cat" / "001.png").write_bytes(encode(seed=600))
    animals.add("cat/broken.png", b"no image")
    outcome = animals.make(incremental__max_fraction=max_fraction, rejects={"max_count": 1})
    assert moves(outcome) == (6, 4)  # one image was replaced
    page = (outcome.artifact / "data.html").read_text()
    assert "6 images came, 4 left since the previous data set." in page
    assert figures(outcome).generation == (2 if max_fraction else 1)


def test_a_class_that_has_lost_half_is_a_warning_and_its_count_before_is_on_the_page(animals):
    animals.make()
    for file in sorted((animals.raw / "dog").iterdir())[:18]:
        file.unlink()
    outcome = animals.make()
    sentence = "Class dog has lost 60% since the previous data set: 30 before, 12 now."
    assert sentence in figures(outcome).warnings
    page = (outcome.artifact / "data.html").read_text()
    assert sentence in page and 'class="before"' in page
    assert '<td class="n"><b>12</b></td><td class="n soft">30</td>' in page


def test_the_drift_is_in_the_figures(animals):
    assert figures(animals.make()).drift == []
    for file in sorted((animals.raw / "dog").iterdir())[:18]:
        file.unlink()
    found = figures(animals.make(drift__max_js_distance=0.05))
    distances = {one.feature: one for one in found.drift}
    assert distances["labels"].is_above and distances["labels"].jensen_shannon > 0.05
    assert found.drift_limits.max_js_distance == 0.05
