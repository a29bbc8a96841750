"""Watches a pipeline's raw files from the triggerer, which holds no worker.

Many such watchers share the triggerer. A change is reported once the files are the same in two
successive looks, so one event stands for a whole delivery. A file keeps the last reported version,
and a restarted triggerer reads it again, so it also reports a change in between. The very first
look reports nothing. The file is written after Airflow has received the event. If the triggerer is
killed in between, a change is reported twice, and the second run finds everything cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from pydantic import Field, RootModel

from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.raw_data.folder import glance, raw_folder
from pipeline_ops.storage.atomic import write_json
from pipeline_ops.storage.parsing import read_json_as

Glance = tuple[Annotated[str, Field(max_length=1000)], Annotated[int, Field(ge=0, lt=2**63)]]
"""The version of the present files, and their number."""


class _Told(RootModel[Glance]):
    """The content of the file that keeps the last reported version."""


class RawFilesTrigger(BaseEventTrigger):
    """Fires for each change, and continues.

    Args:
      folder: an absolute path, or a URI.
      state: the file that keeps the last reported version.
      every_seconds: the time between two looks.
    """

    def __init__(self, folder: str, state: str, every_seconds: float):
        super().__init__()
        self.folder, self.state, self.every_seconds = folder, state, every_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "pipeline_ops.operators.raw_files.RawFilesTrigger", {
            "folder": self.folder,
            "state": self.state,
            "every_seconds": self.every_seconds,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        before, state = None, Path(self.state)
        while True:
            now = await asyncio.to_thread(self._look)
            told = await asyncio.to_thread(self._told, state)
            if is_new(before, now, told):
                if told is not None:
                    yield TriggerEvent(
                        {"folder": self.folder, "version": now[0], "num_files": now[1]}
                    )
                await asyncio.to_thread(write_json, state, list(now))
            before = now
            await asyncio.sleep(self.every_seconds)

    def _told(self, state: Path) -> Glance | None:
        """The last reported version; None if it is unknown, as after damage to the file.

        The next look writes the file again.
        """
        try:
            told = read_json_as(_Told, state.parent, state.name)
        except DataError as error:
            self.log.warning("%s; it is written again", error)
            return None
        return told and told.root

    def _look(self) -> Glance | None:
        """The present version; None if the files cannot be listed.

        Such a failure may pass and is not a change.
        """
        try:
            return glance(raw_folder(self.folder, Path("/")))
        except TrainyardError as error:
            self.log.warning("the raw files can't be listed now: %s", error)
            return None


def is_new(before: Glance | None, now: Glance | None, told: Sequence[Any] | None) -> bool:
    """Returns whether the present version is stable and differs from the last reported one."""
    return now is not None and now == before and (told is None or tuple(told) != now)
