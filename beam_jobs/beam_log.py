"""Keeps Beam's info messages out of a job's log. Its warnings stay."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_BEAM = "apache_beam"


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Hides the warnings of `import apache_beam`.

    The import logs on the root logger that BigQuery's client libraries are missing.
    """
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def keep_warnings_only() -> None:
    logging.getLogger(_BEAM).setLevel(logging.WARNING)
