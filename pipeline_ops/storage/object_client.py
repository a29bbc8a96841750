"""The clients of buckets, one for each bucket and process."""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import Any

from obstore.store import from_url

from pipeline_ops.storage.object_errors import translate_errors
from pipeline_ops.storage.store_options import StoreOptions

_CONNECTION_SECONDS = 900.0
"""The time after which a connection is read again, because its credentials may have changed."""
_has_forked = False
_making = threading.Lock()


def open_client(bucket: str, options: StoreOptions) -> Any:
    """The client of a bucket.

    Raises:
      RuntimeError: this process was forked from one with a client. A request would hang for ever.
      ConfigError: the options or the credentials can't be used.
    """
    if _has_forked:
        raise RuntimeError(
            f"{bucket}: a forked process can't use its parent's client. Start a new process."
        )
    period = time.monotonic() // _CONNECTION_SECONDS if options.connection else 0
    with _making:
        return _make_client(bucket, options, period)


@functools.lru_cache(maxsize=64)
def _make_client(bucket: str, options: StoreOptions, _period: float) -> Any:
    with translate_errors(bucket, bucket):
        return from_url(bucket, **options.make_arguments(bucket))


def _forbid_requests() -> None:
    global _has_forked, _making
    _making = threading.Lock()  # another thread of the parent may have held it
    _has_forked = bool(_make_client.cache_info().currsize)


os.register_at_fork(after_in_child=_forbid_requests)
