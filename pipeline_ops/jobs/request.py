"""What an operator asks of a job, and what a job says when it ends.

An operator writes `request.json` into a fresh attempt folder and starts `python -m <module> --request <path>`. The job
answers with `status.json` in the same folder, by rename, and with its exit code. A job without a status was killed.
The folder and the request are for their owner only: a hosts file may put secrets into the environment of workers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.artifacts.manifest import Input
from pipeline_ops.errors import DataError, ExitCode
from pipeline_ops.jobs.planned_training import PlannedTraining
from pipeline_ops.storage.atomic import could_not_write, write_json
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.safe_paths import write_below

_MAX_REQUEST_BYTES = 64 << 20
_MAX_MESSAGE = 100_000


class Request(BaseModel):
    """One job, complete: nothing else is read to find out what to do."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

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
    training: PlannedTraining | None = None
    """For preprocessing: the training that it is for, which is checked before any work. Null: nothing is checked."""
    reason: str = ""
    """Why the job was started, for a person."""


class Status(BaseModel):
    """How a job ended. `manifest` is the URI of what it left, `message` is for a person."""

    model_config = ConfigDict(frozen=True)

    exit_code: ExitCode
    manifest: str | None = Field(None, max_length=8192)
    message: str = ""

    @field_validator("message")
    @classmethod
    def _cut(cls, message: str) -> str:
        """A message of any length fits into the file, and so does one with broken characters."""
        return message[:_MAX_MESSAGE].encode(errors="replace").decode()


def write_request(attempt: Attempt, request: Request) -> None:
    """The folder is for its owner only, and so is the file."""
    content = (request.model_dump_json(indent=2) + "\n").encode()
    try:
        attempt.folder.parent.mkdir(parents=True, exist_ok=True)
        attempt.folder.mkdir(mode=0o700, exist_ok=True)
        write_below(*attempt.below_root(attempt.request), content)
    except OSError as error:
        raise could_not_write(attempt.request, error) from error


def read_request(path: Path | str, root: Path | None = None) -> Request:
    """The request in a file; `root` as in `read_json_as`, by default the file's own folder.

    Raises:
      DataError: there is no request, or not a valid one.
    """
    path = Path(path)
    root = root or path.parent
    request = read_json_as(Request, root, str(path.relative_to(root)), _MAX_REQUEST_BYTES)
    if request is None:
        raise DataError(f"{path}: there is no such request; an operator writes it")
    return request


def write_status(attempt: Attempt, status: Status) -> None:
    write_json(attempt.status, status.model_dump(mode="json"))


def read_status(attempt: Attempt) -> Status | None:
    """None where the job has not ended, or was killed before it could say how.

    Raises:
      DataError: the file is not a status.
    """
    return attempt.read(Status, attempt.status)
