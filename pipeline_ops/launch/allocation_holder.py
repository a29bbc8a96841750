"""Holds an allocation on a host, a node or a pod while an agent lives there, then ends by itself.

    python -m pipeline_ops.launch.allocation_holder RUN SECONDS

It is the main process of an allocation: of Slurm's batch job, and of a pod. A launcher that is
killed cannot give its hosts back. Its agents end by themselves, and this process ends once there
has been no agent for SECONDS. It passes SIGTERM on to the agents, because the other processes of a
pod do not get it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from pipeline_ops.jobs.gang_protocol import AGENT_MODULE

_POLL_SECONDS = 0.5


def main() -> None:
    keep(sys.argv[1], float(sys.argv[2]))


def keep(run: str, patience_seconds: float) -> None:
    """Returns when there has been no agent for that long; after SIGTERM, once there is none."""
    terminated, seen = [], time.monotonic()

    def pass_on(number: int, _frame: object) -> None:
        terminated.append(number)
        _signal(agents(run), number)

    signal.signal(signal.SIGTERM, pass_on)
    while time.monotonic() - seen < (0 if terminated else patience_seconds):
        if agents(run):
            seen = time.monotonic() + _POLL_SECONDS
        time.sleep(_POLL_SECONDS)


def agents(run: str) -> list[int]:
    """The process ids of the agents of a run that live here."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                if AGENT_MODULE.encode() in words and any(run.encode() in word for word in words):
                    found.append(int(entry))
    return found


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    main()
