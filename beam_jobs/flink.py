"""Flink's REST API, as far as a job on it needs it."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from typing import TypeVar

from pydantic import BaseModel, Field

from pipeline_ops.errors import MachineError

_ANSWER_SECONDS, _MAX_BYTES = 10, 64 << 20
_Answer = TypeVar("_Answer", bound=BaseModel)
_ENDS = ("FINISHED", "FAILED", "CANCELED")


class FlinkJob(BaseModel):
    """A job as Flink lists it."""

    id: str = Field(alias="jid")
    name: str
    state: str
    start_time: int = Field(alias="start-time")

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDS

    @property
    def is_done(self) -> bool:
        return self.state == "FINISHED"


class _Jobs(BaseModel):
    jobs: list[FlinkJob]


class _Overview(BaseModel):
    total: int = Field(alias="slots-total")
    free: int = Field(alias="slots-available")


class _Exceptions(BaseModel):
    reason: str | None = Field(None, alias="root-exception")


class _Nothing(BaseModel):
    pass


class Flink:
    """A Flink cluster, by the address of its REST API.

    All methods raise MachineError if it does not answer.
    """

    def __init__(self, address: str):
        self.address = address

    def find_jobs(self, name: str) -> list[FlinkJob]:
        """The jobs that Beam has started under a name, the newest first."""
        answer = self._ask("/jobs/overview", _Jobs)
        found = [job for job in answer.jobs if job.name.startswith(name)]
        return sorted(found, key=lambda job: job.start_time, reverse=True)

    def get_page(self, job: FlinkJob) -> str:
        return f"{self.address}/#/job/running/{job.id}"

    def read_error(self, job: FlinkJob) -> str:
        """The last failure, after which Flink repeats a step or gives up. "" if there was none."""
        return self._ask(f"/jobs/{job.id}/exceptions", _Exceptions).reason or ""

    def cancel(self, job: FlinkJob) -> None:
        """Beam's own way ends the job only for Beam, and leaves it running on Flink."""
        self._ask(f"/jobs/{job.id}?mode=cancel", _Nothing, "PATCH")

    def check_slots(self, parallelism: int) -> str:
        """Returns a message if a job has to wait for slots, else "".

        It is no error: on Kubernetes, Flink starts TaskManagers when a job asks for them.
        """
        found, needed = self._ask("/overview", _Overview), max(parallelism, 1)
        if found.free >= needed:
            return ""
        return (
            f"Flink at {self.address} has {found.total} slots, {found.free} of them free. The job "
            f"waits for {needed}. Start TaskManagers, or lower preprocess.runner.parallelism."
        )

    def _ask(self, path: str, model: type[_Answer], method: str = "GET") -> _Answer:
        request = urllib.request.Request(self.address + path, method=method)  # noqa: S310  (http)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
                return model.model_validate_json(answer.read(_MAX_BYTES) or b"{}")
        except (OSError, HTTPException, ValueError) as error:  # a ValueError: it is another answer
            raise MachineError(
                "preprocess.runner.rest_address: Flink's REST API does not answer at "
                f"{self.address}: {error!s:.200}",
                "Start Flink, or correct the address.",
            ) from error
