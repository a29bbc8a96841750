"""Watches a job from the triggerer, so that hours of training hold no worker slot.

`cleanup` is called on every exit of the triggerer, also on a mere restart, and therefore does not touch the job;
`on_kill` is called when a person marks the task failed or clears it, and ends the job. Not always: a trigger that had not begun
when that happened is never called. What is missed here is found by the API server (`ui/custodian.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from pipeline_ops.operators.process import JobHandle, ProgressLog

_POLL_SECONDS = 0.5


class JobTrigger(BaseTrigger):
    """Fires once, with the job's status, when the job has ended."""

    def __init__(self, handle: dict[str, Any], offset: int = 0):
        super().__init__()
        self.handle, self.offset = handle, offset

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "pipeline_ops.operators.trigger.JobTrigger", {"handle": self.handle, "offset": self.offset}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        job = JobHandle.from_json(self.handle)
        progress = ProgressLog(job.attempt.progress, self.offset)
        while (status := await asyncio.to_thread(job.outcome)) is None:
            self._tell(progress)
            await asyncio.sleep(_POLL_SECONDS)
        self._tell(progress)
        yield TriggerEvent(status.model_dump(mode="json"))

    def _tell(self, progress: ProgressLog) -> None:
        for line in progress.lines():
            self.log.info(line)

    async def on_kill(self) -> None:
        await asyncio.to_thread(JobHandle.from_json(self.handle).end, "its task was ended in Airflow while it was deferred")
