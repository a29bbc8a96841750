"""The job from request to data set, in this process, with the real Beam."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml
from manifests import list_again

from beam_jobs.io.example import encode_png
from beam_jobs.stages import CATALOGUE
from beam_jobs.stages.stage import Stage, parameters
from pipeline_ops.contract.dataset import DatasetFigures, list_shard_paths
from pipeline_ops.errors import ExitCode


@parameters
class Nothing:
    """Of a stage without parameters."""


def test_every_file_becomes_an_example_and_the_manifest_says_so(animals):
    outcome = animals.run()
    assert outcome.exit_code is ExitCode.SUCCESS
    figures = DatasetFigures.model_validate(outcome.manifest.figures)
    assert figures.class_names == ["cat", "dog"]
    assert figures.image_shape == (8, 8, 1)
    assert sum(figures.num_examples.values()) == 60
    assert {
        split: sum(counts.values()) for split, counts in figures.labels.items()
    } == figures.num_examples
    assert set(figures.seconds_by_stage) == {"read", "decode", "resize", "measure", "write"}
    assert outcome.quarantine == []
    assert outcome.manifest.seeds == {"split": 3}


def test_the_checksums_of_the_workers_are_those_of_the_files(animals):
    outcome = animals.make()
    assert list_again(outcome.artifact, outcome.manifest) == outcome.manifest.files


def test_the_manifest_counts_the_examples_of_every_shard(animals, read_records):
    outcome = animals.run()
    counted = {
        file.path: file.num_examples
        for file in outcome.manifest.files
        if file.num_examples is not None
    }
    assert counted == {name: len(read_records(outcome.artifact / name)) for name in outcome.shards}
    assert len(counted) == 9
    assert sum(counted.values()) == 60


def test_not_a_byte_depends_on_the_runner(animals):
    """Files that are encoded again and files that keep their bytes."""
    found = []
    for workers in (1, 3):
        plan = animals.plan(runner__workers=workers, stages__1__resize__height=9)
        outcome = animals.run(plan)
        assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
        found.append((outcome.shards, outcome.quarantine))
        shutil.rmtree(outcome.artifact)
    assert found[1] == found[0]


def test_the_same_request_twice_gives_the_same_artifact(animals):
    first = animals.run()
    written = (first.artifact / "manifest.json").stat()
    second = animals.run()
    assert second.exit_code is ExitCode.SUCCESS
    found = (second.artifact / "manifest.json").stat()
    assert (found.st_ino, found.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_unusable_files_are_kept_out_counted_and_named(animals, encode):
    animals.add("cat/truncated.png", encode(seed=99)[:-30])
    animals.add("cat/text.png", b"I am not an image")
    animals.add("dog/empty.png", b"")
    animals.add("notes.txt", b"shopping list")
    outcome = animals.run(rejects={"max_count": 4})
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert [(line["key"], line["stage"], line["reason"]) for line in outcome.quarantine] == [
        ("cat/text.png", "decode", "not_image"),
        ("cat/truncated.png", "decode", "truncated"),
        ("dog/empty.png", "decode", "empty"),
        ("notes.txt", "source", "no_label"),
    ]
    figures = DatasetFigures.model_validate(outcome.manifest.figures)
    assert figures.num_rejected == 4
    assert figures.rejected_by_reason == {"empty": 1, "no_label": 1, "not_image": 1, "truncated": 1}
    assert sum(figures.num_examples.values()) == 60


def test_a_file_name_that_is_no_text_works(animals, encode, read_records):
    animals.add(b"cat/caf\xe9.png", encode(seed=77))
    animals.add("dog/50% off.png", encode(seed=78))
    outcome = animals.run(runner={"workers": 2})
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    content = b"".join((outcome.artifact / name).read_bytes() for name in outcome.shards)
    assert b"cat/caf%E9.png" in content
    assert b"dog/50%25 off.png" in content


def test_a_split_of_few_records_has_a_shard_for_each(animals, read_records):
    outcome = animals.run(shards=20)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert {
        len(read_records(outcome.artifact / name))
        for name in outcome.shards
        if not name.startswith("train")
    } == {1}
    assert len([name for name in outcome.shards if name.startswith("train")]) == 20


def test_a_target_size_makes_as_many_shards_as_it_takes(animals):
    sizes = []
    for megabytes in (1.0, 0.002):
        trains = [
            file.num_bytes
            for file in animals.run(shard_megabytes=megabytes).manifest.files
            if file.path.startswith("train")
        ]
        sizes.append(sum(trains) / len(trains))
    assert sizes[1] < 2500 < sizes[0]


def test_folders_that_belong_together_lie_in_one_split(pipeline, encode):
    for index in range(120):
        pipeline.add(
            f"{'cat' if index % 2 else 'dog'}/scene{index % 12}/{index}.png", encode(seed=index)
        )
    outcome = pipeline.run(split__group_by="parent_folder", split__stratify=True, shards=1)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    found = [
        set(re.findall(rb"scene\d+", (outcome.artifact / name).read_bytes()))
        for name in outcome.shards
    ]
    assert [len(scenes) for scenes in found] == [2, 8, 2]  # test, train, validation
    assert len(set.union(*found)) == 12


def test_progress_tells_what_is_done_and_what_was_rejected(animals):
    animals.add("cat/broken.png", b"no image")
    moments = animals.run(rejects={"max_count": 1}).progress
    assert [moment.phase for moment in moments if moment.phase != "preprocess"] == [
        "list",
        "list",
        "plan",
    ]
    assert (moments[-1].done, moments[-1].total, moments[-1].unit, moments[-1].metrics) == (
        61,
        61,
        "images",
        {"rejected": 1},
    )


def test_a_stage_of_ones_own_is_a_function_and_a_line_in_the_catalogue(
    animals, monkeypatch, read_records
):
    monkeypatch.setitem(
        CATALOGUE,
        "blacken",
        Stage(
            Nothing,
            lambda example, _: example.with_image(example.image * 0),
            serve=lambda image, _: image * 0,
        ),
    )
    outcome = animals.run(stages=[{"decode": {"channels": 1}}, "blacken"])
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    black = encode_png(np.zeros((8, 8, 1), np.uint8))
    assert all(
        black in record
        for name in outcome.shards
        for record in read_records(outcome.artifact / name)
    )
    assert "blacken" in outcome.manifest.figures["seconds_by_stage"]


def test_a_bug_in_a_stage_is_told_in_one_line(animals, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "explode", Stage(Nothing, lambda example, _: 1 / 0))
    outcome = animals.run(stages=["decode", "explode"])
    assert outcome.exit_code is ExitCode.BUG
    assert outcome.message.startswith("stage explode failed on ")
    end = "ZeroDivisionError: division by zero. Correct the stage, then retry."
    assert outcome.message.endswith(end)
    assert len(outcome.message.splitlines()) == 1
    assert not outcome.artifact.exists()


def test_nothing_but_the_data_set_is_left(animals):
    outcome = animals.run()
    assert {file.name for file in outcome.artifact.iterdir()} == {
        *outcome.shards,
        *(f"raw-{name}" for name in outcome.shards if name.startswith("test-")),
        "stages.json",
        "manifest.json",
        "quarantine.jsonl",
        "index.jsonl.gz",
        "record_lengths.bin",
        "statistics.json",
        "schema.json",
        "data.html",
    }
    assert {file.name for file in outcome.attempt.folder.local.iterdir()} == {
        "request.json",
        "status.json",
        "progress.jsonl",
    }
    assert [
        file.name for file in outcome.artifact.parent.iterdir() if file.name.endswith(".staging")
    ] == []


def test_tensorflow_reads_what_was_written(animals, tmp_path: Path):
    """In a process of its own, because TensorFlow takes seconds to import and stays."""
    outcome = animals.run(stages=["decode", {"resize": {"height": 5, "width": 6}}])
    paths = [
        path
        for split in ("train", "validation", "test")
        for path in list_shard_paths(outcome.artifact / "manifest.json", outcome.manifest, split)
    ]
    code = """
import sys, tensorflow as tf
from pipeline_ops.contract.dataset import ENCODED, KEY, LABEL
features = {ENCODED: tf.io.FixedLenFeature([], tf.string), LABEL: tf.io.FixedLenFeature([], tf.int64), KEY: tf.io.FixedLenFeature([], tf.string)}
batch = tf.io.parse_example(next(iter(tf.data.TFRecordDataset(sys.argv[1:]).batch(1000))), features)
for encoded, label, key in zip(batch[ENCODED].numpy(), batch[LABEL].numpy(), batch[KEY].numpy()):
    assert tf.io.decode_image(encoded, channels=3).shape == (5, 6, 3)
    print(key.decode(), label)
"""  # noqa: E501
    printed = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    ).stdout.split("\n")[:-1]
    wanted = [
        f"{'cat' if index % 2 else 'dog'}/{index:03d}.png {0 if index % 2 else 1}"
        for index in range(60)
    ]
    assert sorted(printed) == sorted(wanted)


def test_a_config_elsewhere_means_its_own_folder(animals, tmp_path: Path):
    """A relative source is relative to the config file, not to where the job was started."""
    here = os.getcwd()
    os.chdir(tmp_path.parent)
    try:
        assert (
            yaml.safe_load(animals.config_file.read_text())["preprocess"]["source"]["path"]
            == "../raw"
        )
        assert animals.run().exit_code is ExitCode.SUCCESS
    finally:
        os.chdir(here)
