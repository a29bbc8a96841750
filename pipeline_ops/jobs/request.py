"""The request of an operator to a job, and the job's status when it ends.

An operator writes `request.json` into a fresh attempt folder and starts `python -m <module>
--request <path>`. The job answers with `status.json` in the same folder, by rename, and with its
exit code. A job without a status was killed. Only the owner can read the folder and the request,
because a hosts file may put secrets into the environment of workers.
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
    """One job, complete: the job reads no other source to find out what to do."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    job: str
    pipeline: str
    run_id: str
    config_file: str
    config: dict[str, Any]
    """The job's section of the pipeline config, as JSON."""
    hosts: dict[str, Any] | None = None
    """For training: the hosts file's content. Null for this machine."""
    inputs: dict[str, Input] = {}
    """Manifests to read, by name."""
    root: str
    """The storage root."""
    artifact: str
    """The folder to create. Its name is the fingerprint."""
    fingerprint: Fingerprint
    deadline_seconds: int
    training: PlannedTraining | None = None
    """For preprocessing: the training that it is for, which is checked before any work.

    Null skips the check.
    """
    reason: str = ""
    """The reason why the job was started, for people."""


class Status(BaseModel):
    """The end of a job. `manifest` is the URI of its artifact, and `message` is for people."""

    model_config = ConfigDict(frozen=True)

    exit_code: ExitCode
    manifest: str | None = Field(None, max_length=8192)
    message: str = ""

    @field_validator("message")
    @classmethod
    def _cut(cls, message: str) -> str:
        """Shortens a long message and replaces broken characters, so that it fits into the file."""
        return message[:_MAX_MESSAGE].encode(errors="replace").decode()


def write_request(attempt: Attempt, request: Request) -> None:
    """Writes the request. Only the owner can read the folder and the file."""
    content = (request.model_dump_json(indent=2) + "\n").encode()
    try:
        attempt.folder.parent.mkdir(parents=True, exist_ok=True)
        attempt.folder.mkdir(mode=0o700, exist_ok=True)
        write_below(*attempt.below_root(attempt.request), content)
    except OSError as error:
        raise could_not_write(attempt.request, error) from error


def read_request(path: Path | str, root: Path | None = None) -> Request:
    """The request in a file.

    Args:
      path: the file.
      root: the trusted folder of `read_json_as`, by default the file's own folder.

    Raises:
      DataError: there is no request, or it is invalid.
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
    """The status of a job. None if the job has not ended, or was killed before it could write one.

    Raises:
      DataError: the file is not a status.
    """
    return attempt.read(Status, attempt.status)
