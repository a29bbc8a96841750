"""What an operator asks of a job, and what a job says when it ends.

An operator writes `request.json` into a fresh attempt folder and starts `python -m <module> --request <path>`. The job
answers with `status.json` in the same folder, by rename, and with its exit code. A job without a status was killed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contracts.errors import ExitCode
from pipeline_ops.contracts.files import read_json, write_json
from pipeline_ops.contracts.fingerprint import Fingerprint
from pipeline_ops.contracts.layout import Attempt
from pipeline_ops.contracts.manifest import Input


class Request(BaseModel):
    """One job, complete: nothing else is read to find out what to do."""

    model_config = ConfigDict(frozen=True)

    job: str
    pipeline: str
    run_id: str
    config_file: str
    config: dict[str, Any]
    """The job's section of the pipeline config, as JSON."""
    hosts: dict[str, Any] | None = None
    """For training: the hosts file's content; null for this machine."""
    inputs: dict[str, Input] = {}
    """Manifests to read, by name."""
    root: str
    """The storage root."""
    artifact: str
    """The folder to make; its name is the fingerprint."""
    fingerprint: Fingerprint
    deadline_seconds: int


class Status(BaseModel):
    """How a job ended. `manifest` is the URI of what it left, `message` is for a person."""

    model_config = ConfigDict(frozen=True)

    exit_code: ExitCode
    manifest: str | None = None
    message: str = ""


def write_request(attempt: Attempt, request: Request) -> None:
    write_json(attempt.request, request.model_dump(mode="json"))


def read_request(path: Path | str) -> Request:
    return Request.model_validate(read_json(Path(path)))


def write_status(attempt: Attempt, status: Status) -> None:
    write_json(attempt.status, status.model_dump(mode="json"))


def read_status(attempt: Attempt) -> Status | None:
    """None where the job has not ended, or was killed before it could say how."""
    value = read_json(attempt.status)
    return None if value is None else Status.model_validate(value)
