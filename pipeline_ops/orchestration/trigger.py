"""Monitors a job from the triggerer, so that hours of training hold no worker slot.

Airflow calls `on_kill` when a person marks the task failed or clears it, unless the trigger has not
begun yet. The orphan reaper finds the jobs of such triggers (`orphan_reaper.py`). A restart
of the triggerer calls only `cleanup`, which does not touch the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from pipeline_ops.config.hosts import parse_hosts
from pipeline_ops.contract.layout import Layout
from pipeline_ops.errors import MachineError
from pipeline_ops.orchestration.airflow_connections import use_airflow_connections
from pipeline_ops.orchestration.job_handle import JobHandle
from pipeline_ops.orchestration.job_start import ProgressLog
from pipeline_ops.places.open_place import make_place
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_options import StoreOptions, wait_at_most

use_airflow_connections()

_POLL_SECONDS = 0.5
_MAX_POLL_SECONDS = 5.0
"""The longest time between two reads of a bucket."""


class JobTrigger(BaseTrigger):
    """Fires once, when the job has ended. The task reads the outcome from the job's own status.

    Args:
      root: the storage root.
      options: the `StoreOptions` of the root.
      record: the name of the record and of the folder of the task's attempts.
      attempt: the name of the attempt.
      runs_on: the hosts file of the job's place. None is this host.
      offset, log_offset: positions in the progress and log files (`ProgressLog`).
    """

    def __init__(
        self,
        root: str,
        options: dict[str, Any],
        pipeline: str,
        run_id: str,
        record: str,
        attempt: str,
        offset: int = 0,
        runs_on: dict[str, Any] | None = None,
        log_offset: int | None = None,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments = {
            "root": root,
            "options": options,
            "pipeline": pipeline,
            "run_id": run_id,
            "record": record,
            "attempt": attempt,
            "offset": offset,
            "runs_on": runs_on,
            "log_offset": log_offset,
        }
        opened = open_root(root, StoreOptions.model_validate(options))
        self._job = JobHandle(
            Layout(opened, pipeline).attempt(run_id, record, attempt),
            make_place(parse_hosts(runs_on) if runs_on else None),
        )
        self._progress = ProgressLog(self._job.attempt, offset, log_offset)
        self._is_away = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "pipeline_ops.orchestration.trigger.JobTrigger", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        seconds = _POLL_SECONDS
        while not await asyncio.to_thread(self._look):
            await asyncio.sleep(seconds)
            if not self._job.attempt.folder.is_local:
                seconds = min(seconds * 1.1, _MAX_POLL_SECONDS)
        yield TriggerEvent({"attempt": self._arguments["attempt"]})  # type: ignore[no-untyped-call]

    def _look(self) -> bool:
        """Logs the progress. Returns whether the job has ended.

        The threads of the triggerer do not wait for an unreachable store, which is logged once.
        """
        try:
            with wait_at_most(0):
                has_ended = self._job.read_outcome() is not None
                self._progress.write_due_lines(self.log.info)
        except MachineError as error:
            if not self._is_away:
                self.log.warning("%s Waiting for it, as long as the task may run.", error)
            self._is_away = True
            return False
        if self._is_away:
            self.log.warning("The store is there again.")
        self._is_away = False
        return has_ended

    async def on_kill(self) -> None:
        await asyncio.to_thread(
            self._job.end, "its task was ended in Airflow while it was deferred"
        )
