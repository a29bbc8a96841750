"""Keeps Beam's chatter off a job's log, in the driver and in worker processes. What Beam warns of stays in it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_BEAM = "apache_beam"
_WORKER_OUTPUT = "apache_beam.runners.portability.local_job_service"
"""Repeats in the driver what worker processes log; they write to the same log themselves."""
_WORKER_START = "apache_beam.runners.worker.sdk_worker_main"
"""Warns in every worker that there is no folder for staged packages; there are none."""


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """For `import apache_beam`, which says on the root logger that BigQuery's client libraries are missing."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def keep_warnings_only() -> None:
    logging.getLogger(_BEAM).setLevel(logging.WARNING)
    logging.getLogger(_WORKER_START).setLevel(logging.ERROR)
    logging.getLogger(_WORKER_OUTPUT).setLevel(logging.CRITICAL)
