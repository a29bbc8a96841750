"""Lets workers that a cluster manager starts, with TF_CONFIG, join the gang of a train job.

    python -m pipeline_ops.launch.joining FOLDER

The manager starts this process on each machine. It announces itself to the train job in FOLDER, on
a file system that all machines share. Then it runs the agent of its machine, whose input and output
are files in FOLDER:

    worker-0.json           the addresses of TF_CONFIG, written again every second
    worker-0.session        the name of the current connection, and the train job's attempt
    worker-0.NAME.in, .out  the input and the output of the agent
    problem.json            why a process can't join, written again every second
    problem.told            the train job has read it

It exits after the train job, with the same exit code. If the job is retried, it waits for the next
try. A process that can't join waits until a train job has read why, and fails like the job. The
train job's side of a connection is the same module with two more arguments, started by
`TfConfigLauncher`. No secret goes through the files: the manager gives each machine its own
environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from pipeline_ops.contract.gang_protocol import AGENT_MODULE
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.request import read_status
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.launch.agent import get_pipes
from pipeline_ops.places.tf_config import TOLD, Joined
from pipeline_ops.storage.local_files import write_atomically
from pipeline_ops.storage.open_store import open_root

PROBLEM = "problem.json"
"""The file with the reason why a process can't join. A train job removes files that are there
before it starts, so it is written again."""
_POLL_SECONDS, _TELL_SECONDS, _END_SECONDS = 0.1, 1.0, 5.0
_CHUNK_BYTES = 1 << 16
_EXAMPLE = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
_ADDRESS = re.compile(r"[^\s:/]+:[0-9]{1,5}")


class ClusterPlace(NamedTuple):
    """A worker's place in the cluster of TF_CONFIG."""

    worker: int
    addresses: list[str]


def read_tf_config(text: str | None) -> ClusterPlace:
    """Returns the place of this process. A chief is worker 0, as in TensorFlow's strategies.

    Raises ConfigError with the value and the cure.
    """
    if not text:
        raise ConfigError(
            f"TF_CONFIG is not set. The cluster manager sets it for each worker: {_EXAMPLE}"
        )
    try:
        config = json.loads(text)
        cluster, task = dict(config["cluster"]), config["task"]
        cluster = {name: each for name, each in cluster.items() if each}
        role, index = task["type"], task["index"]
        if isinstance(index, bool) or not re.fullmatch("[0-9]+", str(index)):
            raise ValueError(f"task.index must be a whole number, got {index!r}")
        number = int(index)
        addresses = [*cluster.get("chief", []), *cluster.get("worker", [])]
        roles = {*cluster, role} - {"chief", "worker"}
        is_valid = all(
            _ADDRESS.fullmatch(each) and 0 < int(each.rpartition(":")[2]) < 1 << 16
            for each in addresses
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"TF_CONFIG is not as TensorFlow documents it ({type(error).__name__}: {error}). It is "
            f"JSON, such as {_EXAMPLE}, got {text}"
        ) from None
    if roles:
        raise ConfigError(
            f"TF_CONFIG has the role {', '.join(sorted(roles))}, and a gang that joins has workers "
            "and at most one chief. Leave these replicas out of the manager's job: the evaluate "
            f"task evaluates, and parameter servers need another launcher. TF_CONFIG is {text}"
        )
    if len(cluster.get("chief", [])) > 1:
        raise ConfigError(f"TF_CONFIG must have at most one chief. TF_CONFIG is {text}")
    worker = number + len(cluster.get("chief", [])) * (role == "worker")
    if not is_valid or len({*addresses}) < len(addresses):
        raise ConfigError(
            f"TF_CONFIG must name a different host:port for each worker. TF_CONFIG is {text}"
        )
    if number >= len(cluster.get(role, [])):
        raise ConfigError(
            f"TF_CONFIG says that this is {role} {number}, and its cluster has "
            f"{len(cluster.get(role, []))} of them. TF_CONFIG is {text}"
        )
    return ClusterPlace(worker, addresses)


def join(folder: Path) -> ExitCode:
    """Serves the tries of a train job until one is not retried. Returns its exit code."""
    host, root = platform.node(), folder.parent.parent
    if not root.is_dir():
        raise ConfigError(f"there is no storage root {root} on {host}. Mount it at this path.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        place = read_tf_config(os.environ.get("TF_CONFIG"))
    except ConfigError as error:
        print(error, file=sys.stderr, flush=True)
        _tell_problem(folder, Joined(host=host, problem=str(error)))
        return error.exit_code
    joined = Joined(host=host, addresses=place.addresses).model_dump_json().encode()
    told, session, run, agent = 0.0, "", "", None
    session_file = folder / f"worker-{place.worker}.session"
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    while True:
        if time.monotonic() - told > _TELL_SECONDS and not leaving:
            told = time.monotonic()
            write_atomically(folder / f"worker-{place.worker}.json", joined)
        if leaving and (agent is None or agent.leave()):
            return ExitCode.CANCELLED
        if session != (new := _read(session_file).decode()):
            if agent:
                agent.end()
            session, agent = new, None
            if session:
                name, _, run = session.partition(" ")
                agent = _JoinedAgent.start(folder / f"worker-{place.worker}.{name}", run)
                if agent is None:  # the connection of a process that is gone
                    session_file.unlink(missing_ok=True)
        if agent:
            agent.carry()
        elif run and (status := read_status(Attempt(open_root(run)))):
            run = ""
            if not status.exit_code.is_retried:
                print(status.message or status.exit_code.name)
                return status.exit_code
        time.sleep(_POLL_SECONDS)


def _tell_problem(folder: Path, problem: Joined) -> None:
    """Returns when a train job has read it."""
    told = folder / TOLD
    told.unlink(missing_ok=True)  # An earlier job's.
    while not told.exists():
        write_atomically(folder / PROBLEM, problem.model_dump_json().encode())
        time.sleep(_TELL_SECONDS)


class _JoinedAgent:
    """The agent of this machine, while one connection lasts."""

    @classmethod
    def start(cls, files: Path, run: str) -> _JoinedAgent | None:
        """Starts it. Returns None if another process has already served the connection."""
        with contextlib.suppress(FileExistsError), open(_get_streams(files)[1], "xb"):
            return cls(files, run)
        return None

    def __init__(self, files: Path, run: str):
        self._sent, self._received = _get_streams(files)
        self._offset, self._was_asked = 0, False
        environment = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
        pipe = subprocess.PIPE
        argv = [sys.executable, "-m", AGENT_MODULE, run]
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environment)
        self._stdin, self._stdout = get_pipes(self._process)
        os.set_blocking(self._stdout.fileno(), False)

    def carry(self) -> None:
        """Copies the data that has arrived, in both directions."""
        data = _read(self._sent, self._offset)
        self._offset += len(data)
        with contextlib.suppress(BrokenPipeError):  # the agent has refused or left
            os.write(self._stdin.fileno(), data)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stdout.fileno(), _CHUNK_BYTES):
                _append(self._received, data)

    def leave(self) -> bool:
        """Sends SIGTERM once, so that processes save their state. Returns whether it has exited."""
        if not self._was_asked:
            self._process.terminate()
            self._was_asked = True
        self.carry()
        return self._process.poll() is not None

    def end(self) -> None:
        self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()


def connect(folder: Path, index: int, run: str) -> None:
    """Connects standard input and output to the agent of a worker.

    Returns at the end of the input, or when another process replaces the worker's.
    """
    name = secrets.token_hex(4)
    session, files = folder / f"worker-{index}.session", folder / f"worker-{index}.{name}"
    sent, received = _get_streams(files)
    write_atomically(session, f"{name} {run}".encode())
    offset = 0
    try:
        while _read(session).startswith(name.encode()):
            if select.select([0], [], [], _POLL_SECONDS)[0]:
                if not (data := os.read(0, _CHUNK_BYTES)):
                    return
                _append(sent, data)
            data = _read(received, offset)
            offset += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    finally:
        is_last = _read(session).startswith(name.encode())
        for file in (sent, received, *([session] if is_last else [])):
            file.unlink(missing_ok=True)


def _get_streams(files: Path) -> tuple[Path, Path]:
    return files.with_name(f"{files.name}.in"), files.with_name(f"{files.name}.out")


def _append(file: Path, data: bytes) -> None:
    with open(file, "ab") as stream:  # closed each time, so that others on NFS see it
        stream.write(data)


def _read(file: Path, offset: int = 0) -> bytes:
    """Reads at most a chunk after an offset. A missing file counts as empty."""
    with contextlib.suppress(FileNotFoundError), open(file, "rb") as stream:
        stream.seek(offset)
        return stream.read(_CHUNK_BYTES)
    return b""


def main() -> None:
    folder, *connection = sys.argv[1:]
    if connection:
        connect(Path(folder), int(connection[0]), connection[1])
        return
    try:
        sys.exit(join(Path(folder)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
