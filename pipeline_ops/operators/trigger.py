"""Watches a job from the triggerer, so that hours of training hold no worker slot.

Every exit of the triggerer calls `cleanup`, even a mere restart. It therefore does not touch the
job. `on_kill` is called when a person marks the task failed or clears it, and ends the job. It is
not called for a trigger that had not begun at that moment. The API server finds such jobs
(`reaper/orphan_reaper.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.operators.process import JobHandle, ProgressLog

_POLL_SECONDS = 0.5


class JobTrigger(BaseTrigger):
    """Fires once, when the job has ended. The task reads the outcome from the job's own status.

    Args:
      root: the storage root, from the author's config.
      pipeline: the pipeline's name.
      run_id: the run.
      record: the name of the record and of the folder of the task's attempts.
      attempt: the name of the attempt.
      offset: the position in the progress file at which to begin.
    """

    def __init__(
        self, root: str, pipeline: str, run_id: str, record: str, attempt: str, offset: int = 0
    ):
        super().__init__()
        self.root, self.pipeline, self.run_id, self.record, self.attempt, self.offset = (
            root,
            pipeline,
            run_id,
            record,
            attempt,
            offset,
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("root", "pipeline", "run_id", "record", "attempt", "offset")
        return "pipeline_ops.operators.trigger.JobTrigger", {
            name: getattr(self, name) for name in names
        }

    @property
    def job(self) -> JobHandle:
        """The job. Raises DataError if the arguments name no attempt."""
        return JobHandle(
            Layout(Path(self.root), self.pipeline).attempt(self.run_id, self.record, self.attempt)
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        job = self.job
        progress = ProgressLog(job.attempt, self.offset)
        while await asyncio.to_thread(job.outcome) is None:
            self._tell(progress)
            await asyncio.sleep(_POLL_SECONDS)
        self._tell(progress)
        yield TriggerEvent({"attempt": self.attempt})

    def _tell(self, progress: ProgressLog) -> None:
        for line in progress.lines():
            self.log.info(line)

    async def on_kill(self) -> None:
        await asyncio.to_thread(self.job.end, "its task was ended in Airflow while it was deferred")
