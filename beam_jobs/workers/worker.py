"""A worker process: works on the tasks of its driver, and ends with its driver.

`pool.py` starts it as `python -m beam_jobs.workers.worker <file descriptor>`. It is not a command
for users. It does not import Beam, so it is ready in a fraction of a second, before the driver is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection

from beam_jobs.workers.plan_builder import PlanBuilder
from pipeline_ops.system.prctl import die_with_parent


def serve(driver: Connection) -> None:
    """Works on the tasks of the driver, and returns each result of `PlanBuilder.build`.

    The first message has the arguments of `PlanBuilder`. Each further message is a task.
    """
    spec, exchange, fragments = pickle.loads(driver.recv_bytes())  # noqa: S301 (a pipe of the process that started this one)
    builder = PlanBuilder(spec, exchange, fragments)
    while True:
        driver.send(builder.build(driver.recv()))


def main() -> None:
    if sys.platform == "linux":  # elsewhere, a worker notices its driver's end after its shard
        die_with_parent()
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
