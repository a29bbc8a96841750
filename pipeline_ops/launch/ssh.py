"""Hosts over ssh: one ssh process per host carries the pipe to its agent while the gang lives.

When this end dies, sshd closes the agent's input, which ends the gang there. When the network is
cut, both ends notice by silence.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline_ops.config.hosts import SshHosts
from pipeline_ops.jobs.gang_protocol import AgentSpec
from pipeline_ops.jobs.places.ssh import build_ssh_command
from pipeline_ops.launch.launcher import Launcher, build_agent_command
from pipeline_ops.launch.plan import Host


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
        return build_ssh_command(self._hosts, host.name, build_agent_command(self._hosts, agent))
