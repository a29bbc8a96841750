"""A root that was moved: lineage and records lead to the same artifacts below the present root."""

from __future__ import annotations

import shutil

import pytest
from retention.simulated_pipeline import SimulatedPipeline, check_lineage, make_config

from pipeline_ops.contract.layout import find_input
from pipeline_ops.contract.manifest import NAME, Input, read_manifest
from pipeline_ops.contract.task_record import find_recorded_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.storage.open_store import open_path


@pytest.fixture
def moved(tmp_path) -> SimulatedPipeline:
    """A pipeline of three days and one version, after its root has another path."""
    old = SimulatedPipeline(make_config(tmp_path, "old", {"runs": 1, "days": 0}))
    for day in range(3):
        old.run_day(day, publish=day == 0)
    shutil.move(tmp_path / "old", tmp_path / "new")
    return SimulatedPipeline(make_config(tmp_path, "new", {"runs": 1, "days": 0}))


def test_a_versions_lineage_is_whole_also_after_gc(moved):
    assert check_lineage(moved) == 1
    moved.collect(5)
    assert check_lineage(moved) == 1
    assert len(moved.layout.artifacts("train").find_in_folders(NAME)) == 2


def test_the_records_of_older_runs_name_the_artifacts_here(moved):
    found = find_recorded_manifest(moved.layout, "scheduled__0001", "train", "train")
    assert str(found).startswith(f"{moved.root}/") and read_manifest(found).job == "train"


def test_an_input_that_differs_here_is_not_taken(moved):
    version = moved.registry.list_versions()[0].read_manifest().inputs["train"]
    other = Input(uri=version.uri, digest="0" * 32)
    assert find_input(other, moved.root) == other
    with pytest.raises(DataError):
        read_manifest(other.uri)


def test_an_input_elsewhere_is_left_alone(moved, tmp_path):
    version = Input(uri="s3://bucket/models/digits/3/manifest.json", digest="0" * 32)
    assert find_input(version, moved.root) == version
    here = moved.registry.list_versions()[0].uri
    assert find_input(Input(uri=here, digest=""), open_path(tmp_path).root) == Input(
        uri=here, digest=""
    )
