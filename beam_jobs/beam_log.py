"""Keeps Beam's chatter off a job's log. What Beam warns of stays in it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_BEAM = "apache_beam"


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
