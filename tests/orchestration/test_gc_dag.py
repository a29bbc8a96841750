"""The DAG that collects, for the pipelines that ask for it."""

from __future__ import annotations

from pathlib import Path

from retention.simulated_pipeline import SimulatedPipeline, make_config

from beam_jobs.stages import check_stages
from pipeline_ops.orchestration.dags import make_dags
from pipeline_ops.orchestration.gc_dag import make_gc_dag


def test_only_pipelines_that_set_keep_are_collected(tmp_path):
    for name, keep in (("kept", {"runs": 1, "days": 0}), ("all", None)):
        folder: Path = tmp_path / name
        folder.mkdir()
        config = make_config(folder, "root", keep)
        dags = make_dags([folder], check_stages)
        assert ("trainyard_gc" in dags) == (keep is not None)
        if keep is not None:
            assert dags["trainyard_gc"].task_ids == [config.pipeline]


def test_its_task_removes_and_returns_the_bytes(tmp_path):
    pipeline = SimulatedPipeline(make_config(tmp_path, "root", {"runs": 1, "days": 0}))
    for day in range(3):
        pipeline.run_day(day)
    task = make_gc_dag([pipeline.config]).get_task("digits")
    before = sum(file.num_bytes for file in pipeline.root.walk())
    removed = task.execute({})
    left = sum(file.num_bytes for file in pipeline.root.walk())
    assert 0 < removed <= before - left  # manifests are not counted
    assert task.execute({}) == 0
