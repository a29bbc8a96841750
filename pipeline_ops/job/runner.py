"""The life of a job process: reads the request, does the work once, and reports the result.

    if __name__ == "__main__":
        run_job(preprocess)

`preprocess(job)` fills the folder of `job.artifact()`, and returns a code that leaves a manifest.
This module does the rest: the lock (two processes never make the same artifact), the deadline,
SIGTERM, the end of a cancelled job, the status, and the exit code of an exception.

No process serves several tasks, to import TensorFlow once for all: it would outlive the task that
has started it, and a person who ends this task would find it still running.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from pipeline_ops.contract.cancellation import LOST, monitor_cancellation, read_cancellation_reason
from pipeline_ops.contract.layout import Attempt, lock_file, work_folder
from pipeline_ops.contract.manifest import NAME, has_damage, withdraw_artifact
from pipeline_ops.contract.progress import ProgressWriter
from pipeline_ops.contract.request import Request, Status, read_request, write_status
from pipeline_ops.errors import Cancelled, ExitCode, TrainyardError
from pipeline_ops.job.job_code import check_environment, use_user_code, write_user_files
from pipeline_ops.job.workspace import (
    ArtifactDraft,
    find_local_folder,
    make_local_folder,
    open_draft,
    open_workspace,
    read_planned_request,
)
from pipeline_ops.storage.local_files import (
    describe_os_error,
    remove_own_folder,
    translate_write_errors,
)
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.read_errors import has_disk_error_message, summarize_error, to_exit_code
from pipeline_ops.storage.store_path import StorePath, read_usage
from pipeline_ops.system.lease import Lease, hold_lease
from pipeline_ops.system.temp_dirs import use_temporary_folder
from pipeline_ops.user_code.code_location import get_location

INIT_VARIABLE = "TRAINYARD_INIT"
"""Set by the init process of a place other than Airflow's host (`init_process.py`)."""
_FULL_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Job:
    """A request that is being processed."""

    request: Request
    attempt: Attempt[Path]
    """The files of this try on this host."""
    progress: ProgressWriter
    lease: Lease
    """The right to make the artifact."""
    stored_attempt: StorePath | None = None
    """The folder of this try, if it is in a bucket."""
    ends_at: float = math.inf
    """The deadline, by this host's monotonic clock."""

    @property
    def seconds_left(self) -> float:
        """The time until all processes of the job are killed."""
        return self.ends_at - time.monotonic()

    @property
    def folder(self) -> StorePath:
        """The artifact's final folder."""
        return open_path(self.request.artifact)

    @property
    def code_folder(self) -> Path:
        """The folder with the author's modules and files that travelled with the request."""
        return write_user_files(self.request.user_files, self.attempt.folder)

    @property
    def work(self) -> Path:
        """A folder of this host that outlives this try. It is removed once the artifact exists."""
        return find_local_folder(work_folder(self.folder))

    def make_work(self) -> None:
        """Makes the folder `work`. In a host's cache, only this user can read it."""
        folder = make_local_folder(work_folder(self.folder))
        with translate_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def artifact(self, is_kept: bool = False) -> Iterator[ArtifactDraft]:
        """Yields the draft of the artifact, whose files go below `.folder`.

        Leaving the block adds the manifest and publishes the artifact, also in the place of a
        damaged one. If the draft `is_kept`, the next try continues with it, see `open_draft`.
        """
        with open_draft(self.folder, self.request, self.lease, is_kept) as draft:
            yield draft
        self.remove_work()

    def remove_work(self) -> None:
        """Removes the folder `work`, and its copy in a bucket, when no other try continues."""
        remove_own_folder(self.work)
        if not self.folder.is_local:
            work_folder(self.folder).remove_tree()


def run_job(work: Callable[[Job], ExitCode]) -> NoReturn:
    """Runs the job that the command line names, and exits with its code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", required=True, help="the request.json that an operator wrote")
    sys.exit(run_request(work, parser.parse_args().request))


def run_request(work: Callable[[Job], ExitCode], uri: str | Path) -> ExitCode:
    """Runs one request like `run_job`, without exiting."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    signal.signal(signal.SIGTERM, _cancel)
    attempt = Attempt(open_path(uri).root)
    try:
        request = read_planned_request(attempt)
        with (
            monitor_cancellation(attempt),
            _deadline(request.deadline_seconds, attempt) as ends_at,
            use_temporary_folder(request.job),
            open_workspace(attempt) as workspace,
        ):
            request = read_request(open_path(workspace.request))
            with use_user_code(request, workspace.folder) as code_folder:
                if INIT_VARIABLE in os.environ:
                    check_environment(request, code_folder)
                status = _do_once(work, request, workspace, attempt, ends_at)
    except TrainyardError as error:
        status = _make_status(error, attempt)
    except KeyboardInterrupt:
        status = Status(exit_code=ExitCode.CANCELLED, message="interrupted")
    except MemoryError as error:
        status = Status(exit_code=ExitCode.RETRY, message=f"out of memory: {error}")
    except Exception as error:  # the log must show the traceback
        folders = find_local_folder(attempt.folder), Path(tempfile.gettempdir())
        status = Status(
            exit_code=to_exit_code(error),
            message=f"{_explain(error, folders)}. See {attempt.log}.",
            cure=f"See {attempt.log}.",
            location=get_location(error),
        )
        _log.exception("the job has failed")  # logging does not raise, even on a full disk
    if status.message:
        _log.info("%s: %s", status.exit_code.name, status.message)
    # Files of this host are known elsewhere by their places in the store.
    here, there = str(find_local_folder(attempt.folder)), str(attempt.folder)
    texts = {name: getattr(status, name).replace(here, there) for name in ("message", "cure")}
    status = status.model_copy(update={**texts, "store": read_usage()})
    write_status(attempt, status)
    return status.exit_code


def _explain(error: Exception, folders: Iterable[Path]) -> str:
    """The reason of an unexpected error. The system does not say which disk is full."""
    if has_disk_error_message(error):
        return f"{summarize_error(error)}. Free disk space or repair the disk, then retry"
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return str(error)
    full = [
        f", and the disk of {folder} is full"
        for folder in folders
        if folder.exists() and shutil.disk_usage(folder).free < _FULL_BYTES
    ]
    file = error.filename or "a file"
    return f"cannot write {file}: {describe_os_error(error)}{''.join(full)}. Free space, then retry"


def _make_status(error: TrainyardError, attempt: Attempt[StorePath]) -> Status:
    """The status for an error. A job that a cluster stops by SIGTERM is tried again."""
    if isinstance(error, Cancelled):
        reason = read_cancellation_reason(attempt)
        if reason == LOST:
            return Status(exit_code=ExitCode.RETRY, message=LOST)
        if reason is None and INIT_VARIABLE in os.environ:
            return Status(
                exit_code=ExitCode.RETRY,
                message="its host has stopped the job (preemption, eviction or shutdown)",
            )
    return Status.of_error(error)


def _do_once(
    work: Callable[[Job], ExitCode],
    request: Request,
    attempt: Attempt[Path],
    stored: Attempt[StorePath],
    ends_at: float,
) -> Status:
    """Does the work, unless the artifact exists.

    While another job makes the same artifact, this one waits, at most until its own deadline.
    """
    artifact, progress = open_path(request.artifact), ProgressWriter(attempt.progress)
    manifest = artifact / NAME
    resource = f"the {request.job} of {request.pipeline} {artifact.name}"

    def report_wait(reason: str) -> None:
        progress.report("wait", message=reason)

    with hold_lease(lock_file(artifact), resource, request.deadline_seconds, report_wait) as lease:
        # An export is damaged, too, if its version is gone. It publishes a model only once.
        if request.is_damaged and (request.job == "export" or has_damage(manifest)):
            withdraw_artifact(artifact)
        # Another run was faster, or this process's predecessor died after its last rename.
        if manifest.exists():
            return Status(
                exit_code=ExitCode.SUCCESS,
                manifest=str(manifest),
                message="made by another run in the meantime",
            )
        in_bucket = None if stored.folder.is_local else stored.folder
        code = work(Job(request, attempt, progress, lease, in_bucket, ends_at))
    return Status(exit_code=code, manifest=str(manifest) if code.leaves_manifest else None)


def _cancel(_signal: int, _frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    raise Cancelled("cancelled by SIGTERM")


@contextlib.contextmanager
def _deadline(seconds: int, attempt: Attempt[StorePath]) -> Iterator[float]:
    """Ends the process group at the deadline, even if the main thread hangs. Yields the time."""

    def end() -> None:
        message = f"not done after timeout_seconds ({seconds})"
        try:
            write_status(attempt, Status(exit_code=ExitCode.RETRY, message=message))
        finally:  # also on a full disk
            os.killpg(os.getpgrp(), signal.SIGKILL)  # the job leads its own group: `start_detached`

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield time.monotonic() + seconds
    finally:
        timer.cancel()
