"""The words of the report for the difference of two data sets."""

from __future__ import annotations

import pytest
from manifests import make_manifest

from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.manifest import BASE, Input, Manifest
from pipeline_ops.evaluation.inputs import describe_data_changes


def dataset(labels: dict[str, int], raw_files: str, inputs=None, **more) -> Manifest:
    fingerprint = Fingerprint(
        config={"shards": more.pop("shards", 3)},
        inputs={"raw files": raw_files, BASE: raw_files, "reference schema": raw_files},
        code={},
        versions={},
    )
    figures = DatasetFigures(
        class_names=[*labels],
        image_shape=(8, 8, 1),
        num_examples={"train": sum(labels.values()), "validation": 0, "test": 0},
        labels={"train": labels},
        num_rejected=0,
        rejected_by_reason={},
        **more,
    )
    files = [{"path": "index.jsonl.gz", "num_bytes": len(raw_files), "crc32c": "0" * 8}]
    return make_manifest(figures=figures, fingerprint=fingerprint, inputs=inputs or {}, files=files)


def upon(manifest: Manifest) -> dict[str, Input]:
    return {BASE: Input(uri="artifacts/manifest.json", digest=manifest.digest)}


BEFORE = dataset({"8": 30, "9": 20}, "a")


def test_of_a_data_set_made_upon_the_other_it_is_said_what_came_and_left():
    after = dataset({"8": 31, "9": 8}, "bb", upon(BEFORE), came=1, left=12)
    assert describe_data_changes(after, BEFORE) == [
        "1 image came, 12 left (class 9: 20 → 8, class 8: 30 → 31)"
    ]


def test_of_another_data_set_the_numbers_of_both_are_said():
    after = dataset({"8": 30, "9": 8}, "bb", came=1, left=12)
    assert describe_data_changes(after, BEFORE) == [
        "other images: 50 examples before, 38 now (class 9: 20 → 8)"
    ]


def test_a_renamed_file_is_no_image_that_came():
    after = dataset({"8": 30, "9": 20}, "bb", upon(BEFORE), came=0, left=0)
    assert describe_data_changes(after, BEFORE) == ["no image came or left"]


@pytest.mark.parametrize(("shards", "said"), [(3, []), (4, ["config shards: 3 -> 4"])])
def test_what_a_data_set_was_made_upon_or_compared_with_is_no_change(shards, said):
    after = dataset({"8": 30, "9": 20}, "a", shards=shards)
    fingerprint = after.fingerprint.with_inputs({BASE: "other", "reference schema": "other"})
    assert describe_data_changes(after.model_copy(update={"fingerprint": fingerprint}), BEFORE) == (
        said
    )
