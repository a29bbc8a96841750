"""The request of an operator to a job, and the job's status when it ends.

An operator writes `request.json` into a fresh attempt folder and starts `python -m <module>
--request <path>`. The job answers with `status.json` in the same folder, by rename, and with its
exit code. A job without a status was killed. Only the owner can read the folder and the request.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline_ops.contract.explanation import Explanation
from pipeline_ops.contract.fingerprint import Fingerprint
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.manifest import Input
from pipeline_ops.contract.planned_training import PlannedTraining
from pipeline_ops.contract.pruning import PlannedTrial
from pipeline_ops.contract.serving_statistics import ServingStatistics
from pipeline_ops.errors import DataError, ExitCode, MachineError, TrainyardError
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import (
    EncodedBytes,
    RelativePath,
    format_json,
    translate_write_errors,
)
from pipeline_ops.storage.parsing import read_json_as
from pipeline_ops.storage.store_path import StorePath, StoreUsage

_MAX_REQUEST_BYTES = 96 << 20
_MAX_MESSAGE = 100_000
_RESERVE_BYTES = 4096
_MAX_RESERVED_MESSAGE = 1000


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
    """For training: the hosts file's content, without its environment. Null for this machine."""
    inputs: dict[str, Input] = {}
    """Manifests to read, by name."""
    root: str
    """The storage root, a path or a URI."""
    artifact: str
    """The folder to create, a path or a URI. Its name is the fingerprint."""
    is_damaged: bool = False
    """Whether an artifact of that name is there, is damaged, and must be removed first."""
    fingerprint: Fingerprint
    deadline_seconds: int
    training: PlannedTraining | None = None
    """For preprocessing and training: the training that is checked before any work. Null skips the
    check of a data set."""
    trial: PlannedTrial | None = None
    """For training: the trial, if a pruner may stop it early."""
    serving: ServingStatistics | None = None
    """For evaluation: the requests to the model in service, up to the plan. Null without any."""
    user_files: dict[RelativePath, EncodedBytes] = {}
    """The author's modules and files beside the config, by path. The job uses no other copy."""
    code_digest: str = ""
    """The digest of this project's code on Airflow's host, if the job runs elsewhere."""
    reason: str = ""
    """The reason why the job was started, for people."""


class Status(Explanation):
    """The end of a job. `manifest` is the URI of its artifact, and `message` is for people."""

    exit_code: ExitCode
    manifest: str | None = Field(None, max_length=8192)
    is_out_of_memory: bool = False
    """Whether a worker's device had no memory for a step."""
    store: StoreUsage = StoreUsage()
    """The requests of the job's main process to a bucket."""

    @classmethod
    def of_error(cls, error: TrainyardError) -> Status:
        return cls(
            exit_code=error.exit_code,
            message=str(error),
            cure=error.cure,
            location=error.location,
            place=error.place,
        )

    @field_validator("message")
    @classmethod
    def _truncate(cls, message: str) -> str:
        """Shortens a long message and replaces broken characters, so that the file can hold it."""
        return message[:_MAX_MESSAGE].encode(errors="replace").decode()


def write_request(attempt: Attempt[StorePath], request: Request) -> None:
    """Writes the request. In a folder, only the owner can read the folder and the file."""
    if attempt.folder.is_local:
        make_private_folder(attempt)
        attempt.reserve.write(bytes(_RESERVE_BYTES))
    attempt.request.write((request.model_dump_json(indent=2) + "\n").encode(), mode=0o600)


def read_request(file: StorePath) -> Request:
    """The request in a file. Raises DataError if there is no request, or it is invalid."""
    request = read_json_as(Request, file, _MAX_REQUEST_BYTES)
    if request is None:
        raise DataError(f"{file}: there is no such request. An operator writes it.")
    return request


def make_private_folder(attempt: Attempt[StorePath]) -> None:
    """Makes the folder of an attempt, if the root is a folder. Only the owner can read it."""
    with translate_write_errors(attempt.request.local):
        attempt.folder.local.parent.mkdir(parents=True, exist_ok=True)
        attempt.folder.local.mkdir(mode=0o700, exist_ok=True)


def compute_request_digest(request: Request) -> str:
    return compute_digest(request.model_dump(mode="json"))


def write_status(attempt: Attempt[StorePath], status: Status) -> None:
    """Writes the status, on a full disk into the room that `write_request` has reserved for it."""
    try:
        attempt.status.write(format_json(status.model_dump(mode="json")))
    except MachineError:
        if not (attempt.folder.is_local and attempt.reserve.exists()):
            raise
        _write_into_reserve(attempt, status)
    if attempt.folder.is_local:
        attempt.reserve.remove()


def _write_into_reserve(attempt: Attempt[StorePath], status: Status) -> None:
    """Overwrites the reserved file in place, which needs no room, and gives it its final name."""
    message = status.message[:_MAX_RESERVED_MESSAGE]
    short = status.model_copy(update={"message": message, "cure": "", "location": None})
    content = format_json(short.model_dump(mode="json"))
    claimed = attempt.status.local.with_name(f".{attempt.status.name}.{secrets.token_hex(4)}.tmp")
    with translate_write_errors(attempt.status.local):
        attempt.reserve.local.rename(claimed)  # the deadline's thread may write a status, too
        with open(os.open(claimed, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        claimed.rename(attempt.status.local)


def read_status(attempt: Attempt[StorePath]) -> Status | None:
    """The status of a job. None if it has not ended, or was killed before it could write one."""
    return read_json_as(Status, attempt.status)
