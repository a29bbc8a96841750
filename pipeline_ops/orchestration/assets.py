"""The raw files, the data set and the model as Airflow assets, for the schedules of other DAGs.

    Asset("digits.dataset")    an event when preprocessing has left a data set that differs from
                               the last one
    Asset("digits.raw")        an event when the raw files have changed, if
                               `schedule.watch_seconds` is set
    Asset("digits.model")      an event when a version has been published;
                               "digits" is `export.model`

The events contain the properties of the new version. The outlets are aliases, because Airflow gives
an asset itself an event whenever its task succeeds. With an alias, a run that finds everything
cached triggers no other DAG.

The triggerer watches the raw files. A change is reported once the files are the same in two
successive checks, so one event stands for a whole delivery. A file keeps the last reported version
for a restarted triggerer. The very first check reports nothing. The file is written after Airflow
has received the event, so a killed triggerer may report a change twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from airflow.sdk import (
    Asset,
    AssetAlias,
    AssetAny,
    AssetOrTimeSchedule,
    AssetWatcher,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
)
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from pydantic import Field, RootModel

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.layout import Layout
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import ModelFigures
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.orchestration.airflow_connections import use_airflow_connections
from pipeline_ops.orchestration.task_run import TaskRun
from pipeline_ops.raw_data.folder import find_raw_folder, read_folder_state, resolve_raw_folder
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_options import StoreOptions, wait_at_most
from pipeline_ops.storage.store_path import StorePath


def make_asset(config: PipelineConfig, job: str) -> Asset | None:
    """Makes the asset that a job updates for other DAGs, or returns None if it updates none."""
    names = {"preprocess": f"{config.pipeline}.dataset", "export": f"{config.export.model}.model"}
    return Asset(names[job]) if job in names else None


def make_outlets(config: PipelineConfig, job: str) -> list[AssetAlias]:
    asset = make_asset(config, job)
    return [AssetAlias(asset.name)] if asset else []


def add_asset_event(run: TaskRun, job: str, path: StorePath) -> None:
    """Adds the event of a new artifact. Airflow sends it when the task has succeeded."""
    asset = make_asset(run.config, job)
    if asset is None:
        return
    manifest = read_manifest(path)
    extra: dict[str, Any] = {"manifest": str(path), "run_id": run.run_id}
    if job == "export":
        model = ModelFigures.model_validate(manifest.figures)
        extra |= {"version": model.version, "metrics": model.metrics}
    else:
        data = DatasetFigures.model_validate(manifest.figures)
        names = ("generation", "num_examples", "num_rejected")
        extra |= {"version": manifest.digest} | {name: getattr(data, name) for name in names}
    run.context["outlet_events"][AssetAlias(asset.name)].add(asset, extra=extra)


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
        name = f"{config.pipeline}.raw"
        trigger = RawFilesTrigger(
            str(find_raw_folder(config)),
            str(Layout(config.root, config.pipeline).watched),
            schedule.watch_seconds,
            config.store_options.model_dump(exclude_none=True),
            config.preprocess.source.file_patterns,
        )
        assets.append(Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)]))
    clock = schedule.cron and CronTriggerTimetable(schedule.cron, timezone=schedule.timezone)
    if not assets:
        return clock
    any_asset = AssetAny(*assets)
    return AssetOrTimeSchedule(timetable=clock, assets=any_asset) if clock else any_asset


FolderVersion = tuple[Annotated[str, Field(max_length=1000)], Annotated[int, Field(ge=0, lt=2**63)]]
"""The version of the present files, and their number."""

use_airflow_connections()


class _ReportedVersion(RootModel[FolderVersion]):
    """The content of the file that keeps the last reported version."""


class RawFilesTrigger(BaseEventTrigger):
    """Fires for each change of the raw files.

    Args:
      folder: an absolute path, or a URI.
      state: the file that keeps the last reported version.
      options: the `StoreOptions` of the state.
      patterns: globs of the files that count in a local folder. None is all.
    """

    def __init__(
        self,
        folder: str,
        state: str,
        every_seconds: float,
        options: dict[str, Any] | None = None,
        patterns: Sequence[str] | None = None,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.options = options or {}
        self.folder, self.state, self.every_seconds = folder, state, every_seconds
        self.patterns = None if patterns is None else list(patterns)
        self._is_failing = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("folder", "state", "every_seconds", "options", "patterns")
        arguments = {name: getattr(self, name) for name in names}
        return "pipeline_ops.orchestration.assets.RawFilesTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        options = StoreOptions.model_validate(self.options)
        before, state = None, open_path(self.state, options)
        while True:
            now, reported = await asyncio.to_thread(self._look, state)
            if now is not None and is_new(before, now, reported):
                if reported is not None:
                    event = {"folder": self.folder, "version": now[0], "num_files": now[1]}
                    yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                await asyncio.to_thread(state.write, format_json(list(now)))
            before = now
            await asyncio.sleep(self.every_seconds)

    def _look(self, state: StorePath) -> tuple[FolderVersion | None, FolderVersion | None]:
        """Reads the present version and the last reported one.

        Both are None if the store or the files cannot be read, which is logged once. The threads of
        the triggerer do not wait for the store. A damaged state counts as none.
        """
        reported = None
        try:
            with wait_at_most(0):
                try:
                    reported = read_json_as(_ReportedVersion, state)
                except DataError as error:
                    self.log.warning("%s. The next check writes it again.", error)
                folder = resolve_raw_folder(self.folder, Path("/"))
                now = read_folder_state(folder, self.patterns)
        except TrainyardError as error:
            if not self._is_failing:
                self.log.warning("cannot list the raw files, trying again later: %s", error)
            self._is_failing = True
            return None, None
        if self._is_failing:
            self.log.warning("the raw files can be listed again")
        self._is_failing = False
        return now, reported.root if reported else None


def is_new(
    before: FolderVersion | None, now: FolderVersion | None, reported: FolderVersion | None
) -> bool:
    """Returns whether the present version is stable and differs from the last reported one."""
    return now is not None and now == before and now != reported
