"""A worker process: builds the plans that its driver names, and ends with its driver.

`processes.py` starts it as `python -m beam_jobs.worker <file descriptor>`. It is not a command for
users. It does not import Beam, so it is ready in a fraction of a second, long before the driver is.
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
    """Asks the kernel to kill this process when its driver ends. Linux only.

    On other systems, a worker notices the end of its driver at the end of its shard.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(driver: Connection) -> None:
    """Builds the plans that the driver names, and sends back the result of `Work.do` for each.

    The first message is the order and the scratch folder. Each further message is the name of a
    plan.
    """
    order, scratch = pickle.loads(driver.recv_bytes())  # noqa: S301 (a pipe of the process that started this one)
    work = Work(order, scratch)
    while True:
        driver.send(work.do(driver.recv()))


def main() -> None:
    _die_with_driver()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    from beam_jobs.output import shard  # noqa: F401  imported while the driver imports Beam
    from beam_jobs.planning import perceptual_hash  # noqa: F401

    with contextlib.suppress(EOFError, ConnectionError):  # the driver is done
        serve(Connection(int(sys.argv[1])))
    sys.stderr.flush()
    # Everything is on disk, and the driver waits: shutting down a Python with OpenCV takes a tenth
    # of a second.
    os._exit(0)


if __name__ == "__main__":
    main()
