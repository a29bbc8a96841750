"""A simulated year of daily runs with `storage.keep`."""

from __future__ import annotations

import pytest
from retention.simulated_pipeline import (
    SimulatedPipeline,
    check_lineage,
    find_problems,
    make_config,
)

KEEP = {"runs": 10, "days": 7, "datasets": 3}


def measure(pipeline: SimulatedPipeline) -> tuple[int, int]:
    """Files and bytes below the root, without the history of the model's aliases."""
    files = [file for file in pipeline.root.walk() if "/aliases/" not in file.name]
    return len(files), sum(file.num_bytes for file in files)


@pytest.mark.stores
@pytest.mark.timeout(1800)
def test_a_year_of_daily_runs_stays_within_bounds(tmp_path):
    pipeline = SimulatedPipeline(make_config(tmp_path, "root", KEEP))
    sizes = []
    for day in range(400):
        made = pipeline.run_day(day, publish=day % 5 == 0)
        assert pipeline.collect(day).problems == []
        pipeline.date_files(day)
        sizes.append(measure(pipeline))
        assert find_problems(made["preprocess"]) == []
        if day % 20 == 0:
            check_lineage(pipeline)
    assert check_lineage(pipeline) == 3
    files, num_bytes = zip(*sizes, strict=True)
    assert max(files[60:]) <= 1.1 * max(files[30:60])
    growth = (100 + 400) / (100 + 45)  # of the data set itself, which is all that may grow
    assert max(num_bytes[60:]) <= 1.2 * growth * max(num_bytes[30:60])
    aliases = [file for file in pipeline.root.walk() if "/aliases/" in file.name]
    assert len(aliases) <= 2 * 80 + 2


def test_without_keep_everything_stays(tmp_path):
    pipeline = SimulatedPipeline(make_config(tmp_path, "root", None))
    for day in range(6):
        pipeline.run_day(day)
    before = {file.name for file in pipeline.root.walk()}
    pipeline.collect(100)
    assert before <= {file.name for file in pipeline.root.walk()}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.stores) for kind in ("s3", "gs", "az")]
)
def test_a_bucket_stays_within_bounds(tmp_path, make_root, kind):
    config = make_config(tmp_path, make_root(kind).uri, KEEP | {"runs": 4, "days": 0})
    pipeline = SimulatedPipeline(config, start=2e9)  # all files are older, in a bucket
    sizes = []
    for day in range(16):
        pipeline.run_day(day, publish=day % 4 == 0)
        assert pipeline.collect(day).problems == []
        sizes.append(measure(pipeline))
        assert find_problems(pipeline.newest_dataset) == []
    check_lineage(pipeline)
    files = [count for count, _ in sizes]
    assert max(files[12:]) <= 1.1 * max(files[8:12])
    assert len(pipeline.layout.artifacts("train").list_folder()) < 16
