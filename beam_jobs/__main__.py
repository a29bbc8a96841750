"""Starts the preprocess job: `python -m beam_jobs.__main__ --request <path>`.

A worker process imports the main module of the job that has started it, unless its name is
`__main__`. So the workers do not import what only the driver needs.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from beam_jobs.preprocess import preprocess
from pipeline_ops.job.runner import run_job


def main() -> NoReturn:
    """Runs the job and ends the process at once.

    Threads of Beam may outlive a failed run. A Python process that shuts down while a thread is
    inside gRPC or OpenCV aborts. The operator would then get a signal instead of the exit code.
    """
    try:
        run_job(preprocess)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
