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
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from pipeline_ops.contracts.errors import TrainyardError
from pipeline_ops.contracts.files import read_json, write_json
from pipeline_ops.contracts.raw_folder import glance, raw_folder

Glance = tuple[str, int]
"""The version of what is there, and the number of files."""


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
            told = await asyncio.to_thread(read_json, state)
            if is_new(before, now, told):
                if told is not None:
                    yield TriggerEvent({"folder": self.folder, "version": now[0], "num_files": now[1]})
                await asyncio.to_thread(write_json, state, list(now))
            before = now
            await asyncio.sleep(self.every_seconds)

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
