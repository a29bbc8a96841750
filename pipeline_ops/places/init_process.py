"""The first process of a job in a container, in a pod, in a Slurm job, or on a host over ssh.

    python -m pipeline_ops.places.init_process MODULE REQUEST

It starts the job as its child and ends after it. What it does for the job:

- Clusters may start a pod or a batch script twice. Only the first init process of an attempt starts
  the job. Any other one waits until the job has ended.
- It copies the job's log to its own output, where `docker logs` and `kubectl logs` show it.
- It passes SIGTERM on and collects the processes that have lost their parent.
- It writes the status of a job that was killed, and copies the rest of its logs to the store.

It imports neither TensorFlow nor Beam.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pipeline_ops.contract.cancellation import GRACE_SECONDS, LOST, read_cancellation_reason
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.request import Status, read_request, read_status, write_status
from pipeline_ops.errors import DataError, ExitCode, MachineError, TrainyardError
from pipeline_ops.job.runner import INIT_VARIABLE
from pipeline_ops.job.workspace import make_local_folder, ship_leftovers
from pipeline_ops.places.local import is_local, read_identity
from pipeline_ops.storage.local_files import format_json
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.system.host import OUT_OF_MEMORY, adopt_orphans, count_memory_kills
from pipeline_ops.system.processes import (
    ATTEMPT_VARIABLE,
    JOB_PYTHON,
    ProcessIdentity,
    collect_children,
    kill_group,
    kill_processes,
    start_detached,
)
from pipeline_ops.system.temp_dirs import sweep

_POLL_SECONDS = 0.1
_WAIT_SECONDS = 5.0
_STOP_SECONDS = 25.0
"""The time that a cluster usually gives a process between SIGTERM and SIGKILL is 30 seconds."""
_REPEATS = (1.0, 5.0, 15.0)
"""The pauses before a status is written again to a store that does not answer."""
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger(__name__)


def main() -> int:
    module, request = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    attempt = Attempt(open_path(request).root)
    try:
        attempt.request.read_range(0, 1)
        attempt.process.create(format_json(ProcessIdentity.from_pid(os.getpid()).to_json()))
    except FileNotFoundError:
        _log.error("There is no request %s. This host must reach the same store.", request)
        return ExitCode.CONFIG
    except FileExistsError:
        return _wait_for_other(attempt)
    except PermissionError as error:
        _log.error("This user (%d) may not use the storage root: %s", os.geteuid(), error)
        return ExitCode.CONFIG
    except TrainyardError as error:
        _log.error("The store can't be used from here: %s", error)
        return error.exit_code
    return _run(attempt, module)


def _run(attempt: Attempt[StorePath], module: str) -> int:
    """Runs the job. Returns the exit code of its status."""
    is_stopping = threading.Event()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: is_stopping.set())
    memory_kills = count_memory_kills()
    log = make_local_folder(attempt.folder) / attempt.log.name
    argv = [sys.executable, "-m", module, "--request", str(attempt.request)]
    mark = (ATTEMPT_VARIABLE, str(attempt.folder))
    variables = {ATTEMPT_VARIABLE: str(attempt.folder), INIT_VARIABLE: "1"} | JOB_PYTHON
    started = start_detached(argv, log, env=os.environ | variables, cwd=Path("/"))
    job = ProcessIdentity.from_pid(started.pid)
    code = _wait(job, log, is_stopping)
    # What the job itself has started, and left.
    kill_group(job, GRACE_SECONDS)
    kill_processes(mark, GRACE_SECONDS)
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    if count_memory_kills() > memory_kills:
        message = f"the job ended with {ending}, {OUT_OF_MEMORY}"
    elif is_stopping.is_set():
        message = f"its host has stopped the job, which ended with {ending}"
    else:
        message = f"the job ended with {ending} and without a status"
    with contextlib.suppress(TrainyardError):  # the status is more important than the log
        ship_leftovers(attempt)  # first, because Airflow removes the place afterwards
    sweep()
    for pause_seconds in _REPEATS:
        try:
            return _write_missing_status(attempt, message)
        except MachineError as error:
            _log.warning("%s", error)
            time.sleep(pause_seconds)
    return _write_missing_status(attempt, message)


def _wait(job: ProcessIdentity, log: Path, is_stopping: threading.Event) -> int:
    """Forwards the job's log. Returns its exit code, or a negative signal number."""
    with open(log, "rb", buffering=0) as output:
        while True:
            code = collect_children().get(job.pid)  # orphans are children, too
            while data := output.read(_CHUNK_BYTES):
                with contextlib.suppress(OSError):  # the reader is gone
                    os.write(1, data)
            if code is not None:
                return code
            if is_stopping.is_set():
                kill_group(job, _STOP_SECONDS)
            time.sleep(_POLL_SECONDS)


def _write_missing_status(attempt: Attempt[StorePath], message: str) -> int:
    if status := _try_read_status(attempt):
        return status.exit_code
    cure = f"See {attempt.log}."
    status = Status(exit_code=ExitCode.RETRY, message=f"{message}. {cure}", cure=cure)
    reason = read_cancellation_reason(attempt)
    if reason not in (None, LOST):
        status = Status(exit_code=ExitCode.CANCELLED, message=reason)
    _log.error("%s", status.message)
    write_status(attempt, status)
    return status.exit_code


def _try_read_status(attempt: Attempt[StorePath]) -> Status | None:
    try:
        return read_status(attempt)
    except DataError as error:
        _log.error("%s", error)
        return None


def _wait_for_other(attempt: Attempt[StorePath]) -> int:
    """Waits for the end of a job that another init process has started, until its deadline."""
    _log.info("This job was started before. This process waits for its end.")
    deadline = time.monotonic() + read_request(attempt.request).deadline_seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(MachineError):  # the store is away for a while
            if status := _try_read_status(attempt):
                return status.exit_code
            first = read_identity(attempt.process)
            is_gone = first is not None and is_local(first) and not first.is_alive()
            if is_gone or read_cancellation_reason(attempt) is not None:
                break
        time.sleep(_WAIT_SECONDS)
    return ExitCode.RETRY


if __name__ == "__main__":
    sys.exit(main())
