"""The interface of what gives a gang its hosts, and connects to their agents.

Launchers differ in nothing else: the messages through the pipes and the monitoring are the same.
The start parameters of an agent contain secrets, so they go through the pipe: other users of a host
see command lines. `launch/host_pool.py` uses a launcher.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from pipeline_ops.contract.gang_protocol import AgentSpec
from pipeline_ops.contract.layout import Attempt
from pipeline_ops.errors import TrainyardError

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5


class Host(BaseModel):
    """A host in a plan: its address for the other hosts, and its capacity."""

    model_config = ConfigDict(frozen=True)

    name: str
    address: str
    workers: int
    cores: int = 0
    """0: as many as the host reports."""
    gpus: tuple[str, ...] = ()
    """The devices that its processes share, as CUDA_VISIBLE_DEVICES names them."""
    ports: tuple[int, int] | None = None
    """The first and the last port that it may use. None: the range of the hosts file."""
    local_attempt: str = ""
    """Its folder of the attempt, if it shares only a bucket with the launcher."""
    local_work: str = ""
    """Its folder of checkpoints, if it shares only a bucket with the launcher."""

    def get_attempt(self, shared: Attempt[Any]) -> Attempt[Any]:
        return Attempt(Path(self.local_attempt)) if self.local_attempt else shared

    def get_work(self, shared: Path) -> Path:
        return Path(self.local_work) if self.local_work else shared


class Launcher(Protocol):
    """The source of the hosts of a gang."""

    def allocate(self, check: Callable[[], None]) -> list[Host]:
        """Returns the hosts. May wait in a queue.

        While it waits, it calls `check`, which raises if the hosts are no longer needed. Raises
        MachineError if there are no hosts now, and ConfigError if there will never be any.
        """

    def build_command(self, host: Host, agent: AgentSpec) -> list[str]:
        """Returns the command that carries a pipe to the agent of a host. Called in a thread.

        Raises MachineError if a retry may find it, and ConfigError if no retry can.
        """

    def is_intact(self) -> bool:
        """Returns False if the hosts have been taken away as a whole and must be reallocated.

        Called in a thread.
        """
        return True

    def release(self) -> None:
        """Releases the hosts, once no process of the gang runs on them."""
        return


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
        _log.warning("%s not released, and will end in %d s: %s", hosts, idle_seconds, error)
