"""This machine as the only host.

Its agent runs in the job's process group, so a signal to the job reaches the gang, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pipeline_ops.jobs.gang_protocol import AGENT_MODULE, AgentSpec
from pipeline_ops.launch.launcher import Launcher
from pipeline_ops.launch.plan import Host


class LocalLauncher(Launcher):
    """See `Launcher`.

    Args:
      workers: the most workers that this machine can take.
      cores: the cores that they share; 0 for all of them.
    """

    def __init__(self, workers: int = 1024, cores: int = 0):
        self._workers, self._cores = workers, cores

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        return [
            Host(name="localhost", address="127.0.0.1", workers=self._workers, cores=self._cores)
        ]

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        return [sys.executable, "-m", AGENT_MODULE, agent.run]
