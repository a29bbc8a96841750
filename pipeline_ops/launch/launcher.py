"""The interface of the launchers: get hosts, name the command that reaches an agent, release hosts.

The launchers differ in nothing else. The messages through the pipe and the monitoring are the same
for all of them. The functions here serve those that ask a cluster for hosts.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from pipeline_ops.config.hosts_base import Hosts
from pipeline_ops.errors import TrainyardError
from pipeline_ops.jobs.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.jobs.places.environment import build_python_command
from pipeline_ops.launch.plan import Host

_log = logging.getLogger(__name__)

_HOLDER_MODULE = "pipeline_ops.launch.allocation_holder"
_POLL_SECONDS = 0.5


class Launcher(Protocol):
    """The source of the hosts of a gang."""

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        """Returns the hosts. May wait in a queue.

        While it waits, it calls `check`, which raises if the hosts are no longer needed.

        Raises:
          MachineError: there are no hosts now.
          ConfigError: there will never be any.
        """

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        """The command that carries a pipe to the agent of a host."""

    def is_intact(self) -> bool:
        """Returns False if the hosts have been taken away as a whole and must be reallocated."""
        return True

    def release(self) -> None:
        """Releases the hosts, once no process of the gang runs on them."""
        return


def build_agent_command(hosts: Hosts, agent: AgentSpec) -> list[str]:
    """The command that starts an agent on another host.

    The agent's specification follows through the pipe, because other users of the hosts see command
    lines and the specification contains the environment.
    """
    return build_python_command(hosts, AGENT_MODULE, agent.run)


def build_holder_command(hosts: Hosts, run: str, idle_seconds: int) -> list[str]:
    """The command of the main process of an allocation, `allocation_holder.py`."""
    return build_python_command(hosts, _HOLDER_MODULE, run, str(idle_seconds))


def wait_until(
    is_ready: Callable[[], bool], check: Callable[[], None], timeout_seconds: float
) -> bool:
    """Waits for hosts and calls `check` while waiting. Returns False after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not is_ready():
        check()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


@contextlib.contextmanager
def log_failed_release(hosts: str, idle_seconds: int) -> Iterator[None]:
    """Logs an error instead of raising it: a failed release must not cost the training."""
    try:
        yield
    except TrainyardError as error:
        _log.warning("%s not released. It ends in %d s: %s", hosts, idle_seconds, error)
