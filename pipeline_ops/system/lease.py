"""Exclusive leases: one process at a time works on something, on any host.

In a folder, a lease is a lock file (`locks.py`). In a bucket, which has no locks, it is a folder of
numbered records, each created once. The one with the highest number is valid:

    00000001.json    held by a process; its number is the holder's token
    00000001.beat    put again every few seconds while that process lives
    00000002.json    released, or committed, or held by the next process

A holder whose beat stays the same for `LEASE_SECONDS`, by the clock of a waiting process, has lost
the lease: the waiting process creates the next record. No two clocks are compared, and the time in
which the store was away does not count. A commit takes the next number, too, so a holder that was
paused for long can't commit any more. The next holder completes the commit of a killed process.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline_ops.errors import ConfigError, DataError, MachineError, TrainyardError
from pipeline_ops.storage.parsing import parse_json_as
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.locks import HolderWait, exclusive_lock
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


def get_record_path(path: StorePath, token: int, kind: str = "json") -> StorePath:
    """The file of a number: its record, its `beat`, or the `content` of its commit."""
    return path / f"{token:08d}.{kind}"


LEASE_SECONDS = 30.0
"""The time without a new beat after which a holder counts as lost."""
_BEAT_SECONDS = 5.0
_LOOK_SECONDS = 10.0
"""The most that counts between two looks at a beat. After a longer time the store was away, for the
holder as well."""


class Lease:
    """The right to work on something, until the block that acquired it ends.

    This class is the lease in a folder. The kernel keeps its lock for a paused holder.
    """

    token = 0
    """Grows with each holder in a bucket."""

    def __init__(self, path: StorePath):
        self._path = path

    def check(self) -> None:
        """Raises MachineError if another process has taken over."""

    def commit(self, target: StorePath, content: bytes) -> None:
        """Creates the file that makes the work of this holder valid, next to the lease or below.

        Raises MachineError, without the file, if another process has taken over.
        """
        target.create(content)

    def discard(self) -> None:
        """Removes the lock file or the records of a resource that is gone, as the last act."""
        self._path.remove()


@contextlib.contextmanager
def hold_lease(
    path: StorePath,
    resource: str,
    wait_seconds: float = 0.0,
    on_wait: Callable[[str], None] = lambda message: None,
) -> Iterator[Lease]:
    """Holds a lease while the block runs.

    `path` is the lock file, or the folder of the records, which has no other files. `resource` is
    for messages. `on_wait` is called once, with the reason, if another process holds the lease.
    Raises ResourceHeld if it still does after `wait_seconds`, and ConfigError if the store does not
    obey conditions.
    """
    if path.is_local:
        with exclusive_lock(path.local, resource, wait_seconds, on_wait):
            yield Lease(path)
        return
    lease = _acquire(path, resource, wait_seconds, on_wait)
    try:
        yield lease
    finally:
        lease.release()


class _BucketLease(Lease):
    """A lease in a bucket. A thread puts its beats."""

    def __init__(self, path: StorePath, token: int, record: bytes, resource: str):
        super().__init__(path)
        self.token = token
        self._record, self._resource = record, resource
        self._is_lost = self._is_ending = self._is_over = False
        self._wake = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._beats.start()

    def check(self) -> None:
        if self._is_lost:
            raise MachineError(
                f"{self._resource}: this process was paused or cut off for more than "
                f"{LEASE_SECONDS:.0f} s, and another one has taken over ({self._path}). Retry."
            )

    def commit(self, target: StorePath, content: bytes) -> None:
        self._is_lost |= not self._is_mine()
        self.check()
        place = str(target).removeprefix(f"{self._path.parent}/")
        get_record_path(self._path, self.token + 1, "content").write(content)
        self._append("committed", place)
        self._is_over = True
        target.create(content)
        get_record_path(self._path, self.token + 1, "content").remove()
        remove_records(self._path, below=self.token + 1)

    def discard(self) -> None:
        self._stop_beats()
        self._is_over = True
        remove_records(self._path, below=self.token)
        get_record_path(self._path, self.token, "beat").remove()
        if self._is_mine():
            get_record_path(self._path, self.token).remove()

    def release(self) -> None:
        """Ends the lease. After a failure, it ends with its expiry or with this process."""
        self._stop_beats()
        if not self._is_over and not self._is_lost:
            with contextlib.suppress(TrainyardError):
                self._append("released")

    def _append(self, state: Literal["released", "committed"], target: str | None = None) -> None:
        """Creates the next record. Raises MachineError if another process was faster."""
        self._is_ending = True  # from now on, the next record may be this holder's own
        try:
            create_record(self._path, self.token + 1, state, target)
        except FileExistsError:
            self._is_lost = True
        # A later holder may have removed both records, and the numbers may have begun again.
        is_last = not self._is_lost and find_tokens(self._path)[-1] == self.token + 1
        if not (is_last and self._is_mine()):
            if not self._is_lost:
                get_record_path(self._path, self.token + 1).remove()
            self._is_lost = True
            self.check()

    def _is_mine(self) -> bool:
        """Returns whether this holder's record is there, which only a later holder removes."""
        return read_optional(get_record_path(self._path, self.token)) == self._record

    def _stop_beats(self) -> None:
        self._wake.set()
        self._beats.join()

    def _beat(self) -> None:
        while not self._wake.wait(_BEAT_SECONDS):
            with contextlib.suppress(TrainyardError):  # the next beat tries again
                get_record_path(self._path, self.token, "beat").write(secrets.token_bytes(8))
                if find_tokens(self._path)[-1:] > [self.token]:
                    self._is_lost |= not self._is_ending
                    return


def _acquire(
    path: StorePath, resource: str, wait_seconds: float, on_wait: Callable[[str], None]
) -> _BucketLease:
    wait = HolderWait(wait_seconds, on_wait, poll_seconds=(0.2, 3.0))
    watch = _HolderWatch(path)
    while True:
        tokens = find_tokens(path)
        last = tokens[-1] if tokens else 0
        record = watch.find_living(last)
        if record is None:
            if created := _try_create_holder(path, last):
                return _BucketLease(path, last + 1, created, resource)
            continue
        holder = f"process {record.holder.pid} on {record.holder.host}"
        wait.wait(f"{resource} is held by {holder} ({path})")


def _try_create_holder(path: StorePath, last: int) -> bytes | None:
    """Makes this process the holder. Returns its record, or None if another one was faster.

    `last` is the highest number so far, or 0. Raises DataError if there is none above it.
    """
    token = last + 1
    if token > MAX_TOKEN:
        raise DataError(
            f"{get_record_path(path, last)} has the highest number, so nobody can hold the lease. "
            "Remove this file."
        )
    try:
        record = create_record(path, token, "held")
    except FileExistsError:
        return None
    try:
        check_conditions(path, lambda: create_record(path, token, "held"))
    except ConfigError:
        if find_tokens(path)[-1] <= token:  # else a later holder has removed the first record
            raise
    if find_tokens(path)[-2:] != [*filter(None, [last]), token]:
        get_record_path(path, token).remove()  # holders have come and gone since the last listing
        return None
    remove_records(path, below=token)
    return record


class _HolderWatch:
    """Watches the holder of a lease, by its beats and this process's clock."""

    def __init__(self, path: StorePath):
        self._path = path
        self._token, self._beat, self._silence = 0, b"", 0.0
        self._looked = time.monotonic()

    def find_living(self, token: int) -> LeaseRecord | None:
        """Returns the record if its holder may be alive, or None if the lease is free."""
        record = read_record(self._path, token) if token else None
        if record is None or record.state == "released":
            return None
        if record.state == "committed":
            # Its process may have been killed before it could create the file.
            content = read_optional(get_record_path(self._path, token, "content"))
            if record.target and content:
                with contextlib.suppress(FileExistsError):
                    (self._path.parent / record.target).create(content)
                get_record_path(self._path, token, "content").remove()
            return None
        if record.pid_space == get_pid_space():
            return record if record.holder.is_alive() else None
        beat = read_optional(get_record_path(self._path, token, "beat"))
        before, self._looked = self._looked, time.monotonic()
        self._silence += min(self._looked - before, _LOOK_SECONDS)
        if (token, beat) != (self._token, self._beat):
            self._token, self._beat, self._silence = token, beat, 0.0
        return record if self._silence <= LEASE_SECONDS else None


def check_conditions(place: StorePath, create_again: Callable[[], object]) -> None:
    """Creates a file that exists, which a store must refuse: else all processes would be first.

    Raises ConfigError if the store has replaced it.
    """
    try:
        create_again()
    except FileExistsError:
        return
    raise ConfigError(
        f"{place}: this store accepts If-None-Match and ignores it, so two runs could overwrite "
        "each other. Use a store with conditional writes."
    )
