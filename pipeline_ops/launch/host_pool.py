"""All hosts of a training and the pipes to their agents: which are ready, lost or reconnected.

`poll` does everything, a little at a time, and never waits longer than its timeout. A lost host is
tried again for as long as the pool exists. Decisions about gangs are made elsewhere.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline_ops.artifacts.source_code import digest_all_sources
from pipeline_ops.jobs.gang_protocol import (
    FORK_SERVER,
    AgentSpec,
    Command,
    Event,
    HostReport,
    Isolation,
)
from pipeline_ops.launch.agent_connection import AgentConnection
from pipeline_ops.launch.file_relay import append_to_file
from pipeline_ops.launch.host_report import describe_host, describe_incompatibility
from pipeline_ops.launch.launcher import Launcher
from pipeline_ops.launch.plan import Host
from pipeline_ops.storage.atomic import write_atomically
from pipeline_ops.system.readiness import wait_until_ready

_RETRY_SECONDS = 5.0
_FENCE_SLACK_SECONDS = 2.0


@dataclasses.dataclass
class ConnectedHost:
    """The state of one host.

    `problem` is the reason why it is not ready. With `is_permanent_failure`, another try does not
    help. Until `fenced_until`, workers of an earlier gang may still run there, out of reach.
    """

    spec: Host
    connection: AgentConnection | None = None
    report: HostReport | None = None
    is_ready: bool = False
    last_heartbeat: float = 0.0
    """The time of the last heartbeat of its fork server."""
    problem: str = ""
    is_permanent_failure: bool = False
    retry_at: float = 0.0
    fenced_until: float = 0.0
    tries: int = 0

    @property
    def is_fenced(self) -> bool:
        return not self.is_ready and time.monotonic() < self.fenced_until

    def has_failed_since(self, tries: int) -> bool:
        """Returns whether a try after the first `tries` has failed."""
        return self.connection is None and self.tries > tries


class HostPool:
    """The hosts of a training.

    Args:
      launcher: the source of the hosts.
      lock: the name of the training that only one gang may run at a time.
      folder: the folder of the attempt, for the logs of the hosts.
      silence_timeout_seconds: a host that is silent for that long is lost.
      start_timeout_seconds: a host that is not ready after that long is lost.
      ports, environment, isolation, stored_attempt, stored_work: see AgentSpec.
    """

    def __init__(
        self,
        launcher: Launcher,
        lock: str,
        folder: Path,
        silence_timeout_seconds: float = 15.0,
        start_timeout_seconds: float = 300.0,
        ports: tuple[int, int] | None = None,
        environment: Mapping[str, str] | None = None,
        isolation: Isolation = "never",
        stored_attempt: str = "",
        stored_work: str = "",
    ):
        self._launcher, self._folder = launcher, folder
        self._silence_timeout_seconds = silence_timeout_seconds
        self._start_timeout_seconds = start_timeout_seconds
        self._token = secrets.token_hex(8)
        token_file = folder / "hosts.token"
        self._spec = AgentSpec(
            host="",
            run=str(folder),
            lock=lock,
            token_file=str(token_file),
            stored_attempt=stored_attempt,
            stored_work=stored_work,
            silence_timeout_seconds=silence_timeout_seconds,
            ports=ports,
            environment=dict(environment or {}),
            isolation=isolation,
        )
        write_atomically(token_file, self._token.encode())
        self._local_report = describe_host(self._spec)
        self.hosts: dict[str, ConnectedHost] = {}

    def allocate(self, check: Callable[[], None]) -> None:
        """Gets hosts if there are none left. Raises the errors of `Launcher.allocate`."""
        if self.hosts and self._launcher.is_intact():
            return
        self.close()
        self.hosts = {host.name: ConnectedHost(host) for host in self._launcher.allocate(check)}

    @property
    def ready(self) -> list[Host]:
        """The hosts that can fork now, with their reported cores and GPUs.

        In a network namespace of its own, a host has no other address than loopback. A gang that
        may have one is on one host.
        """
        address = {} if self._spec.isolation == "never" else {"address": "127.0.0.1"}
        return [
            host.spec.model_copy(
                update=address
                | {
                    "cores": host.spec.cores or host.report.cores,
                    "gpus": tuple(host.report.gpus),
                    "own_attempt": host.report.own_attempt,
                    "own_work": host.report.own_work,
                }
            )
            for host in self.hosts.values()
            if host.is_ready and host.report
        ]

    def poll(self, timeout_seconds: float) -> list[tuple[str, Event]]:
        """Returns the reports of the hosts' processes by host, and does everything that is due."""
        self._open_connections()
        connections = {host.connection: host for host in self.hosts.values() if host.connection}
        readable, _ = wait_until_ready(list(connections), timeout_seconds=timeout_seconds)
        events = []
        for connection in readable:
            for event in connection.read_events():
                events += self._handle_event(connections[connection], event)
        for host in self.hosts.values():
            if host.connection:
                host.connection.ping()
                self._check_connection(host, host.connection)
        return events

    def send(self, host: str, command: Command) -> None:
        if connection := self.hosts[host].connection:
            connection.send(command)

    def signal_all(self, number: int) -> None:
        """Sends a signal to every fork on every host."""
        for host in self.hosts:
            self.send(host, Command(action="signal", signal=number))

    def drop(self, host: str, problem: str) -> None:
        """Ends everything on a host that cannot be trusted. The host is tried again."""
        self._disconnect(self.hosts[host], problem)

    def clean(self) -> None:
        """Removes the checkpoints on hosts that have a disk of their own."""
        for host in self.hosts:
            self.send(host, Command(action="clean"))

    def close(self) -> None:
        """Ends everything on all hosts and releases them."""
        connections = [host.connection for host in self.hosts.values() if host.connection]
        for connection in connections:
            connection.close_input()
        for connection in connections:
            connection.close()
        if self.hosts:
            self._launcher.release()
        self.hosts = {}

    def _open_connections(self) -> None:
        for host in self.hosts.values():
            if host.connection is None and time.monotonic() >= host.retry_at:
                agent_spec = self._spec.model_copy(update={"host": host.spec.name})
                host.tries += 1
                host.connection = AgentConnection(
                    self._launcher.build_command(host.spec, agent_spec),
                    agent_spec,
                    self._get_log_path(host),
                )

    def _handle_event(self, host: ConnectedHost, event: Event) -> list[tuple[str, Event]]:
        match event.event:
            case "hello" if event.host:
                # The agent has the host's lock, so nothing of an earlier gang is left there.
                host.fenced_until = 0.0
                host.report = event.host
                if problem := self._describe_difference(event.host):
                    self._disconnect(host, problem, is_permanent_failure=True)
            case "refused":
                self._disconnect(host, event.message, event.is_permanent_failure)
            case "ready":
                host.is_ready, host.last_heartbeat = True, time.monotonic()
                host.problem, host.is_permanent_failure = "", False
            case "appended":
                append_to_file(self._folder, event)
            case "ended" if event.name == FORK_SERVER:
                cause = f", {event.message}" if event.message else ""
                self._disconnect(host, f"its fork server ended with {event.code}{cause}")
            case "alive" if FORK_SERVER in event.names:
                host.last_heartbeat = time.monotonic()
                return [(host.spec.name, event)]
            case _:
                return [(host.spec.name, event)]
        return []

    def _describe_difference(self, report: HostReport) -> str:
        """Returns why the host cannot be used. The code may have changed since the job started."""
        code = self._local_report.code
        if report.code != code and digest_all_sources() != code:
            return (
                "the code of this project was changed after the job started. "
                "Clear the task to plan it again with the new code"
            )
        return describe_incompatibility(self._local_report, report, self._token)

    def _check_connection(self, host: ConnectedHost, connection: AgentConnection) -> None:
        now = time.monotonic()
        silent_seconds = now - connection.last_received
        # Without messages of the host, its fork server may well have sent some.
        heartbeat_age = connection.last_received - host.last_heartbeat
        if not connection.is_open:
            code, log_tail = connection.wait_for_exit_code(), connection.read_log_tail()
            problem = f"the connection ended with {code}" + (f": {log_tail}" if log_tail else "")
        elif host.report and silent_seconds > self._silence_timeout_seconds:
            problem = (
                f"it has been silent for {silent_seconds:.0f} s (train.heartbeat_timeout_seconds)"
            )
        elif host.is_ready and heartbeat_age > self._silence_timeout_seconds:
            problem = (
                f"its fork server has sent no heartbeat for {heartbeat_age:.0f} s "
                "(train.heartbeat_timeout_seconds)"
            )
        elif not host.is_ready and now - connection.started_at > self._start_timeout_seconds:
            problem = (
                f"it was not ready within {self._start_timeout_seconds:.0f} s "
                "(train.start_timeout_seconds)"
            )
        else:
            return
        self._disconnect(host, problem)

    def _disconnect(
        self, host: ConnectedHost, problem: str, is_permanent_failure: bool = False
    ) -> None:
        if host.connection is None:
            return
        if host.report:
            host.fenced_until = (
                host.connection.last_ping + self._silence_timeout_seconds + _FENCE_SLACK_SECONDS
            )
        host.connection.kill()
        host.retry_at = time.monotonic() + (0.0 if host.is_ready else _RETRY_SECONDS)
        host.connection = host.report = None
        host.is_ready, host.is_permanent_failure = False, is_permanent_failure
        host.problem = f"host {host.spec.name}: {problem}. Its log is {self._get_log_path(host)}"

    def _get_log_path(self, host: ConnectedHost) -> Path:
        return self._folder / f"host-{host.spec.name}.log"
