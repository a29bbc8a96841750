"""Hosts over ssh: one ssh process per host carries the pipe to its agent while the gang lives.

When this end dies, sshd closes the agent's input, which ends the gang there. When the network is
cut, both ends notice by silence. ssh never asks for a terminal and never asks a person: a key that
needs a passphrase or a host that is not known is an error that names the host.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from pipeline_ops.config.hosts import SshHosts
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.launch.launcher import Launcher, build_agent_command
from pipeline_ops.launch.plan import Host

_ALIVE_SECONDS, _ALIVE_COUNT = 3, 3


class SshLauncher(Launcher):
    """See `Launcher`."""

    def __init__(self, hosts: SshHosts):
        self._hosts = hosts

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        return [
            Host(
                name=host.name,
                address=host.address or host.name,
                workers=host.workers,
                cores=host.cores or 0,
            )
            for host in self._hosts.hosts
        ]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        hosts = self._hosts
        login = [
            *(["-l", hosts.user] if hosts.user else []),
            *(["-p", str(hosts.port)] if hosts.port else []),
        ]
        options = [*_build_ssh_options(hosts), *_build_proxy_options(hosts, hosts.jump), *login]
        # Behind `--`, a name that begins with a hyphen is a name and not an option.
        remote = ["--", host.name, shlex.join(build_agent_command(hosts, agent))]
        return ["ssh", "-T", *options, *remote]


def _build_ssh_options(hosts: SshHosts) -> list[str]:
    """The ssh options for the hosts themselves and for every jump host.

    With ssh's own -J, the jump hosts would have neither key nor known hosts.
    """
    settings = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ConnectTimeout": hosts.connect_timeout_seconds,
        "ServerAliveInterval": _ALIVE_SECONDS,
        "ServerAliveCountMax": _ALIVE_COUNT,
        "LogLevel": "ERROR",
    }
    if hosts.identity_file:
        settings |= {"IdentityFile": hosts.identity_file, "IdentitiesOnly": "yes"}
    if hosts.known_hosts:
        settings["UserKnownHostsFile"] = hosts.known_hosts
    file = ["-F", hosts.config_file] if hosts.config_file else []
    return [
        *file,
        *(argument for key, value in settings.items() for argument in ("-o", f"{key}={value}")),
    ]


def _build_proxy_options(hosts: SshHosts, jumps: list[str]) -> list[str]:
    """The nested proxy commands, from the last jump host to the first.

    The ssh outside of a level expands that level, hence the doubled %.
    """
    if not jumps:
        return []
    user_host, _, port = jumps[-1].partition(":")
    inner = [
        "ssh",
        *_build_ssh_options(hosts),
        *_build_proxy_options(hosts, jumps[:-1]),
        *(["-p", port] if port else []),
        "-W",
    ]
    return [
        "-o",
        f"ProxyCommand={shlex.join(inner).replace('%', '%%')} [%h]:%p -- {shlex.quote(user_host)}",
    ]
