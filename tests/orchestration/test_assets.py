"""Data sets and models as assets: the events that start a run, and the events of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml
from airflow.sdk import Asset, AssetAlias, AssetAny
from config_files import DIGITS, write_config
from manifests import make_manifest
from publishers import make_model_figures

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.manifest import write_manifest
from pipeline_ops.orchestration.assets import add_asset_event
from pipeline_ops.orchestration.factory import make_dag
from pipeline_ops.orchestration.task_run import TaskRun
from pipeline_ops.storage.open_store import open_path

MODEL = make_model_figures(3).model_copy(update={"metrics": {"accuracy": 0.98}})
COUNTS = {"num_examples": {"train": 8}}
DATASET = DatasetFigures(
    class_names=["0"],
    image_shape=(28, 28, 1),
    **COUNTS,
    labels={},
    num_rejected=1,
    rejected_by_reason={"broken": 1},
)


def dag_with(tmp_path, schedule: str):
    return make_dag(load_config(write_config(tmp_path, {"schedule": yaml.safe_load(schedule)})))


def test_nothing_the_clock_an_asset_or_whichever_comes_first(tmp_path):
    assert dag_with(tmp_path, "null").timetable.can_be_scheduled is False
    assert "0 3 * * *" in repr(dag_with(tmp_path, '"0 3 * * *"').timetable)
    assets = '{assets: [raw, {name: labels, uri: "file:///labels"}]}'
    by_asset = dag_with(tmp_path, assets).timetable
    names = {asset.name: asset.uri for asset in by_asset.asset_condition.objects}
    assert names == {"raw": "raw", "labels": "file:///labels"}
    assert isinstance(by_asset.asset_condition, AssetAny)
    both = dag_with(tmp_path, '{assets: [raw], cron: "0 3 * * *"}').timetable
    assert type(both).__name__ == "AssetOrTimeSchedule"
    assert both.timetable.expression == "0 3 * * *"


def test_preprocessing_and_export_announce_what_they_make(tmp_path):
    dag = dag_with(tmp_path, "null")
    outlets = {task.task_id: [outlet.name for outlet in task.outlets] for task in dag.tasks}
    outlets = {task: names for task, names in outlets.items() if names}
    assert outlets == {"preprocess": ["digits.dataset"], "export": ["digits.model"]}
    assert all(isinstance(outlet, AssetAlias) for task in dag.tasks for outlet in task.outlets)


@pytest.mark.parametrize(
    ("job", "asset", "figures", "news"),
    [
        ("preprocess", "digits.dataset", DATASET, {"generation": 1, "num_rejected": 1} | COUNTS),
        ("export", "digits.model", MODEL, {"version": 3, "metrics": {"accuracy": 0.98}}),
    ],
)
def test_an_event_says_version_and_figures(tmp_path, job, asset, figures, news):
    write_manifest(tmp_path, make_manifest(job, figures=figures))
    calls = []
    event = SimpleNamespace(add=lambda asset, extra: calls.append((asset, extra)))
    events = {AssetAlias(asset): event}
    uri = str(tmp_path / "manifest.json")
    context = {"outlet_events": events, "run_id": "run-1"}
    add_asset_event(TaskRun(load_config(DIGITS), context), job, open_path(uri))
    [(of, extra)] = calls
    assert of == Asset(asset)
    assert news.items() <= extra.items()
    assert (extra["manifest"], extra["run_id"]) == (uri, "run-1")
