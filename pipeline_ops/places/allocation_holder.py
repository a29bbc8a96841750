"""Holds an allocated node or pod while an agent runs on it, then exits.

    python -m pipeline_ops.places.allocation_holder RUN SECONDS

It is the main process of a Slurm batch job or of a pod, which a launcher creates. A killed
launcher cannot release its hosts. Its agents exit by themselves, and this process exits once it has
seen no agent for SECONDS. It forwards SIGTERM to the agents, because the other processes of a pod
do not get it, and waits while their workers save their state. It then fails, because Kubernetes
replaces a pod that was drained, evicted or deleted only if it has not succeeded.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time

import psutil

from pipeline_ops.contract.gang_protocol import AGENT_MODULE

_POLL_SECONDS = 0.5


def hold_allocation(run: str, idle_timeout_seconds: float) -> int:
    """Returns 0 after the timeout without an agent, or 143 after SIGTERM once no agent is left."""
    timeout_seconds, last_seen, exit_code = idle_timeout_seconds, time.monotonic(), 0

    def forward_signal(number: int, _frame: object) -> None:
        nonlocal timeout_seconds, exit_code
        timeout_seconds, exit_code = 0, 128 + number
        for agent in find_agents(run):
            with contextlib.suppress(psutil.NoSuchProcess):
                agent.send_signal(number)

    signal.signal(signal.SIGTERM, forward_signal)
    while True:
        if find_agents(run):
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen >= timeout_seconds:
            return exit_code
        time.sleep(_POLL_SECONDS)


def find_agents(run: str) -> list[psutil.Process]:
    """The agents of a run on this host."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if {AGENT_MODULE, run} <= set(process.info["cmdline"] or ())
    ]


if __name__ == "__main__":
    sys.exit(hold_allocation(sys.argv[1], float(sys.argv[2])))
