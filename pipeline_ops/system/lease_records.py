"""The records of a lease in a bucket: numbered files, each created once."""

from __future__ import annotations

import os
import re
import secrets
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline_ops.errors import DataError
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.processes import ProcessIdentity, get_pid_space

MAX_TOKEN = 99_999_999
"""A number has eight digits, so that names sort as numbers do."""
_RECORD_NAME = re.compile(r"([0-9]{8})\.json")


class LeaseRecord(BaseModel):
    """One step in the life of a lease in a bucket."""

    model_config = ConfigDict(frozen=True)

    state: Literal["held", "released", "committed"]
    holder: ProcessIdentity
    pid_space: str = Field(max_length=128)
    """Where the pid of the holder means anything (`get_pid_space`)."""
    nonce: str = Field(max_length=64)
    """Makes each record different, so that only one of two creators finds its own."""
    target: str | None = Field(None, max_length=2048)
    """For a commit: the file to create, relative to the folder that holds the lease."""


def create_record(
    path: StorePath,
    token: int,
    state: Literal["held", "released", "committed"],
    target: str | None = None,
) -> bytes:
    """Creates a record, and returns its content, which no other record has."""
    record = LeaseRecord(
        state=state,
        holder=ProcessIdentity.from_pid(os.getpid()),
        pid_space=get_pid_space(),
        nonce=secrets.token_hex(8),
        target=target,
    )
    content = record.model_dump_json().encode()
    get_record_path(path, token).create(content)
    return content


def find_tokens(path: StorePath) -> list[int]:
    found = (_RECORD_NAME.fullmatch(entry.name) for entry in path.list_folder())
    return sorted(int(record[1]) for record in found if record)


def remove_records(path: StorePath, below: int) -> None:
    """Removes the files of earlier numbers. The highest record stays for ever."""
    for entry in path.list_folder():
        if entry.name[:8].isdecimal() and int(entry.name[:8]) < below:
            (path / entry.name).remove()


def read_record(path: StorePath, token: int) -> LeaseRecord | None:
    """Reads a record. Raises DataError, with the cure, if it is invalid."""
    place = get_record_path(path, token)
    content = read_optional(place)
    try:
        return parse_json_as(LeaseRecord, content, place) if content else None
    except DataError as error:
        raise DataError(f"{error}. Remove it while no job uses what it protects.") from None


def read_optional(path: StorePath) -> bytes:
    try:
        return path.read(64 << 20)
    except FileNotFoundError:
        return b""


def get_record_path(path: StorePath, token: int) -> StorePath:
    return path / f"{token:08d}.json"


def get_beat_path(path: StorePath, token: int) -> StorePath:
    return path / f"{token:08d}.beat"


def get_content_path(path: StorePath, token: int) -> StorePath:
    return path / f"{token:08d}.content"
