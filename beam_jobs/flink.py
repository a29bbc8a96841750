"""Flink's REST API, as far as a job on it needs it."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any, NamedTuple

from pipeline_ops.errors import ConfigError, MachineError

_ANSWER_SECONDS = 10
_ENDS = ("FINISHED", "FAILED", "CANCELED")


class FlinkJob(NamedTuple):
    """A job as Flink lists it."""

    id: str
    state: str

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDS

    @property
    def is_done(self) -> bool:
        return self.state == "FINISHED"


class Flink:
    """A Flink cluster, by the address of its REST API.

    All methods raise MachineError if it does not answer.
    """

    def __init__(self, address: str):
        self.address = address

    def find_jobs(self, name: str) -> list[FlinkJob]:
        """The jobs that Beam has started under a name, the newest first."""
        found = [job for job in self._ask("/jobs/overview")["jobs"] if job["name"].startswith(name)]
        found.sort(key=lambda job: job["start-time"], reverse=True)
        return [FlinkJob(job["jid"], job["state"]) for job in found]

    def get_page(self, job: FlinkJob) -> str:
        return f"{self.address}/#/job/running/{job.id}"

    def read_error(self, job: FlinkJob) -> str:
        """The last failure, after which Flink repeats a step or gives up. "" if there was none."""
        return self._ask(f"/jobs/{job.id}/exceptions").get("root-exception") or ""

    def cancel(self, job: FlinkJob) -> None:
        """Beam's own way ends the job only for Beam, and leaves it running on Flink."""
        self._ask(f"/jobs/{job.id}?mode=cancel", "PATCH")

    def check_slots(self, parallelism: int) -> str:
        """Returns a message if a job has to wait for a slot, else "".

        Raises ConfigError if it would wait in vain.
        """
        found = self._ask("/overview")
        total, needed = found["slots-total"], max(parallelism, 1)
        if total < needed:
            raise ConfigError(
                f"preprocess.runner: Flink at {self.address} has {found['taskmanagers']} "
                f"TaskManagers with {total} slots together, and the job needs {needed}",
                "Start TaskManagers, or lower preprocess.runner.parallelism.",
            )
        if found["slots-available"]:
            return ""
        return f"all {total} slots of Flink at {self.address} are taken: the job waits for one"

    def _ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(self.address + path, method=method)  # noqa: S310  (http)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
                return json.loads(answer.read() or b"{}")
        except (OSError, HTTPException, ValueError) as error:  # a ValueError: it is no JSON
            raise MachineError(
                "preprocess.runner.rest_address: Flink's REST API does not answer at "
                f"{self.address}: {error!s:.200}",
                "Start Flink, or correct the address.",
            ) from error
