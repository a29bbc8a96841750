"""The interface of the launchers: get hosts, name the command that reaches an agent, release hosts.

The launchers differ in nothing else. The messages through the pipe and the monitoring are the same
for all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.config.hosts import Hosts
from pipeline_ops.jobs.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.launch.plan import Host
from pipeline_ops.system.processes import SAFE_PATH


class Launcher(Protocol):
    """The place where a gang runs."""

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        """Returns the hosts. May wait in a queue.

        While it waits, it calls `check`, which raises if the hosts are no longer needed.

        Raises:
          MachineError: there are no hosts now.
          ConfigError: there will never be any.
        """

    def command(self, place: Host, agent: AgentSpec) -> list[str]:
        """The command that carries a pipe to the agent of a host."""

    def is_intact(self) -> bool:
        """Returns False if the hosts have been taken away as a whole and must be reallocated."""

    def release(self) -> None:
        """Gives the hosts back, once none of our processes runs on them."""


def agent_command(hosts: Hosts, agent: AgentSpec) -> list[str]:
    """The command that starts an agent on another host.

    The agent's specification follows through the pipe, because other users of the hosts see command
    lines and the specification contains the environment.
    """
    return [*our_path(hosts), hosts.python or sys.executable, "-m", AGENT_MODULE, agent.run]


def our_path(hosts: Hosts) -> list[str]:
    """The beginning of a command in which Python finds this project.

    Python does not import from the folder in which the command is started.
    """
    return [
        "env",
        *(f"{name}={value}" for name, value in SAFE_PATH.items()),
        f"PYTHONPATH={hosts.code or CODE_ROOT}",
    ]
