"""All hosts of a training and the pipes to their agents: which are ready, lost or back again.

`poll` does everything, a little at a time, and never waits longer than its timeout. A lost host is
tried again for as long as the fleet exists. Decisions about gangs are made elsewhere.
"""

from __future__ import annotations

import dataclasses
import secrets
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline_ops.jobs.gang_protocol import (
    PRELOADED,
    AgentSpec,
    Command,
    Event,
    HostReport,
    Isolation,
)
from pipeline_ops.launch.agent import code_digest, report_host
from pipeline_ops.launch.agent_connection import AgentConnection
from pipeline_ops.launch.launcher import Launcher
from pipeline_ops.launch.plan import Host
from pipeline_ops.storage.atomic import write_whole

_RETRY_SECONDS = 5.0
_FENCE_SLACK_SECONDS = 2.0


@dataclasses.dataclass
class ConnectedHost:
    """The state of one host.

    `problem` says why it is not ready. With `needs_person`, trying again does not help. Until
    `fenced_until`, workers of an earlier gang may still run there, out of reach.
    """

    place: Host
    link: AgentConnection | None = None
    report: HostReport | None = None
    is_ready: bool = False
    beaten: float = 0.0
    """The time of the last sign of life of its preloaded process."""
    problem: str = ""
    needs_person: bool = False
    retry_at: float = 0.0
    fenced_until: float = 0.0
    tries: int = 0


class HostPool:
    """The hosts of a training.

    Args:
      launcher: the source of the hosts.
      lock: the name of the training that only one gang may run at a time.
      folder: a folder on the shared storage for the logs of the hosts.
      silence_seconds: a host that is silent for that long is lost.
      start_seconds: a host that is not ready after that long is lost.
      ports, environment, isolation: see AgentSpec.
    """

    def __init__(
        self,
        launcher: Launcher,
        lock: str,
        folder: Path,
        silence_seconds: float = 15.0,
        start_seconds: float = 300.0,
        ports: tuple[int, int] | None = None,
        environment: Mapping[str, str] | None = None,
        isolation: Isolation = "never",
    ):
        self._launcher, self._folder = launcher, folder
        self._silence_seconds, self._start_seconds = silence_seconds, start_seconds
        self._token = secrets.token_hex(8)
        token_file = folder / "hosts.token"
        self._spec = AgentSpec(
            host="",
            run=str(folder),
            lock=lock,
            token_file=str(token_file),
            silence_seconds=silence_seconds,
            ports=ports,
            environment=dict(environment or {}),
            isolation=isolation,
        )
        write_whole(token_file, self._token.encode())
        self._own = report_host(self._spec)
        self.hosts: dict[str, ConnectedHost] = {}

    def allocate(self, check: Callable[[], None] = lambda: None) -> None:
        """Gets hosts if there are none left. Raises the errors of `Launcher.allocate`."""
        if self.hosts and self._launcher.is_intact():
            return
        self.close()
        self.hosts = {place.name: ConnectedHost(place) for place in self._launcher.allocate(check)}

    @property
    def ready(self) -> list[Host]:
        """The hosts that can fork now, with their reported cores and GPUs.

        In a network namespace of its own, a host has no other address than loopback.
        """
        address = {} if self._spec.isolation == "never" else {"address": "127.0.0.1"}
        return [
            host.place.model_copy(
                update=address
                | {"cores": host.place.cores or host.report.cores, "gpus": tuple(host.report.gpus)}
            )
            for host in self.hosts.values()
            if host.is_ready
        ]

    def poll(self, timeout_seconds: float) -> list[tuple[str, Event]]:
        """Returns the reports of the hosts' processes by host, and does everything that is due."""
        self._open_links()
        links = {host.link: host for host in self.hosts.values() if host.link}
        readable = (
            select.select(list(links), [], [], timeout_seconds)[0]
            if links
            else time.sleep(timeout_seconds) or []
        )
        events = []
        for link in readable:
            for event in link.read():
                events += self._note(links[link], event)
        for host in self.hosts.values():
            if host.link:
                host.link.ping()
                self._look_after(host, host.link)
        return events

    def send(self, host: str, order: Command) -> None:
        if link := self.hosts[host].link:
            link.send(order)

    def signal_all(self, number: int) -> None:
        """Sends a signal to every fork on every host."""
        for host in self.hosts:
            self.send(host, Command(order="signal", signal=number))

    def drop(self, host: str, problem: str) -> None:
        """Ends everything on a host that cannot be trusted. The host is tried again."""
        self._lose(self.hosts[host], problem)

    def close(self) -> None:
        """Ends everything on all hosts and gives them back."""
        links = [host.link for host in self.hosts.values() if host.link]
        for link in links:
            link.hang_up()
        for link in links:
            link.close()
        if self.hosts:
            self._launcher.release()
        self.hosts = {}

    def _open_links(self) -> None:
        for host in self.hosts.values():
            if host.link is None and time.monotonic() >= host.retry_at:
                spec = self._spec.model_copy(update={"host": host.place.name})
                host.tries += 1
                host.link = AgentConnection(
                    self._launcher.command(host.place, spec),
                    spec,
                    self._folder / f"host-{host.place.name}.log",
                )

    def _note(self, host: ConnectedHost, event: Event) -> list[tuple[str, Event]]:
        match event.event:
            case "hello":
                # The agent has the host's lock, so nothing of an earlier gang is left there.
                host.fenced_until = 0.0
                host.report = event.host
                if problem := self._difference(event.host):
                    self._lose(host, problem, needs_person=True)
            case "refused":
                self._lose(host, event.message, event.needs_person)
            case "ready":
                host.is_ready, host.beaten, host.problem, host.needs_person = (
                    True,
                    time.monotonic(),
                    "",
                    False,
                )
            case "ended" if event.name == PRELOADED:
                self._lose(host, f"its preloaded process ended with {event.code}")
            case "alive" if PRELOADED in event.names:
                host.beaten = time.monotonic()
                return [(host.place.name, event)]
            case _:
                return [(host.place.name, event)]
        return []

    def _difference(self, report: HostReport) -> str:
        """Returns the result of `compare`, or a message that a running job's code has changed."""
        if report.code != self._own.code and code_digest() != self._own.code:
            return (
                "the code of this project was changed since the job began; "
                "clear the task, and it is planned anew with the code that is there"
            )
        return compare(self._own, report, self._token)

    def _look_after(self, host: ConnectedHost, link: AgentConnection) -> None:
        now = time.monotonic()
        if not link.is_open:
            code, words = link.exit_code(), link.last_words()
            self._lose(host, f"the connection ended with {code}" + (f": {words}" if words else ""))
        elif host.report and now - link.heard > self._silence_seconds:
            self._lose(
                host,
                f"nothing was heard of it for {now - link.heard:.0f} s "
                "(train.heartbeat_timeout_seconds)",
            )
        elif host.is_ready and now - host.beaten > self._silence_seconds:
            self._lose(
                host,
                f"its preloaded process has given no sign of life for {now - host.beaten:.0f} s "
                "(train.heartbeat_timeout_seconds)",
            )
        elif not host.is_ready and now - link.started > self._start_seconds:
            self._lose(
                host,
                f"it was not ready within {self._start_seconds:.0f} s "
                "(train.start_timeout_seconds)",
            )

    def _lose(self, host: ConnectedHost, problem: str, needs_person: bool = False) -> None:
        if host.link is None:
            return
        if host.report:
            host.fenced_until = host.link.pinged + self._silence_seconds + _FENCE_SLACK_SECONDS
        host.link.kill()
        host.retry_at = time.monotonic() + (0.0 if host.is_ready else _RETRY_SECONDS)
        host.link = host.report = None
        host.is_ready, host.needs_person = False, needs_person
        host.problem = (
            f"host {host.place.name}: {problem}; its log is "
            f"{self._folder / f'host-{host.place.name}.log'}"
        )


def compare(own: HostReport, other: HostReport, token: str) -> str:
    """Returns why a host cannot train with this one, and what to do; empty if it can."""
    if other.token != token:
        return (
            "it does not see the storage root: a file that was written here is not there; "
            "mount the same file system at the same path"
        )
    if other.code != own.code:
        return (
            f"it has other code than this host (digest {other.code} and not {own.code}); "
            "bring its copy of the project up to date"
        )
    mine, theirs = {"Python": own.python} | own.versions, {"Python": other.python} | other.versions
    differing = [
        f"{name} {theirs.get(name, 'missing')} and not {mine.get(name, 'missing')}"
        for name in sorted(mine | theirs)
        if mine.get(name) != theirs.get(name)
    ]
    return (
        f"it has {', '.join(differing)}; install the same requirements there" if differing else ""
    )
