"""Writes, reads and removes the statistics of requests to a model, and knows their place.

    <registry>/<model>.requests/2026-11-20/101530-9f2c41d07a6be358.jsonl

A bucket cannot append, so each window is a new small file in the folder of its day (UTC). The
folder lies beside the model's and not in it: a listing of the versions does not grow with the
requests, and a server that may write statistics need not be able to write models. No model can have
a dot in its name.

The servers write and remove old days. The planner of an evaluation reads.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import secrets

from pipeline_ops.contract.serving_statistics import (
    ServingStatistics,
    ServingWindow,
    add_windows,
)
from pipeline_ops.errors import DataError
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.request_cache import map_requests
from pipeline_ops.storage.store_path import StorePath

SUFFIX = ".requests"
KEPT_DAYS = 30
"""Days of statistics that stay, the present one among them."""
_MAX_FILE_BYTES = 1 << 20
_MAX_FILES = 20_000
"""The maximum of files that are read, the newest first: 20 servers in a week."""
_MAX_LINES, _MAX_NAMED = 100, 5
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_log = logging.getLogger(__name__)


def locate_statistics(model: StorePath | str) -> StorePath:
    """The folder of the statistics of a model, by the location of its versions."""
    options = model.options if isinstance(model, StorePath) else None
    return open_path(f"{str(model).rstrip('/')}{SUFFIX}", options)


def write_window(folder: StorePath, window: ServingWindow) -> None:
    """Writes a window into a new file. Raises MachineError or ConfigError if that is impossible."""
    end = _to_utc(window.end)
    name = f"{end:%Y-%m-%d}/{end:%H%M%S}-{secrets.token_hex(8)}.jsonl"
    (folder / name).create(window.model_dump_json(exclude_defaults=True).encode() + b"\n")


def remove_old_days(folder: StorePath, now: float) -> None:
    """Removes the days before the last KEPT_DAYS. Other files and folders stay."""
    oldest = _format_day(now, KEPT_DAYS - 1)
    for day in _list_days(folder):
        if day < oldest:
            (folder / day).remove_tree()


def read_statistics(folder: StorePath, days: int, now: float) -> ServingStatistics | None:
    """Adds up the windows of the last `days` days, the present one among them.

    Returns None if there are none. A damaged file is counted and named, and not used.
    """
    oldest = _format_day(now, days - 1)
    problems: list[str] = []
    try:
        chosen = sorted((day for day in _list_days(folder) if day >= oldest), reverse=True)
        listings = map_requests(lambda day: (folder / day).walk(), chosen)
    except DataError as error:  # a key that is no path
        return ServingStatistics(num_damaged=1, damaged=[str(error)])
    files = [
        folder / day / file.name
        for day, found in zip(chosen, listings, strict=True)
        for file in reversed(found)
    ]
    if not files:
        return None
    if unread := len(files[_MAX_FILES:]):
        problems.append(f"{folder}: {unread} older files were not read, after {_MAX_FILES}")
    windows = list[ServingWindow]()
    for found in map_requests(_read_file, files[:_MAX_FILES]):
        for each in found:
            if isinstance(each, ServingWindow):
                windows.append(each)
            else:
                problems.append(each)
    for problem in problems[:_MAX_NAMED]:
        _log.warning("%s", problem)
    return add_windows(windows).model_copy(
        update={"num_damaged": len(problems), "damaged": problems[:_MAX_NAMED]}
    )


def _read_file(file: StorePath) -> list[ServingWindow | str]:
    """The windows of a file. The reason takes the place of one that cannot be read."""

    def parse(number: int, line: bytes) -> ServingWindow | str:
        try:
            return parse_json_as(ServingWindow, line, f"{file}:{number}")
        except DataError as error:
            return str(error)

    try:
        lines = file.read(_MAX_FILE_BYTES).splitlines()
    except FileNotFoundError:  # a server has removed its day
        return []
    except DataError as error:
        return [str(error)]
    return [parse(number, line) for number, line in enumerate(lines[:_MAX_LINES], 1)]


def _list_days(folder: StorePath) -> list[str]:
    names = (entry.name for entry in folder.list_folder() if entry.is_folder)
    return [name for name in names if _DAY.fullmatch(name)]


def _format_day(now: float, days_before: int) -> str:
    return f"{_to_utc(now) - dt.timedelta(days=days_before):%Y-%m-%d}"


def _to_utc(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
