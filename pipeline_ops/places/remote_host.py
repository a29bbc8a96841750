"""The commands that Airflow runs over ssh on a host where a job runs (`places/ssh.py`).

    python -m pipeline_ops.places.remote_host start|find|cancel|clean|versions

Request and response are one line of JSON on standard input and output. Command lines are visible to
other users of the host, and the request has the access to the store.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping

from pydantic import ConfigDict

from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError, ExitCode, TrainyardError
from pipeline_ops.job.workspace import make_local_folder
from pipeline_ops.places.local import clean_job, end_job, read_identity, start_once
from pipeline_ops.places.place import INIT_MODULE, read_tail
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.parsing import JsonModel
from pipeline_ops.storage.store_path import StorePath

_OUTPUT = "init.log"


class HostRequest(JsonModel):
    """The input of each command."""

    model_config = ConfigDict(frozen=True)

    attempt: str = ""
    """The URI of the job's folder."""
    module: str = ""
    environment: dict[str, str] = {}
    """The access to the store."""
    packages: list[str] = []


class HostResponse(JsonModel):
    """The output of each command. With an `error`, the rest has no meaning."""

    model_config = ConfigDict(frozen=True)

    error: str = ""
    exit_code: ExitCode = ExitCode.SUCCESS
    """How an error counts."""
    phase: str = ""
    output: str = ""
    """The end of what the init process has printed."""
    is_clean: bool = False
    versions: dict[str, str] = {}


def main() -> None:
    request = HostRequest.model_validate_json(sys.stdin.buffer.readline())
    os.environ |= request.environment
    try:
        response = _COMMANDS[sys.argv[1]](request)
    except TrainyardError as error:
        response = HostResponse(error=str(error), exit_code=error.exit_code)
    except OSError as error:
        response = HostResponse(error=str(error), exit_code=ExitCode.RETRY)
    print(response.model_dump_json(), flush=True)


def start(request: HostRequest) -> HostResponse:
    """Starts the init process of a job in a session of its own, unless it was started before."""
    attempt = _open_attempt(request)
    with contextlib.suppress(FileNotFoundError):
        attempt.request.read_range(0, 1)
        argv = [sys.executable, "-m", INIT_MODULE, request.module, str(attempt.request)]
        output = make_local_folder(attempt.folder) / _OUTPUT
        start_once(attempt, _locate_init(attempt), output, argv, os.environ)
        return find(request)
    raise ConfigError(
        f"it does not see {attempt.request}, which was written on Airflow's host. Mount the same "
        "file system at the same path, or keep the storage root in a bucket"
    )


def find(request: HostRequest) -> HostResponse:
    """The state of the job on this host."""
    attempt = _open_attempt(request)
    init = read_identity(_locate_init(attempt))
    if init is None:
        return HostResponse(phase="absent")
    output = read_tail(open_root(make_local_folder(attempt.folder)) / _OUTPUT)
    return HostResponse(phase="running" if init.is_alive() else "ended", output=output)


def cancel(request: HostRequest) -> HostResponse:
    """Ends all processes of a job: SIGTERM to the first one, then SIGKILL to all."""
    attempt = _open_attempt(request)
    end_job(attempt, _locate_init(attempt))
    return HostResponse(phase="ended")


def clean(request: HostRequest) -> HostResponse:
    """Ends what is left of a job, copies its logs to the store, and removes its files here."""
    attempt = _open_attempt(request)
    return HostResponse(is_clean=clean_job(attempt, _locate_init(attempt)))


def versions(request: HostRequest) -> HostResponse:
    """The versions of packages, and of Python, in this environment."""
    found = find_versions(request.packages)
    return HostResponse(versions={"python": platform.python_version()} | found)


def _open_attempt(request: HostRequest) -> Attempt[StorePath]:
    return Attempt(open_root(request.attempt))


def _locate_init(attempt: Attempt[StorePath]) -> StorePath:
    """The file that identifies the init process here. Other hosts may share its folder."""
    return open_root(make_local_folder(attempt.folder)) / f"init-{socket.gethostname()}.json"


_COMMANDS: Mapping[str, Callable[[HostRequest], HostResponse]] = {
    "start": start,
    "find": find,
    "cancel": cancel,
    "clean": clean,
    "versions": versions,
}

if __name__ == "__main__":
    main()
