"""The folder of a job on its own host, while its attempt is in a bucket.

All processes of a job on one host use this folder like an attempt's folder in the store. A thread
copies what they append to logs and progress into the store, once a second. It copies the page of
refused data (`data.html`), which is written once, in the same way. The first process to find the
leftovers of a killed job on its host copies the rest.

If the store is a folder, the attempt's own folder is used, and nothing is copied.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from pipeline_ops.artifacts.layout import Attempt
from pipeline_ops.errors import DataError, TrainyardError
from pipeline_ops.jobs.request import Request, compute_request_digest, read_request
from pipeline_ops.jobs.user_files import write_user_files
from pipeline_ops.storage.atomic import make_write_error, write_atomically
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.outage import StoreAway
from pipeline_ops.storage.own_folders import open_private_folder
from pipeline_ops.storage.staging import remove_own_folder
from pipeline_ops.storage.store import LogWriter
from pipeline_ops.storage.store_path import StorePath

LOCAL_FOLDER_VARIABLE = "TRAINYARD_LOCAL_FOLDER"
REQUEST_VARIABLE = "TRAINYARD_REQUEST"
"""The variable with the digest of the request, in the processes of a job on all hosts."""
_SHIP_SECONDS = 1.0
_CHUNK_BYTES = 4 << 20
_APPENDED = (".log", ".jsonl", ".html")
_log = logging.getLogger(__name__)


def find_local_folder(place: StorePath) -> Path:
    """The folder of this host that stands for a place in the store. It need not exist."""
    if place.is_local:
        return place.local
    return find_jobs_folder() / compute_digest(str(place))


def find_jobs_folder() -> Path:
    """The folder of this host that holds the local folders of this user's jobs."""
    local = Path(os.environ.get(LOCAL_FOLDER_VARIABLE) or "~/.cache").expanduser()
    return local / "trainyard-jobs" / str(os.geteuid())


def make_local_folder(place: StorePath) -> Path:
    """The folder of this host that stands for a place in the store.

    It is created for a place in a bucket. Only this user can read it.

    Raises:
      MachineError: the disk refused the folder, or it is not private to this user.
    """
    folder = find_local_folder(place)
    if place.is_local:
        return folder
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            with open_private_folder(each, f"set {LOCAL_FOLDER_VARIABLE} to another folder"):
                pass
    except OSError as error:
        raise make_write_error(folder, error) from error
    return folder


@contextlib.contextmanager
def open_workspace(attempt: Attempt[StorePath]) -> Iterator[Attempt[Path]]:
    """Yields the attempt as the processes of the job see it on this host.

    When the block has ended, everything that they appended is in the store.
    """
    if attempt.folder.is_local:
        yield Attempt(attempt.folder.local)
        return
    workspace = copy_request(attempt)
    shipper = _Shipper(workspace.folder, attempt.folder)
    is_over = threading.Event()
    thread = threading.Thread(target=shipper.run, args=(is_over,), name="shipper", daemon=True)
    thread.start()
    try:
        yield workspace
    finally:
        is_over.set()
        thread.join()
        shipper.ship()


def copy_request(attempt: Attempt[StorePath]) -> Attempt[Path]:
    """Returns the attempt on this host, with a copy of its request.

    Raises:
      DataError: there is no such attempt in the store, or its request is invalid.
      MachineError: the store or the disk failed.
    """
    request = read_planned_request(attempt)
    workspace = Attempt(make_local_folder(attempt.folder))
    request = write_user_files(request, workspace.folder)
    write_atomically(workspace.request, request.model_dump_json().encode(), mode=0o600)
    return workspace


def read_planned_request(attempt: Attempt[StorePath]) -> Request:
    """The request as Airflow has planned it.

    Others may write to the bucket. The digest travels by the way that starts the job.

    Raises:
      DataError: there is no request, it is invalid, or it is another one.
    """
    request = read_request(attempt.request)
    expected = os.environ.get(REQUEST_VARIABLE)
    if expected and compute_request_digest(request) != expected:
        raise DataError(
            f"{attempt.request} is not the request that Airflow has written. Find out who else "
            "writes there, and clear the task."
        )
    return request


def ship_leftovers(attempt: Attempt[StorePath]) -> None:
    """Copies what a dead job on this host has left into the store, and removes its folder."""
    if attempt.folder.is_local:
        return
    folder = find_local_folder(attempt.folder)
    if folder.is_dir():
        _Shipper(folder, attempt.folder).ship()
        remove_own_folder(folder)


class _Shipper:
    """Copies appended files from a folder to the store."""

    def __init__(self, folder: Path, target: StorePath):
        self._folder, self._target = folder, target
        self._writers: dict[str, LogWriter] = {}

    def run(self, is_over: threading.Event) -> None:
        while not is_over.wait(_SHIP_SECONDS):
            try:
                self.ship()  # after an error, the next round copies the same bytes
            except StoreAway:
                continue  # `outage.py` has said so
            except TrainyardError as error:
                _log.warning("The progress of this job cannot be stored: %s", error)

    def ship(self) -> None:
        """Copies everything new. Raises MachineError or ConfigError if the store refuses it."""
        for entry in sorted(os.scandir(self._folder), key=lambda entry: entry.name):
            if entry.name.endswith(_APPENDED) and entry.is_file(follow_symlinks=False):
                self._ship_file(entry.name)

    def _ship_file(self, name: str) -> None:
        with open(self._folder / name, "rb") as file:
            if name not in self._writers:
                if os.fstat(file.fileno()).st_size == 0:
                    return
                self._writers[name] = (self._target / name).open_log()
            writer = self._writers[name]
            file.seek(writer.size)
            while data := file.read(_CHUNK_BYTES):
                writer.append(data)
