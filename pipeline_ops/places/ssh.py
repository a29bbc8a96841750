"""Hosts over ssh: jobs there, and agents of gangs.

ssh never asks a person: a key that needs a passphrase or an unknown host is an error that names the
host. A job outlives the connection that has started it, and shares only the store with Airflow.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError, WithJsonSchema, model_validator

from pipeline_ops.config.fields import FieldError, Section, config_field
from pipeline_ops.contract.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import ConfigError, MachineError, make_error
from pipeline_ops.job.runner import Job
from pipeline_ops.places.launcher import Host, Launcher
from pipeline_ops.places.place import (
    JobLaunch,
    JobState,
    Place,
    PlaceSection,
    build_python_command,
    collect_store_environment,
)
from pipeline_ops.places.remote_host import HostRequest, HostResponse
from pipeline_ops.places.resources import match_pattern
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.open_store import make_store_environment
from pipeline_ops.storage.store_path import StorePath

_CONNECT_SECONDS, _ALIVE_SECONDS, _ALIVE_COUNT = 5, 3, 3
_COMMAND_SECONDS = 60
_REMOTE_MODULE = "pipeline_ops.places.remote_host"
_REFUSALS = ("Permission denied", "Host key verification failed", "not found", "No module named")


class SshPlace(Place):
    """See `Place`.

    A job gets the first host that answers, in an order that depends on the attempt, so that jobs
    spread over the hosts. Later the hosts are asked which one knows the attempt.
    """

    check_seconds = 15.0

    def __init__(self, hosts: SshHosts):
        self._hosts = hosts
        self._names = [host.name for host in hosts.hosts]
        self._found: dict[StorePath, str] = {}
        """The host of each job that was found."""

    def start(self, launch: JobLaunch) -> None:
        attempt = launch.attempt
        with contextlib.suppress(MachineError):
            if self._locate(attempt):
                return
        request = HostRequest(
            attempt=str(attempt.folder),
            module=launch.module,
            environment=self._build_environment(launch.environment),
        )
        if started := self._ask_each(self._order(attempt), "start", request):
            self._found[attempt.folder] = started[0]

    def find(self, attempt: Attempt[StorePath]) -> JobState:
        match self._ask_owner("find", attempt).phase:
            case "absent":
                return JobState("absent", f"no host knows the job in {attempt.folder}")
            case "running":
                return JobState("running")
        return JobState(
            "ended",
            f"the job on {self._found[attempt.folder]} ended without a status, so it was killed "
            "or its host went down",
        )

    def read_output(self, attempt: Attempt[StorePath]) -> str:
        return self._ask_owner("find", attempt).output

    def cancel(self, attempt: Attempt[StorePath]) -> None:
        self._ask_owner("cancel", attempt)

    def clean(self, attempt: Attempt[StorePath]) -> bool:
        return self._ask_owner("clean", attempt).is_clean

    def find_versions(self, packages: Iterable[str]) -> dict[str, str]:
        """The versions on the first host that answers. A job compares them with those it finds."""
        answered = self._ask_each(self._names, "versions", HostRequest(packages=list(packages)))
        return answered[1].versions if answered else {}

    def _ask_each(
        self,
        hosts: Iterable[str],
        command: str,
        request: HostRequest,
        is_wanted: Callable[[HostResponse], bool] = lambda response: True,
    ) -> tuple[str, HostResponse] | None:
        """The first host with a response that is wanted, and the response.

        None if no host has one. Raises MachineError if not all of them could be asked.
        """
        unreachable = []
        for host in hosts:
            try:
                response = self._ask(host, command, request)
            except MachineError as error:
                unreachable.append(str(error))
                continue
            if is_wanted(response):
                return host, response
        if unreachable:
            raise MachineError("; ".join(unreachable))
        return None

    def _order(self, attempt: Attempt[StorePath]) -> list[str]:
        first = int(compute_digest(str(attempt.folder)), 16) % len(self._names)
        return self._names[first:] + self._names[:first]

    def _locate(self, attempt: Attempt[StorePath]) -> str | None:
        """Returns the host that runs the job, or None.

        Raises MachineError if an unreachable host might be the one.
        """
        if attempt.folder not in self._found:
            found = self._ask_each(
                self._order(attempt),
                "find",
                self._make_request(attempt),
                is_wanted=lambda response: response.phase != "absent",
            )
            if found is None:
                return None
            self._found[attempt.folder] = found[0]
        return self._found[attempt.folder]

    def _ask_owner(self, command: str, attempt: Attempt[StorePath]) -> HostResponse:
        """The response of the host that knows a job. Without one, nothing of the job is left."""
        if host := self._locate(attempt):
            return self._ask(host, command, self._make_request(attempt))
        return HostResponse(phase="absent", is_clean=True)

    def _make_request(self, attempt: Attempt[StorePath]) -> HostRequest:
        environment = self._build_environment(make_store_environment(attempt.folder.root))
        return HostRequest(attempt=str(attempt.folder), environment=environment)

    def _build_environment(self, access: Mapping[str, str]) -> dict[str, str]:
        return {**collect_store_environment(os.environ), **access, **self._hosts.environment}

    def _ask(self, host: str, command: str, request: HostRequest) -> HostResponse:
        """Runs a command on the host.

        Raises MachineError if the host can't be reached, or its disk or store has failed, and
        ConfigError if ssh is refused, or the host lacks the project.
        """
        remote = build_python_command(self._hosts, _REMOTE_MODULE, command)
        try:
            done = subprocess.run(
                build_ssh_command(self._hosts, host, remote),
                input=request.model_dump_json() + "\n",
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
            )
        except FileNotFoundError:
            raise ConfigError(
                "ssh is not installed on Airflow's host", "Install an OpenSSH client."
            ) from None
        except subprocess.TimeoutExpired:
            raise MachineError(f"{host} has not answered in {_COMMAND_SECONDS} s") from None
        return _parse_response(host, done)


def _parse_line(line: str) -> HostResponse | None:
    """Returns the response in a line of output. None if it is another text, or other JSON."""
    try:
        found = HostResponse.model_validate_json(line)
    except ValidationError:
        return None
    return found if found.model_fields_set == HostResponse.model_fields.keys() else None


def _parse_response(host: str, done: subprocess.CompletedProcess[str]) -> HostResponse:
    """Returns the response among the lines that a login or its end may print around it."""
    response = next(filter(None, map(_parse_line, done.stdout.splitlines())), None)
    if response is None:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        problem = f"{host} over ssh: {lines[-1][:500]}"
        if any(refusal in done.stderr for refusal in _REFUSALS):
            raise ConfigError(
                problem,
                "ssh's configuration (`config_file` in the hosts file) says how to log in. The "
                "hosts file says where `python` and the project (`code`) are on the host",
            )
        raise MachineError(problem)
    if response.error:
        raise make_error(response.exit_code, f"{host}: {response.error}")
    return response


def build_ssh_command(hosts: SshHosts, host: str, remote: list[str]) -> list[str]:
    """The command that runs another command on a host. Pure.

    Its options come before those of the ssh_config file: an unknown host is refused in any case.
    """
    settings: dict[str, object] = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ServerAliveInterval": _ALIVE_SECONDS,
        "ServerAliveCountMax": _ALIVE_COUNT,
        "LogLevel": "ERROR",
    }
    if not hosts.config_file:
        settings["ConnectTimeout"] = _CONNECT_SECONDS
    options = [
        *(["-F", os.path.expanduser(hosts.config_file)] if hosts.config_file else []),
        *(argument for key, value in settings.items() for argument in ("-o", f"{key}={value}")),
    ]
    # Behind `--`, a name that begins with a hyphen is a name and not an option.
    return ["ssh", "-T", *options, "--", host, shlex.join(remote)]


class SshHost(Section):
    """One machine that is reached by ssh."""

    name: Annotated[
        str,
        match_pattern(
            r"[A-Za-z0-9][A-Za-z0-9._-]*",
            "the name or the address of a host alone, such as gpu-1.example. The user and the port "
            "for ssh are User and Port in ~/.ssh/config, or in config_file",
        ),
        WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"}),
    ]
    """The name for ssh, such as a `Host` of its configuration, and in messages."""
    address: (
        Annotated[
            str, match_pattern(r"[^\s:/@]+", "a name or an address of IPv4, without port and user")
        ]
        | None
    ) = None
    """The address for the other hosts of a gang, for example in a faster network. Null is the
    name."""
    workers: int = Field(1, ge=1, le=256)
    """Number of a gang's workers that it can take."""
    cores: int | None = Field(None, ge=1)
    """Number of cores that a gang's workers share there. Null is all of its cores."""


class SshHosts(PlaceSection):
    """Machines that are reached by ssh, without a password and with known host keys."""

    launcher: Literal["ssh"]
    hosts: list[SshHost] = Field(min_length=1)
    config_file: str | None = config_field(None, is_path=True, selects_program=True)
    """An ssh_config file in the place of the user's own, with `User`, `Port`, `IdentityFile`,
    `UserKnownHostsFile` or `ProxyJump`. It should set `ConnectTimeout`, which is 5 seconds without
    such a file. A host whose key is not known is refused in any case."""

    @model_validator(mode="after")
    def _validate_names(self) -> SshHosts:
        names = [host.name for host in self.hosts]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            rule = f"must have different names, got {', '.join(duplicates)} twice"
            raise FieldError("hosts", rule)
        return self

    @property
    def capacity(self) -> int:
        return sum(host.workers for host in self.hosts)

    @property
    def num_hosts(self) -> int:
        return len(self.hosts)

    def open_place(self) -> SshPlace:
        return SshPlace(self)

    def split(self) -> Mapping[str, SshHosts]:
        return {host.name: self.model_copy(update={"hosts": [host]}) for host in self.hosts}

    def make_launcher(self, job: Job) -> SshLauncher:
        return SshLauncher(self)

    def list_hosts(self) -> list[Host]:
        return [
            Host(
                name=host.name,
                address=host.address or host.name,
                workers=host.workers,
                cores=host.cores or 0,
            )
            for host in self.hosts
        ]


class SshLauncher(Launcher):
    """Hosts over ssh: one ssh process per host carries the pipe to its agent while the gang lives.

    When this end dies, sshd closes the agent's input, which ends the gang there. When the network
    is cut, both ends notice the silence.
    """

    def __init__(self, hosts: SshHosts):
        self._hosts = hosts

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        return self._hosts.list_hosts()

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        command = build_python_command(self._hosts, AGENT_MODULE, agent.run)
        return build_ssh_command(self._hosts, host.name, command)
