"""Inputs with which the preprocess job fails, and its messages."""

from __future__ import annotations

import json

import yaml

from beam_jobs.preprocess import preprocess
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.request import read_status, write_request
from pipeline_ops.errors import ExitCode
from pipeline_ops.job.runner import run_request


def test_more_rejects_than_the_budget_fail_the_job_and_are_named(animals):
    for index in range(12):
        animals.add(f"cat/broken{index:02d}.png", b"no image")
    outcome = animals.run(rejects={"max_count": 11})
    assert outcome.exit_code is ExitCode.DATA
    assert "12 of 72 raw files are unusable, and the budget is 11" in outcome.message
    assert "cat/broken00.png: not_image (decode: begins with b'no image'" in outcome.message
    assert "cat/broken09.png" in outcome.message
    assert "cat/broken10.png" not in outcome.message
    assert "and 2 more" in outcome.message
    full_list = outcome.attempt.folder.local / "rejected.jsonl"
    assert str(full_list) in outcome.message
    assert len([json.loads(line) for line in full_list.read_text().splitlines()]) == 12
    assert not outcome.artifact.exists()


def test_data_over_the_budget_leave_a_page_that_shows_the_rejected_files(animals, encode):
    animals.add("cat/truncated.png", encode(64, 64, seed=99)[:-30])
    animals.add("dog/text.png", b"no image")
    outcome = animals.run(rejects={"max_count": 1})
    assert outcome.exit_code is ExitCode.DATA
    page = outcome.attempt.folder.local / "data.html"
    assert outcome.message.endswith(f"\n{page} shows the data and the rejected records.")
    text = page.read_text()
    assert "cat/truncated.png" in text and "truncated" in text
    assert "dog/text.png" in text and "not_image" in text
    assert "data:image/png;base64," in text
    assert "60 examples" in text and "2 of 62 records are in quarantine." in text
    assert "<h1><span>Refused</span></h1>" in text and "There is no data set." in text
    assert text.count("2 of 62 raw files are unusable, and the budget is 1") == 2
    assert "This is the first data set" not in text
    assert not outcome.artifact.exists()


def test_data_without_a_usable_image_leave_a_page_too(animals):
    animals.make()
    skipping = animals.run(stages=["decode", {"filter": {"min_side": 9}}])
    for file in animals.raw.glob("*/*.png"):
        file.write_bytes(b"no image " + file.name.encode())
    rejecting = animals.run()
    for outcome, records in ((skipping, "0 records"), (rejecting, "60 records")):
        assert outcome.exit_code is ExitCode.DATA
        text = (outcome.attempt.folder.local / "data.html").read_text()
        assert "0 examples" in text and records in text
        assert "images have 0 channels" not in text
        assert not outcome.artifact.exists()
    assert "cat/001.png" in text


def test_the_page_of_refused_data_is_where_the_message_says_in_a_bucket(
    animals, s3_root, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))
    config = yaml.safe_load(animals.config_file.read_text())
    config["storage"]["root"] = str(s3_root)
    animals.config_file.write_text(yaml.safe_dump(config))
    animals.add("dog/text.png", b"no image")
    plan, attempt = animals.plan(), Attempt(s3_root / "attempts" / "1")
    write_request(attempt, plan.request)
    run_request(preprocess, str(attempt.request))
    page = attempt.folder / "data.html"
    assert f"\n{page} shows the data" in read_status(attempt).message
    assert b"dog/text.png" in page.read_log(0, 1 << 20)
    assert not plan.manifest.exists()


def test_a_fraction_is_a_budget_too(animals):
    animals.add("cat/broken.png", b"no image")
    assert animals.run(rejects={"max_fraction": 0.02}).exit_code is ExitCode.SUCCESS


def test_images_of_different_sizes_are_named_with_the_stage_that_mends_it(animals, encode):
    animals.add("cat/large.png", encode(9, 8))
    outcome = animals.run(stages=["decode"])
    assert outcome.exit_code is ExitCode.DATA
    assert "cat/large.png has (9, 8, 3)" in outcome.message
    assert "Add the stage `- resize: {height: 8, width: 8}` to preprocess.stages" in outcome.message


def test_an_empty_source_says_where_images_belong(pipeline):
    outcome = pipeline.run()
    assert outcome.exit_code is ExitCode.DATA
    assert "there are no files. Put a folder with the images of each class there" in outcome.message


def test_files_without_class_folders_are_no_data_set(pipeline, encode):
    pipeline.add("1.png", encode())
    outcome = pipeline.run()
    assert outcome.exit_code is ExitCode.DATA
    assert (
        "its 1 files lie in no folder. Put the images of each class into a folder with the name of"
        in outcome.message
    )


def test_a_class_of_which_nothing_is_usable_is_named(animals):
    for index in range(20):
        animals.add(f"bird/{index}.png", b"no image")
    outcome = animals.run(rejects={"max_count": 100})
    assert outcome.exit_code is ExitCode.DATA
    assert "every record of bird is unusable, and no budget covers a whole class" in outcome.message
    assert not outcome.artifact.exists()


def test_a_split_without_examples_is_named(animals):
    outcome = animals.run(split={"train": 0.998, "validation": 0.001, "test": 0.001})
    assert outcome.exit_code is ExitCode.DATA
    assert (
        "the validation split has no example: "
        "preprocess.split.validation is 0.001 of 60 images, which rounds to none. "
        "Add images, or raise preprocess.split.validation"
    ) in outcome.message


def test_a_wrong_parameter_is_the_configs_fault(animals):
    outcome = animals.run(stages=["decode", {"resize": {"heigth": 8, "width": 8}}])
    assert outcome.exit_code is ExitCode.CONFIG
    assert f"{animals.config_file}" in outcome.message
    assert (
        "preprocess.stages.1.resize.heigth: unknown parameter; the nearest valid name is 'height'"
        in outcome.message
    )


def test_raw_files_that_changed_since_the_plan_are_a_reason_to_retry(animals, encode):
    plan = animals.plan()
    animals.add("cat/new.png", encode(seed=50))
    outcome = animals.run(plan)
    assert outcome.exit_code is ExitCode.RETRY
    assert "raw files changed while the run was starting. Retry" in outcome.message


def test_a_train_split_too_small_for_its_shards_is_told(animals):
    outcome = animals.run(shards=60)
    assert outcome.exit_code is ExitCode.DATA
    assert "too few for 60 shards. Add images, or lower preprocess.shards" in outcome.message
