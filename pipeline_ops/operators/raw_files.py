"""Watches a pipeline's raw files from the triggerer, which many such watchers share; no worker is held.

The files are told of once they have stayed as they are from one look to the next, so one event stands for a whole delivery. What was told last
is kept in a file, which a restart of the triggerer reads again: what changed meanwhile is told then. The very first look tells nothing. It is
written after the event has been given to Airflow: if the triggerer is killed in between, a change is told twice, and the second run finds
everything made.
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
"""The version of what is there, and the number of files."""


class _Told(RootModel[Glance]):
    """The content of the file in which it is kept what was told last."""


class RawFilesTrigger(BaseEventTrigger):
    """Fires for each change, and goes on.

    Args:
      folder: an absolute path, or a URI.
      state: the file in which it is kept what was told last.
      every_seconds: between two looks.
    """

    def __init__(self, folder: str, state: str, every_seconds: float):
        super().__init__()
        self.folder, self.state, self.every_seconds = folder, state, every_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "pipeline_ops.operators.raw_files.RawFilesTrigger", {"folder": self.folder, "state": self.state, "every_seconds": self.every_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        before, state = None, Path(self.state)
        while True:
            now = await asyncio.to_thread(self._look)
            told = await asyncio.to_thread(self._told, state)
            if is_new(before, now, told):
                if told is not None:
                    yield TriggerEvent({"folder": self.folder, "version": now[0], "num_files": now[1]})
                await asyncio.to_thread(write_json, state, list(now))
            before = now
            await asyncio.sleep(self.every_seconds)

    def _told(self, state: Path) -> Glance | None:
        """What was told last; None where that is not known, as where the file is damaged. The next look writes it again."""
        try:
            told = read_json_as(_Told, state.parent, state.name)
        except DataError as error:
            self.log.warning("%s; it is written again", error)
            return None
        return told and told.root

    def _look(self) -> Glance | None:
        """None where it can't be seen: that may pass, and is no change."""
        try:
            return glance(raw_folder(self.folder, Path("/")))
        except TrainyardError as error:
            self.log.warning("the raw files can't be listed now: %s", error)
            return None


def is_new(before: Glance | None, now: Glance | None, told: Sequence[Any] | None) -> bool:
    """Whether what is seen now stands still, and is not what was told last."""
    return now is not None and now == before and (told is None or tuple(told) != now)
