"""What every launcher does: get hosts, name the command that carries a pipe to each one's agent, give the hosts back.

The launchers differ in nothing else. What is said through the pipe, and who watches whom, is the same for all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.config.hosts import Hosts
from pipeline_ops.jobs.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.launch.plan import Place
from pipeline_ops.system.processes import SAFE_PATH


class Launcher(Protocol):
    """Where a gang runs."""

    def allocate(self, check: Callable[[], None]) -> list[Place]:
        """The hosts. May wait in a queue; it calls `check` meanwhile, which raises if there is no more need for them.

        Raises:
          MachineError: there are none now.
          ConfigError: there will never be any.
        """

    def command(self, place: Place, agent: AgentSpec) -> list[str]:
        """What carries a pipe to the agent of a host."""

    def is_intact(self) -> bool:
        """False once the hosts have been taken away as a whole, so that new ones must be allocated."""

    def release(self) -> None:
        """Gives the hosts back; nothing of ours runs on them any more."""


def agent_command(hosts: Hosts, agent: AgentSpec) -> list[str]:
    """The command that starts an agent on another host. The agent's specification follows through the pipe.

    Other users of the hosts see command lines, and the specification contains the environment.
    """
    return [*our_path(hosts), hosts.python or sys.executable, "-m", AGENT_MODULE, agent.run]


def our_path(hosts: Hosts) -> list[str]:
    """The beginning of a command in which Python finds this project, and nothing in the folder where it is started."""
    return ["env", *(f"{name}={value}" for name, value in SAFE_PATH.items()), f"PYTHONPATH={hosts.code or CODE_ROOT}"]
