"""Runs that new data start: a watcher of the raw files, and runs over data intervals. In a
real Airflow: `tests/cli/test_events.py`."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException
from config_files import write_config
from task_contexts import make_context

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.layout import Layout
from pipeline_ops.errors import ConfigError
from pipeline_ops.orchestration.assets import RawFilesTrigger, is_new
from pipeline_ops.orchestration.factory import make_dag
from pipeline_ops.orchestration.tasks import PreprocessOperator
from pipeline_ops.storage.local_files import write_atomically
from pipeline_ops.storage.open_store import open_root


def config_with(folder: Path, schedule, path: str = "raw") -> Path:
    changes = {
        "schedule": schedule,
        "storage.root": str(folder / "root"),
        "preprocess.source.path": path,
    }
    return write_config(folder, changes)


class Watched:
    """A folder or a place in a store, and a triggerer that watches it; it may be restarted."""

    def __init__(self, location: str, state: Path, patterns: list[str] | None = None):
        self.location, self.state, self.patterns, self.events = location, state, patterns, []

    async def watch(self, until, looks: int = 3000) -> None:
        """Until something holds, and for several looks more,
        so that an event too many would be seen."""
        trigger = RawFilesTrigger(self.location, str(self.state), 0.01, patterns=self.patterns)
        task = asyncio.create_task(self._collect(trigger))
        for _ in range(looks):
            await asyncio.sleep(0.02)
            if until():
                break
        await asyncio.sleep(0.3)
        task.cancel()
        assert until()

    def put(self, name: str, content: str) -> None:
        """At once, as a store does it: a look between a file's first byte and its last would be
        another change."""
        if self.location.startswith("s3://"):
            (open_root(self.location) / name).write(content.encode())
        else:
            write_atomically(Path(self.location) / name, content.encode())

    async def _collect(self, trigger: RawFilesTrigger) -> None:
        async for event in trigger.run():
            self.events.append(event.payload)


@pytest.fixture(params=["folder", "bucket"])
def watched(request, tmp_path) -> Watched:
    (tmp_path / "raw").mkdir()
    folder = tmp_path if request.param == "folder" else request.getfixturevalue("s3_uri")
    return Watched(f"{folder}/raw", tmp_path / "watched" / "digits.json")


def test_each_change_is_told_once_also_one_that_came_while_nobody_looked(watched):
    watched.put("0/a.png", "a")
    asyncio.run(watched.watch(lambda: watched.state.exists()))
    assert watched.events == []  # what was there before is no change
    watched.put("0/b.png", "b")  # no check sees it: the triggerer restarts
    asyncio.run(watched.watch(lambda: len(watched.events) == 1))

    async def change_meanwhile() -> None:
        async def change() -> None:
            await asyncio.sleep(0.1)
            await asyncio.to_thread(watched.put, "0/b.png", "another b")

        await asyncio.gather(change(), watched.watch(lambda: len(watched.events) == 2))

    asyncio.run(change_meanwhile())
    asyncio.run(watched.watch(lambda: True))
    assert [event["num_files"] for event in watched.events] == [2, 2]
    assert len({event["version"] for event in watched.events}) == 2


def test_only_files_that_the_source_names_are_watched(tmp_path):
    """A log that grows beside records starts no run."""
    (tmp_path / "raw").mkdir()
    watched = Watched(str(tmp_path / "raw"), tmp_path / "state.json", ["*.record"])
    watched.put("a.record", "a")
    asyncio.run(watched.watch(lambda: watched.state.exists()))
    watched.put("run.log", "a line")
    asyncio.run(watched.watch(lambda: True))
    assert watched.events == []
    watched.put("b.record", "b")
    asyncio.run(watched.watch(lambda: len(watched.events) == 1))
    assert watched.events[0]["num_files"] == 2


def test_a_folder_that_is_away_for_a_while_is_no_change(tmp_path):
    watched = Watched(str(tmp_path / "raw"), tmp_path / "state.json")
    watched.put("a", "a")
    asyncio.run(watched.watch(lambda: watched.state.exists()))
    os.rename(tmp_path / "raw", tmp_path / "away")
    asyncio.run(watched.watch(lambda: True))
    os.rename(tmp_path / "away", tmp_path / "raw")
    asyncio.run(watched.watch(lambda: True))
    assert watched.events == []


@pytest.mark.parametrize(
    ("before", "now", "told", "is_due"),
    [
        (None, ("a", 1), None, False),  # one look shows no standstill
        (("a", 1), ("a", 1), None, True),
        (("a", 1), ("b", 2), ("a", 1), False),  # files are coming
        (("b", 2), ("c", 3), ("a", 1), False),
        (("c", 3), ("c", 3), ("a", 1), True),  # the delivery is whole
        (("c", 3), ("c", 3), ("c", 3), False),
        (("b", 2), None, ("a", 1), False),  # the folder cannot be read
        (None, None, ("a", 1), False),
    ],
)
def test_a_delivery_is_told_once_it_is_whole(before, now, told, is_due):
    assert is_new(before, now, told) is is_due


def test_the_schedule_makes_a_watched_asset_of_the_raw_files(tmp_path):
    dag = make_dag(load_config(config_with(tmp_path, {"watch_seconds": 60, "assets": ["labels"]})))
    labels, raw = dag.timetable.asset_condition.objects
    [watcher] = raw.watchers
    path, arguments = watcher.trigger.serialize()
    assert (labels.name, raw.name) == ("labels", "digits.raw")
    assert path == "pipeline_ops.orchestration.assets.RawFilesTrigger"
    assert arguments == {
        "folder": str(tmp_path / "raw"),
        "state": str(Layout(open_root(tmp_path / "root"), "digits").watched),
        "every_seconds": 60,
        "options": {},
        "patterns": None,
    }


def test_the_last_reported_version_is_kept_in_the_bucket_of_the_root(tmp_path):
    endpoint = "http://127.0.0.1:1"
    storage = {"root": "s3://watched/folder", "endpoint": endpoint}
    config = load_config(config_with(tmp_path, {"watch_seconds": 60}), {"storage": storage})
    [raw] = make_dag(config).timetable.asset_condition.objects
    _, arguments = raw.watchers[0].trigger.serialize()
    assert arguments["state"] == "s3://watched/folder/watched/digits.json"
    assert arguments["options"]["endpoint"] == endpoint


def test_with_days_in_the_source_runs_have_intervals_and_each_reads_its_own_folder(tmp_path):
    config = config_with(tmp_path, "0 3 * * *", "raw/{start:%Y-%m-%d}")
    dag = make_dag(load_config(config))
    assert type(dag.timetable).__name__ == "CronDataIntervalTimetable"
    start = dt.datetime(2026, 11, 20, 3, tzinfo=dt.UTC)
    end = start + dt.timedelta(days=1)
    context = make_context({}, "backfill__1")
    run = context["dag_run"]
    run.data_interval_start, run.data_interval_end = start, end
    message = f"{tmp_path}/raw/2026-11-20: no such file or folder"
    with pytest.raises(AirflowFailException, match=message):
        PreprocessOperator(config_file=str(config)).execute(context)


def test_a_run_without_an_interval_says_so_before_any_work_and_may_name_its_folder(tmp_path):
    config = config_with(tmp_path, "0 3 * * *", "raw/{start:%Y-%m-%d}")
    write_config(tmp_path, {"per_run": {"preprocess.source.path": ["raw/"]}}, base=config)
    context = make_context({}, "manual__1")
    run = context["dag_run"]
    run.data_interval_start, run.data_interval_end = None, None
    message = r"this run has no data interval.*\. Set preprocess\.source\.path for this run"
    with pytest.raises(AirflowFailException, match=message):
        PreprocessOperator(config_file=str(config)).execute(context)
    run.conf = {"preprocess.source.path": "raw/by-hand"}
    with pytest.raises(AirflowFailException, match=f"{tmp_path}/raw/by-hand: no such file"):
        PreprocessOperator(config_file=str(config)).execute(context)


@pytest.mark.parametrize(
    ("schedule", "path", "wrong"),
    [
        (None, "raw/{start:%Y}", "only runs that the clock starts have a data interval"),
        (
            {"cron": "0 3 * * *", "assets": ["a"]},
            "raw/{start:%Y}",
            "Give schedule a cron expression",
        ),
        (
            "0 3 * * *",
            "raw/{day}",
            "only the start and the end of a run's data interval can stand in brackets, "
            "such as {start:%Y-%m-%d}, got 'day'",
        ),
        ("0 3 * * *", "raw/{start", "preprocess.source.path: "),
        ({"watch_seconds": 0}, "raw", "schedule.watch_seconds: "),
    ],
)
def test_what_can_not_be_scheduled_is_refused(tmp_path, schedule, path, wrong):
    with pytest.raises(ConfigError) as error:
        load_config(config_with(tmp_path, schedule, path))
    assert wrong in str(error.value)
