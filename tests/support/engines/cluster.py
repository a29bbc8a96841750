"""A cluster as a context manager: the engine's processes, a pool of workers for each node, and
Beam's job server. `flink.py` and `spark.py` say which processes an engine has."""

from __future__ import annotations

import abc
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import psutil

from pipeline_ops.system.locks import exclusive_lock

from .account import Account
from .fetch import EngineError, Programs, fetch_engine

_OPENED = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.text java.time "
    "java.util java.util.concurrent java.util.concurrent.atomic java.util.concurrent.locks "
    "sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
JAVA_MODULES = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split()),
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
)
"""Parts of Java 17 that Flink, Spark and Beam reach into."""
_POOL_HOST = "beam-pool"
_START_SECONDS, _STOP_SECONDS, _LOCK_SECONDS = 120, 10, 1500
_TEMPORARY = Path("/tmp")  # tempfile's is a folder of each test run, closed to other users
_PREFIX = f"trainyard-engine-{os.geteuid()}-"


@dataclass(frozen=True)
class EngineJob:
    """A job as the engine lists it. `name` begins with Beam's job name."""

    id: str
    name: str
    state: str


@dataclass(frozen=True)
class _Command:
    words: list[str]
    environment: dict[str, str]


class Cluster(abc.ABC):
    """An engine on this machine. All that has a choice listens on the loopback interface only.

    Beam's servers in Java have none: those of the job server and, during a job, those with which a
    node talks to its workers listen on all interfaces, whatever host they are given.

    One cluster runs at a time for each user of the machine; another one waits for its end. All of
    its processes end with the thread that started it, even if that is killed.

    Args:
      user: the name of the user that all processes run as. Only root can give another one.
      num_nodes: TaskManagers, or Spark workers.
      slots: what one node does at the same time.
      environment: variables for all processes, for example the access to a store.
      settings: of Flink's configuration, or Spark's properties.
      modules: files that the workers can import.

    Attributes:
      url: the address of the JobManager's REST API, or of the Spark master's page.
      job_endpoint: the address of Beam's job server.
    """

    name: ClassVar[str]
    url: str
    job_endpoint: str

    def __init__(
        self,
        *,
        user: str | None = None,
        num_nodes: int = 2,
        slots: int = 1,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        modules: Sequence[Path] = (),
    ):
        self.num_nodes, self.slots = num_nodes, slots
        self._user, self._modules = user, modules
        self._environment, self._settings = dict(environment or {}), dict(settings or {})
        self._commands: dict[str, _Command] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.programs = fetch_engine(self.name)
        with contextlib.ExitStack() as stack:
            lock = _TEMPORARY / f"{_PREFIX}lock"
            stack.enter_context(exclusive_lock(lock, "the cluster for tests", _LOCK_SECONDS))
            for left in _TEMPORARY.glob(f"{_PREFIX}*/"):  # by a test run that was killed
                shutil.rmtree(left)
            self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMPORARY))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            stack.callback(self._stop)
            self.account = Account(self.folder, self._user, self._modules)
            jars = self.account.make_readable(self.programs.folder, "programs")
            self.programs = Programs(jars)
            self._start_engine()
            self._start_pools()
            self._start_job_server()
            self._wait("the cluster", self._is_ready)
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exit.close()

    @property
    def node_names(self) -> list[str]:
        return [f"node{i}" for i in range(self.num_nodes)]

    @property
    def pool_names(self) -> list[str]:
        return [f"pool{i}" for i in range(self.num_nodes)]

    @abc.abstractmethod
    def list_jobs(self) -> list[EngineJob]:
        """Returns the jobs that the engine knows, also those that have ended."""

    @abc.abstractmethod
    def kill_node(self, index: int = 0) -> None:
        """Kills the JVM in which a node does its work: a TaskManager, or an executor."""

    def find_sdk_workers(self, index: int | None = None) -> list[psutil.Process]:
        """Returns Beam's worker processes, of one pool or of all."""
        names = self.pool_names if index is None else [f"pool{index}"]
        pools = {self._processes[name].pid for name in names}
        return [process for process in self.find_processes(*names) if process.pid not in pools]

    def kill_sdk_worker(self, index: int = 0) -> None:
        """Kills one of the workers of a pool.

        Raises:
          EngineError: the pool has none now.
        """
        found = self.find_sdk_workers(index)
        if not found:
            raise EngineError(f"pool {index} has no worker now")
        found[0].kill()

    @property
    def process_names(self) -> list[str]:
        """The names of the programs that this object has started, as in the folder `log`."""
        return list(self._processes)

    def find_processes(self, *names: str) -> list[psutil.Process]:
        """Returns the processes of some programs, or of all, with those below them."""
        groups = {self._processes[name].pid for name in names or self._processes}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                is_alive = process.status() != psutil.STATUS_ZOMBIE
                if is_alive and os.getpgid(process.pid) in groups:
                    found.append(process)
        return found

    def restart_missing(self) -> None:
        """Starts again what has been killed, and waits until the cluster is complete."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                self._kill_group(name)  # what it had started
                self._run(name)
        self._wait("the cluster", self._is_ready)

    def read_log(self, name: str, max_bytes: int = 20_000) -> str:
        """Returns the end of what a process has written."""
        file = self.folder / "log" / name
        return file.read_bytes()[-max_bytes:].decode(errors="replace") if file.exists() else ""

    @abc.abstractmethod
    def _start_engine(self) -> None: ...

    @abc.abstractmethod
    def _build_job_server_command(self) -> tuple[list[str], dict[str, str]]: ...

    @abc.abstractmethod
    def _is_ready(self) -> bool: ...

    def _start(
        self, name: str, words: Sequence[object], environment: Mapping[str, str] | None = None
    ) -> None:
        known = self.account.environment | self._environment | dict(environment or {})
        self._commands[name] = _Command(self.account.prefix + list(map(str, words)), known)
        self._run(name)

    def _run(self, name: str) -> None:
        command = self._commands[name]
        with open(self.folder / "log" / name, "ab") as log:
            self._processes[name] = subprocess.Popen(
                command.words,
                env=command.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _start_pools(self) -> None:
        """A job names one address for all pools, but two nodes must not share a pool: their workers
        have the same names there. So each pool has a loopback address of its own, and each node a
        file of hosts in which the name means its pool (`_write_hosts`)."""
        [port] = find_free_ports(1)
        script = self.folder / "code" / "worker_pool.py"
        for i, name in enumerate(self.pool_names):
            self._start(name, ["python", script, f"127.0.0.{i + 2}:{port}"])
        for i, name in enumerate(self.pool_names):
            self._wait(name, lambda host=f"127.0.0.{i + 2}": _is_open(port, host))
        self.pool = f"{_POOL_HOST}:{port}"

    def _write_hosts(self, file: Path, index: int) -> None:
        file.write_text(
            f"127.0.0.1 localhost\n127.0.0.1 {socket.gethostname()}\n"
            f"127.0.0.{index + 2} {_POOL_HOST}\n"
        )

    def _start_job_server(self) -> None:
        job, artifact, expansion = find_free_ports(3)
        words, environment = self._build_job_server_command()
        words += ["--job-host=localhost", f"--job-port={job}", f"--artifact-port={artifact}"]
        words += [f"--expansion-port={expansion}", f"--artifacts-dir={self.folder}/tmp/artifacts"]
        self._start("job-server", words, environment)
        self._wait("job-server", lambda: _is_open(job, "localhost"))
        self.job_endpoint = f"localhost:{job}"

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits, and fails at once if a process of the cluster has ended."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if condition():
                    return
            ended = [name for name, run in self._processes.items() if run.poll() is not None]
            if ended or time.monotonic() > deadline:
                reason = f"{ended} ended" if ended else f"not ready after {_START_SECONDS} s"
                logs = "\n".join(f"{n}:\n{self.read_log(n, 3000)}" for n in ended or [what])
                raise EngineError(f"{self.name}: {what} can't be started: {reason}\n{logs}")
            time.sleep(0.2)

    def _kill_group(self, name: str, sign: int = signal.SIGKILL) -> None:
        process = self._processes[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        if sign == signal.SIGKILL:
            process.wait()

    def _stop(self) -> None:
        """Ends the groups of processes that this object has started, and no others."""
        for name in reversed(self._processes):
            self._kill_group(name, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while self.find_processes() and time.monotonic() < deadline:
            for process in self._processes.values():
                process.poll()
            time.sleep(0.1)
        for name in self._processes:
            self._kill_group(name)


def fetch_json(url: str, method: str = "GET") -> Any:
    """Returns the answer of an engine's REST API; None if it is empty."""
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text.strip() else None


def find_free_ports(count: int) -> list[int]:
    """Returns ports of the loopback interface that no process listens on now.

    They are below those that the kernel gives to connections, so that none takes one meanwhile.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _is_open(port: int, host: str) -> bool:
    with socket.create_connection((host, port), 1):
        return True
