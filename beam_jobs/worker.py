"""A worker process: builds the plans that its driver names, and is gone when its driver is gone.

Started by `processes.py` as `python -m beam_jobs.worker <file descriptor>`; not for people. It does not import Beam, so it
is ready in a fraction of a second, long before the driver is.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection

from beam_jobs.work import Work

_PR_SET_PDEATHSIG = 1


def _die_with_driver() -> None:
    """Linux only; elsewhere a worker notices at the end of its shard that nobody listens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(driver: Connection) -> None:
    """The first message is order and scratch folder, each further one the name of a plan; the answer is what `Work.do` says."""
    order, scratch = pickle.loads(driver.recv_bytes())  # noqa: S301 (through a pipe of the process that started this one)
    work = Work(order, scratch)
    while True:
        driver.send(work.do(driver.recv()))


def main() -> None:
    _die_with_driver()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a Ctrl-C the driver decides what becomes
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    from beam_jobs.output import shard  # noqa: F401  while the driver imports Beam
    from beam_jobs.planning import perceptual_hash  # noqa: F401

    with contextlib.suppress(EOFError, ConnectionError):  # the driver is done
        serve(Connection(int(sys.argv[1])))
    sys.stderr.flush()
    os._exit(0)  # everything is on disk by now, and the driver waits: taking a Python with OpenCV apart takes a tenth of a second


if __name__ == "__main__":
    main()
