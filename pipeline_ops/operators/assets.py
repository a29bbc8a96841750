"""The data set and the model as Airflow assets, on which other DAGs can be scheduled.

    Asset("digits.dataset")    an event when preprocessing has left a data set that differs from
                               the last one
    Asset("digits.raw")        an event when the raw files have changed, if
                               `schedule.watch_seconds` is set
    Asset("digits.model")      an event when a version has been published;
                               "digits" is `export.model`

The events contain the properties of the new version. The outlets are aliases, because Airflow gives
an asset itself an event whenever its task succeeds, even if there was nothing to do. A run that
finds everything cached therefore triggers no other DAG.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import (
    Asset,
    AssetAlias,
    AssetAny,
    AssetOrTimeSchedule,
    AssetWatcher,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
)

from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.artifacts.manifest import Manifest, read_manifest
from pipeline_ops.artifacts.results import ModelFigures
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.operators.raw_files import RawFilesTrigger
from pipeline_ops.operators.task_run import TaskRun
from pipeline_ops.raw_data.folder import find_raw_folder
from pipeline_ops.storage.store_path import StorePath


def make_asset(config: PipelineConfig, job: str) -> Asset | None:
    """Makes the asset that a job updates for other DAGs; None if it updates none."""
    names = {"preprocess": f"{config.pipeline}.dataset", "export": f"{config.export.model}.model"}
    return Asset(names[job]) if job in names else None


def make_outlets(config: PipelineConfig, job: str) -> list[AssetAlias]:
    asset = make_asset(config, job)
    return [AssetAlias(asset.name)] if asset else []


def add_asset_event(run: TaskRun, job: str, path: StorePath) -> None:
    """Adds the event of a new artifact. Airflow sends it when the task has succeeded."""
    if asset := make_asset(run.config, job):
        manifest = read_manifest(path)
        extra = _summarize_model(manifest) if job == "export" else _summarize_dataset(manifest)
        run.context["outlet_events"][AssetAlias(asset.name)].add(
            asset, extra=extra | {"manifest": str(path), "run_id": run.run_id}
        )


def make_timetable(config: PipelineConfig) -> Any:
    """Makes the schedule argument of Airflow's DAG."""
    schedule = config.schedule
    if config.preprocess.source.has_interval and schedule.cron:
        # Airflow 3 makes runs without an interval from a plain cron expression.
        return CronDataIntervalTimetable(schedule.cron, timezone="UTC")
    assets = [
        Asset(name=asset.name, uri=asset.uri) if asset.uri else Asset(asset.name)
        for asset in schedule.assets
    ]
    if schedule.watch_seconds is not None:
        assets.append(_make_raw_asset(config, schedule.watch_seconds))
    clock = schedule.cron and CronTriggerTimetable(schedule.cron, timezone=schedule.timezone)
    if not assets:
        return clock
    any_asset = AssetAny(*assets)
    return AssetOrTimeSchedule(timetable=clock, assets=any_asset) if clock else any_asset


def _make_raw_asset(config: PipelineConfig, every_seconds: int) -> Asset:
    """Makes an asset of the raw files, with an event for each change."""
    trigger = RawFilesTrigger(
        str(find_raw_folder(config)),
        str(Layout(config.root, config.pipeline).watched),
        every_seconds,
        config.store_options.model_dump(exclude_none=True),
        config.preprocess.source.file_patterns,
    )
    return Asset(
        f"{config.pipeline}.raw",
        watchers=[AssetWatcher(name=f"{config.pipeline}.raw", trigger=trigger)],
    )


def _summarize_model(manifest: Manifest) -> dict[str, Any]:
    figures = ModelFigures.model_validate(manifest.figures)
    return {"version": figures.version, "metrics": figures.metrics}


def _summarize_dataset(manifest: Manifest) -> dict[str, Any]:
    figures = DatasetFigures.model_validate(manifest.figures)
    return {
        "version": manifest.digest,
        "generation": figures.generation,
        "num_examples": figures.num_examples,
        "num_rejected": figures.num_rejected,
    }
