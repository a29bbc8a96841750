"""Data sets and models as assets: the events that start a run, and the events of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset, AssetAlias, AssetAny
from manifests import make_manifest

from pipeline_ops.artifacts.manifest import write_manifest
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.operators.assets import add_asset_event
from pipeline_ops.operators.factory import make_dag
from pipeline_ops.operators.task_run import TaskRun
from pipeline_ops.storage.open_store import open_path

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
FIGURES = {
    "preprocess": {
        "class_names": ["0"],
        "image_shape": [28, 28, 1],
        "num_examples": {"train": 8},
        "labels": {},
        "num_rejected": 1,
        "rejected_by_reason": {"broken": 1},
    },
    "export": {
        "name": "digits",
        "version": 3,
        "compared_with": None,
        "metrics": {"accuracy": 0.98},
        "num_checked": 2,
        "max_difference": 0.0,
        "top1_agreement": 1.0,
        "class_names": ["0"],
    },
}


def dag_with(tmp_path, schedule: str):
    file = tmp_path / "digits.yaml"
    file.write_text(DIGITS.read_text().replace("schedule: null ", f"schedule: {schedule} "))
    return make_dag(load_config(file))


def test_nothing_the_clock_an_asset_or_whichever_comes_first(tmp_path):
    assert dag_with(tmp_path, "null").timetable.can_be_scheduled is False
    assert "0 3 * * *" in repr(dag_with(tmp_path, '"0 3 * * *"').timetable)
    by_asset = dag_with(
        tmp_path, '{assets: [raw, {name: labels, uri: "file:///labels"}]}'
    ).timetable
    assert [(asset.name, asset.uri) for asset in by_asset.asset_condition.objects] == [
        ("raw", "raw"),
        ("labels", "file:///labels"),
    ]
    assert isinstance(by_asset.asset_condition, AssetAny)
    both = dag_with(tmp_path, '{assets: [raw], cron: "0 3 * * *"}').timetable
    assert type(both).__name__ == "AssetOrTimeSchedule"
    assert both.timetable.expression == "0 3 * * *"


def test_preprocessing_and_export_announce_what_they_make(tmp_path):
    dag = dag_with(tmp_path, "null")
    outlets = {task.task_id: [outlet.name for outlet in task.outlets] for task in dag.tasks}
    assert outlets == {
        "preprocess": ["digits.dataset"],
        "train": [],
        "evaluate": [],
        "export": ["digits.model"],
    }
    assert all(isinstance(outlet, AssetAlias) for task in dag.tasks for outlet in task.outlets)


@pytest.mark.parametrize(
    ("job", "asset", "news"),
    [
        (
            "preprocess",
            "digits.dataset",
            {"generation": 1, "num_examples": {"train": 8}, "num_rejected": 1},
        ),
        ("export", "digits.model", {"version": 3, "metrics": {"accuracy": 0.98}}),
    ],
)
def test_an_event_says_version_and_figures(tmp_path, job, asset, news):
    write_manifest(tmp_path, make_manifest(job, figures=FIGURES[job]))
    calls = []
    events = {
        AssetAlias(asset): SimpleNamespace(add=lambda asset, extra: calls.append((asset, extra)))
    }
    uri = str(tmp_path / "manifest.json")
    context = {"outlet_events": events, "run_id": "run-1"}
    add_asset_event(TaskRun(load_config(DIGITS), context), job, open_path(uri))
    [(of, extra)] = calls
    assert of == Asset(asset)
    assert news.items() <= extra.items()
    assert (extra["manifest"], extra["run_id"]) == (uri, "run-1")
