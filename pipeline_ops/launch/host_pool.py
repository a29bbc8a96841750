"""All hosts of a training and the pipes to their agents: which are ready, lost or reconnected.

Each pipe is the standard input and output of a command: of the agent itself on this machine, or of
ssh, srun or a client of Kubernetes's API that starts the agent on its host. `poll` does a little of
all work and waits only briefly. Slower work, such as a request to a cluster's API or to a store,
runs in a thread, because an agent that hears nothing ends its processes. A lost host is tried again
as long as the pool exists. `gang.py`, which uses the pool, decides about gangs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing.connection
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline_ops.contract.gang_protocol import (
    FORK_SERVER,
    HEARTBEAT_SECONDS,
    AgentSpec,
    Command,
    Event,
    HostReport,
    Message,
)
from pipeline_ops.errors import ConfigError, MachineError, TrainyardError
from pipeline_ops.launch.agent import (
    LineReader,
    append_to_file,
    describe_host,
    get_pipes,
    send_message,
)
from pipeline_ops.places.launcher import Host, Launcher
from pipeline_ops.storage.local_files import write_atomically

_POLL_SECONDS = 0.2
_RETRY_SECONDS = 5.0
_FENCE_SLACK_SECONDS = 2.0
_CLOSE_SECONDS = 3.0
_TAIL_BYTES = 600
_MAX_SKEW_SECONDS = 120.0
_MAX_CALLS = 8
_Result = TypeVar("_Result")


class AgentConnection:
    """The launcher's end of the pipe to one agent, through the command `argv`.

    A host that returns gets a new connection. `log` receives the error output of the command, the
    agent and the fork server. Only `describe_end` and `end` block: they wait for the command.
    """

    def __init__(self, argv: Sequence[str], spec: AgentSpec, log: Path):
        self._log, self._log_offset = log, log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
            )
        self._stdin, self._stdout = get_pipes(self._process)
        self._events = LineReader(self._stdout.fileno())
        self.last_ping = 0.0
        self.started_at = self.last_received = time.monotonic()
        self.is_open = True
        self.send(spec)

    def fileno(self) -> int:
        return self._events.fileno()

    def send(self, message: Message) -> None:
        """Sends a message. A broken pipe shows in `is_open`."""
        send_message(self._stdin.fileno(), message)

    def ping(self) -> None:
        if time.monotonic() - self.last_ping >= HEARTBEAT_SECONDS:
            self.last_ping = time.monotonic()
            self.send(Command(action="ping"))

    def read_events(self) -> list[Event]:
        """Reads the events that have arrived. The caller knows that the pipe is readable."""
        lines = self._events.read_lines()
        if lines is None:
            self.is_open = False
            return []
        self.last_received = time.monotonic()
        return list(filter(None, map(Event.parse, lines)))

    def describe_end(self) -> str:
        """Describes the command's exit code and last lines. It exits just after its pipe closes."""
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.5)
        with open(self._log, "rb") as file:
            file.seek(self._log_offset)
            lines = file.read()[-_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        tail = "; ".join(line.strip() for line in lines[-3:] if line.strip())
        return f"the connection ended with {code}" + (f": {tail}" if tail else "")

    def close_input(self) -> None:
        """Ends the agent by closing its input, and with it everything on its host."""
        self._stdin.close()

    def end(self, wait_seconds: float = 0.0) -> None:
        """Closes the input, waits for the command to exit, and kills it after `wait_seconds`.

        Its agent may hang or be out of reach.
        """
        self.close_input()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_seconds)
        self._process.kill()
        self._process.wait()
        self._stdout.close()


@dataclasses.dataclass
class ConnectedHost:
    """The state of one host.

    `problem` is the reason why it is not ready. With `is_permanent_failure`, another try does not
    help. Until `fenced_until`, workers of an earlier gang may still run there, out of reach.
    """

    spec: Host
    log: Path
    connection: AgentConnection | None = None
    command: concurrent.futures.Future[list[str]] | None = None
    """The command of the next connection, while a thread builds it."""
    report: HostReport | None = None
    is_ready: bool = False
    is_leaving: bool = False
    """Whether its agent received SIGTERM, so that no new gang may use it."""
    last_heartbeat: float = 0.0
    """The time of the last heartbeat of its fork server."""
    problem: str = ""
    is_permanent_failure: bool = False
    retry_at: float = 0.0
    fenced_until: float = 0.0
    tries: int = 0

    @property
    def can_fork(self) -> bool:
        """Returns whether a new gang may use it."""
        return self.is_ready and not self.is_leaving

    @property
    def is_fenced(self) -> bool:
        return not self.is_ready and time.monotonic() < self.fenced_until


class HostPool:
    """The hosts of a training.

    `spec` has the start parameters of all agents, without the name of their host. `spec.run` is the
    folder of the attempt, which gets the logs of the hosts. A host that is not ready after
    `start_timeout_seconds` is lost.
    """

    def __init__(self, launcher: Launcher, spec: AgentSpec, start_timeout_seconds: float = 300.0):
        self._launcher, self._spec, self._folder = launcher, spec, Path(spec.run)
        self._start_timeout_seconds = start_timeout_seconds
        write_atomically(Path(spec.token_file), secrets.token_hex(8).encode())
        self._local_report = describe_host(spec)
        self._calls = concurrent.futures.ThreadPoolExecutor(_MAX_CALLS, "call")
        self.hosts: dict[str, ConnectedHost] = {}

    def allocate(self, check: Callable[[], None]) -> None:
        """Allocates hosts, unless it has intact ones. Raises the errors of `Launcher.allocate`."""
        if self.hosts and self._are_intact():
            return
        self.close()
        self.hosts = {
            host.name: ConnectedHost(host, self._folder / f"host-{host.name}.log")
            for host in self._launcher.allocate(check)
        }

    @property
    def ready(self) -> list[Host]:
        """The hosts that can fork now, with their reported cores and GPUs.

        A network namespace has only the loopback address. A gang that may get one is on a single
        host.
        """
        address = {} if self._spec.isolation == "never" else {"address": "127.0.0.1"}
        return [
            host.spec.model_copy(
                update=host.report.model_dump(include={"gpus", "local_attempt", "local_work"})
                | {"cores": host.spec.cores or host.report.cores}
                | address
            )
            for host in self.hosts.values()
            if host.can_fork and host.report
        ]

    def describe_problems(self) -> str:
        return ". ".join(host.problem for host in self.hosts.values() if host.problem)

    def poll(self) -> list[tuple[str, Event]]:
        """Connects, reads, pings and judges the hosts. Returns the events of processes by host."""
        self._connect_hosts()
        connections: dict[Any, ConnectedHost] = {
            host.connection: host for host in self.hosts.values() if host.connection
        }
        ready: list[Any] = multiprocessing.connection.wait(list(connections), _POLL_SECONDS)
        events = []
        for connection in ready:
            for event in connection.read_events():
                events += self._handle_event(connections[connection], event)
        for host in self.hosts.values():
            if host.connection:
                host.connection.ping()
                if problem := self._find_problem(host, host.connection):
                    self.disconnect(host.spec.name, problem)
        return events

    def _are_intact(self) -> bool:
        """Returns False if the hosts are gone. A cluster that does not answer may have them."""
        try:
            return self.wait_for(self._launcher.is_intact)
        except MachineError:
            return True

    def wait_for(self, call: Callable[[], _Result]) -> _Result:
        """Returns the result of a call that may block, and polls the hosts meanwhile.

        Events of processes are dropped, because nothing waits for a process then.
        """
        running = self._calls.submit(call)
        while not running.done():
            self.poll()
        return running.result()

    def _connect_hosts(self) -> None:
        """Starts agents on lost hosts, once their commands are known.

        A command may need requests to a cluster's API. If they fail, only its host has a problem.
        """
        lost = [host for host in self.hosts.values() if host.connection is None]
        for host in lost:
            if host.command is None and time.monotonic() >= host.retry_at:
                host.command = self._calls.submit(
                    self._launcher.build_command, host.spec, self._specify(host)
                )
        concurrent.futures.wait([host.command for host in lost if host.command], _POLL_SECONDS)
        for host in lost:
            if host.command and host.command.done():
                made, host.command = host.command, None
                host.tries += 1
                try:
                    argv = made.result()
                except TrainyardError as error:
                    host.problem = f"host {host.spec.name}: {error}"
                    host.is_permanent_failure = isinstance(error, ConfigError)
                    host.retry_at = time.monotonic() + _RETRY_SECONDS
                else:
                    host.connection = AgentConnection(argv, self._specify(host), host.log)

    def _specify(self, host: ConnectedHost) -> AgentSpec:
        ports = host.spec.ports or self._spec.ports
        return self._spec.model_copy(update={"host": host.spec.name, "ports": ports})

    def send(self, host: str, command: Command) -> None:
        if connection := self.hosts[host].connection:
            connection.send(command)

    def send_all(self, command: Command) -> None:
        for host in self.hosts:
            self.send(host, command)

    def ask(
        self, commands: Mapping[str, Command], reply: str, timeout_seconds: float
    ) -> dict[str, Event]:
        """Sends these hosts their commands, and returns their replies.

        Raises MachineError if a host is lost, or has not replied in time.
        """
        for host, command in commands.items():
            self.send(host, command)
        replies: dict[str, Event] = {}
        deadline = time.monotonic() + timeout_seconds
        while missing := commands.keys() - replies.keys():
            for host in missing:
                if not self.hosts[host].is_ready or time.monotonic() > deadline:
                    raise MachineError(
                        self.hosts[host].problem
                        or f"host {host} has not answered the command `{commands[host].action}` "
                        f"within {timeout_seconds:.0f} s"
                    )
            for host, event in self.poll():
                if event.event == reply and host in commands:
                    replies[host] = event
        return replies

    def disconnect(self, name: str, problem: str, is_permanent_failure: bool = False) -> None:
        """Ends everything on a host that is lost or unfit. The pool tries it again later."""
        host = self.hosts[name]
        if host.connection is None:
            return
        if host.report:
            last_ping, silence = host.connection.last_ping, self._spec.silence_timeout_seconds
            host.fenced_until = last_ping + silence + _FENCE_SLACK_SECONDS
        host.connection.end()
        host.retry_at = time.monotonic() + (0.0 if host.is_ready else _RETRY_SECONDS)
        host.connection = host.report = None
        host.is_ready = host.is_leaving = False
        host.is_permanent_failure = is_permanent_failure
        host.problem = f"host {host.spec.name}: {problem}. See {host.log}"

    def close(self) -> None:
        """Ends everything on all hosts and releases them."""
        connections = [host.connection for host in self.hosts.values() if host.connection]
        for connection in connections:
            connection.close_input()
        for connection in connections:
            connection.end(_CLOSE_SECONDS)
        if self.hosts:
            self._launcher.release()
        self.hosts = {}

    def _handle_event(self, host: ConnectedHost, event: Event) -> list[tuple[str, Event]]:
        name = host.spec.name
        match event.event:
            case "hello" if event.host:
                # The agent has the host's lock, so nothing of an earlier gang is left there.
                host.fenced_until = 0.0
                host.report = event.host
                if problem := describe_incompatibility(self._local_report, event.host):
                    self.disconnect(name, problem, is_permanent_failure=True)
            case "refused":
                self.disconnect(name, event.message, event.is_permanent_failure)
            case "ready":
                host.is_ready, host.last_heartbeat = True, time.monotonic()
                host.problem, host.is_permanent_failure = "", False
            case "leaving":
                host.is_leaving = True
            case "appended":
                append_to_file(self._folder, event)
            case "ended" if event.name == FORK_SERVER:
                cause = f", {event.message}" if event.message else ""
                self.disconnect(name, f"its fork server ended with {event.code}{cause}")
            case kind:
                if kind == "alive" and FORK_SERVER in event.names:
                    host.last_heartbeat = time.monotonic()
                return [(name, event)]
        return []

    def _find_problem(self, host: ConnectedHost, connection: AgentConnection) -> str:
        """Returns why a host counts as lost, or an empty string."""
        now, limit_seconds = time.monotonic(), self._spec.silence_timeout_seconds
        silent_seconds = now - connection.last_received
        # While a host is silent, its fork server's heartbeat is unknown, so its age ends at the
        # last message.
        heartbeat_age = connection.last_received - host.last_heartbeat
        if not connection.is_open:
            return "it was asked to end" if host.is_leaving else connection.describe_end()
        option = "train.heartbeat_timeout_seconds"
        if host.report and silent_seconds > limit_seconds:
            return f"it has been silent for {silent_seconds:.0f} s ({option})"
        if host.is_ready and heartbeat_age > limit_seconds:
            return f"its fork server has not been seen running for {heartbeat_age:.0f} s ({option})"
        limit_seconds = self._start_timeout_seconds
        if not host.is_ready and now - connection.started_at > limit_seconds:
            return f"it was not ready within {limit_seconds:.0f} s (train.start_timeout_seconds)"
        return ""


def describe_incompatibility(local: HostReport, other: HostReport) -> str:
    """Returns why a host cannot train with this one, and what to do; empty if it can."""
    if other.token != local.token and not other.local_attempt:
        return (
            "it does not see the storage root: a file that was written here is missing there. "
            "Mount the same file system at the same path, or keep the storage root in a bucket"
        )
    if abs(skew_seconds := other.time - time.time()) > _MAX_SKEW_SECONDS:
        return (
            f"its clock differs from this host's by {skew_seconds:.0f} s, so a bucket "
            "would refuse its requests. Synchronize its clock, for example with chrony"
        )
    if other.code != local.code:
        return (
            f"its copy of this project (digest {other.code}) differs from this host's "
            f"({local.code}) at the start of the job. Update its copy. If the code has changed "
            "since then, clear the task"
        )
    if other.problems:
        return "; ".join(other.problems)
    ours, theirs = ({"Python": report.python} | report.versions for report in (local, other))
    differing = [
        f"{name} {theirs.get(name, 'missing')} and not {ours.get(name, 'missing')}"
        for name in sorted(ours | theirs)
        if ours.get(name) != theirs.get(name)
    ]
    return (
        f"it has {', '.join(differing)}. Install the same requirements there" if differing else ""
    )
