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

from collections.abc import Mapping
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
from pipeline_ops.config.schedule import Schedule
from pipeline_ops.operators.raw_files import RawFilesTrigger
from pipeline_ops.raw_data.folder import find_raw_folder


def asset_of(config: PipelineConfig, job: str) -> Asset | None:
    """The asset that a job makes for other DAGs; None if it makes none."""
    names = {"preprocess": f"{config.pipeline}.dataset", "export": f"{config.export.model}.model"}
    return Asset(names[job]) if job in names else None


def outlets_of(config: PipelineConfig, job: str) -> list[AssetAlias]:
    asset = asset_of(config, job)
    return [AssetAlias(asset.name)] if asset else []


def tell(context: Mapping[str, Any], config: PipelineConfig, job: str, uri: str) -> None:
    """Adds the event of a new artifact. Airflow sends it when the task has succeeded."""
    if asset := asset_of(config, job):
        manifest = read_manifest(uri)
        news = _of_model(manifest) if job == "export" else _of_dataset(manifest)
        context["outlet_events"][AssetAlias(asset.name)].add(
            asset, extra=news | {"manifest": uri, "run_id": context["run_id"]}
        )


def timetable_of(config: PipelineConfig) -> Any:
    """The schedule argument of Airflow's DAG."""
    schedule = config.schedule
    if config.preprocess.source.has_interval:
        return CronDataIntervalTimetable(
            schedule.cron, timezone="UTC"
        )  # Airflow 3 makes runs without an interval from a plain cron expression
    assets = [
        Asset(name=asset.name, uri=asset.uri) if asset.uri else Asset(asset.name)
        for asset in schedule.assets
    ]
    if schedule.watch_seconds is not None:
        assets.append(_watched(config, schedule.watch_seconds))
    if not assets:
        return schedule.cron and _clock(schedule)
    if schedule.cron is None:
        return AssetAny(*assets)
    return AssetOrTimeSchedule(timetable=_clock(schedule), assets=AssetAny(*assets))


def _clock(schedule: Schedule) -> CronTriggerTimetable:
    return CronTriggerTimetable(schedule.cron, timezone=schedule.timezone)


def _watched(config: PipelineConfig, every_seconds: int) -> Asset:
    """The raw files as an asset with an event for each change."""
    trigger = RawFilesTrigger(
        str(find_raw_folder(config)),
        str(Layout(config.root, config.pipeline).watched),
        every_seconds,
    )
    return Asset(
        f"{config.pipeline}.raw",
        watchers=[AssetWatcher(name=f"{config.pipeline}.raw", trigger=trigger)],
    )


def _of_model(manifest: Manifest) -> dict[str, Any]:
    figures = ModelFigures.model_validate(manifest.figures)
    return {"version": figures.version, "metrics": figures.metrics}


def _of_dataset(manifest: Manifest) -> dict[str, Any]:
    figures = DatasetFigures.model_validate(manifest.figures)
    return {
        "version": manifest.digest,
        "generation": figures.generation,
        "num_examples": figures.num_examples,
        "num_rejected": figures.num_rejected,
    }
