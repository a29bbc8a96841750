"""The life of a job process: reads the request, does the work once, and reports the result.

    if __name__ == "__main__":
        run_job(preprocess)

`preprocess(job)` fills the folder that `job.artifact()` opens, and returns a code that leaves a
manifest. This module does the rest: the lock (two processes never make the same artifact), the
deadline, SIGTERM, the end of a job that is no longer wanted, the status, and the table from
exceptions to exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from pipeline_ops.artifacts.layout import Attempt, lock_file, work_folder
from pipeline_ops.artifacts.manifest import NAME, Manifest, ManifestFile, list_files, write_manifest
from pipeline_ops.errors import Cancelled, ExitCode, TrainyardError
from pipeline_ops.jobs.cancellation import while_wanted
from pipeline_ops.jobs.progress import ProgressWriter
from pipeline_ops.jobs.request import Request, Status, read_request, write_status
from pipeline_ops.storage.atomic import exclusive_lock, remove_own, staging_folder
from pipeline_ops.storage.read_errors import exit_code_of
from pipeline_ops.system.temp_dirs import own_temporary_folder


@dataclasses.dataclass(frozen=True)
class Job:
    """A request that is being processed."""

    request: Request
    attempt: Attempt
    progress: ProgressWriter

    @property
    def folder(self) -> Path:
        """The artifact's final folder."""
        return Path(self.request.artifact)

    @property
    def work(self) -> Path:
        """A folder that outlives this try and is removed once the artifact exists."""
        return work_folder(self.folder)

    @contextlib.contextmanager
    def artifact(self) -> Iterator[ArtifactDraft]:
        """Yields the draft of the artifact, whose files go below `.folder`.

        Leaving the block adds the manifest and publishes the artifact.
        """
        with staging_folder(self.folder) as staging:
            draft = ArtifactDraft(staging)
            yield draft
            write_manifest(
                staging,
                Manifest(
                    job=self.request.job,
                    pipeline=self.request.pipeline,
                    fingerprint=self.request.fingerprint,
                    fingerprint_digest=self.request.fingerprint.digest,
                    inputs=self.request.inputs,
                    seeds=draft.seeds,
                    files=list_files(staging, draft.num_examples, draft.linked),
                    figures=draft.figures,
                ),
            )
        remove_own(self.work)


@dataclasses.dataclass
class ArtifactDraft:
    """Files below `folder`, and other content of the manifest. `num_examples` is by shard path.

    `linked` are files that are shared with another artifact, by path, as in its manifest.
    """

    folder: Path
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, int] = dataclasses.field(default_factory=dict)
    num_examples: dict[str, int] = dataclasses.field(default_factory=dict)
    linked: dict[str, ManifestFile] = dataclasses.field(default_factory=dict)


def run_job(work: Callable[[Job], ExitCode]) -> NoReturn:
    """Runs the job that the command line names, and exits with its code."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--request", type=Path, required=True, help="the request.json that an operator wrote"
    )
    sys.exit(run_request(work, parser.parse_args().request))


def run_request(work: Callable[[Job], ExitCode], path: Path) -> ExitCode:
    """Runs one request like `run_job`, without exiting."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    signal.signal(signal.SIGTERM, _cancel)
    attempt = Attempt(path.parent)
    try:
        request = read_request(path)
        with (
            while_wanted(attempt),
            _deadline(request.deadline_seconds, attempt),
            own_temporary_folder(request.job),
        ):
            status = _do_once(work, Job(request, attempt, ProgressWriter(attempt.progress)))
    except TrainyardError as error:
        status = Status(exit_code=error.exit_code, message=str(error))
    except KeyboardInterrupt:
        status = Status(exit_code=ExitCode.CANCELLED, message="interrupted")
    except MemoryError as error:
        status = Status(exit_code=ExitCode.RETRY, message=f"out of memory: {error}")
    except Exception as error:  # the log must show the place
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        status = Status(
            exit_code=exit_code_of(error), message=f"{kind}{error}; the log is {attempt.log}"
        )
        traceback.print_exc()
    if status.message:
        logging.getLogger(__name__).info("%s: %s", status.exit_code.name, status.message)
    write_status(attempt, status)
    return status.exit_code


def _do_once(work: Callable[[Job], ExitCode], job: Job) -> Status:
    """Does the work, unless the artifact exists.

    Another Airflow, or another run, may be making the same artifact. This job then waits for it, at
    most until its own deadline.
    """
    manifest, what = (
        job.folder / NAME,
        f"the {job.request.job} of {job.request.pipeline} {job.folder.name}",
    )

    def tell(reason: str) -> None:
        job.progress.report("wait", message=reason)

    with exclusive_lock(lock_file(job.folder), what, job.request.deadline_seconds, tell):
        if (
            manifest.exists()
        ):  # another run was faster, or this process's predecessor died after its last rename
            return Status(
                exit_code=ExitCode.SUCCESS,
                manifest=str(manifest),
                message="made by another run meanwhile",
            )
        code = work(job)
    return Status(exit_code=code, manifest=str(manifest) if code.leaves_manifest else None)


def _cancel(_signal: int, _frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    raise Cancelled("cancelled by SIGTERM")


@contextlib.contextmanager
def _deadline(seconds: int, attempt: Attempt) -> Iterator[None]:
    """Ends the whole process group when the time is up, even if the main thread hangs."""

    def end() -> None:
        write_status(
            attempt,
            Status(exit_code=ExitCode.RETRY, message=f"not done after timeout_seconds ({seconds})"),
        )
        os.killpg(
            os.getpgrp(), signal.SIGKILL
        )  # the job leads a group of its own: `start_detached`

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
