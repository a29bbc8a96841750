"""Requests that outlast an outage of their store.

The client repeats a failed request for a few seconds, during which no signal is handled. Here the
request is sent again until the patience of the process is over (`store_options.py`). A process says
once for each outage what it waits for, and once that it is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.store_options import LONGEST_TRY_SECONDS, get_repeat_seconds

_Answer = TypeVar("_Answer")
_PAUSE_SECONDS = 1.0
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_outages: dict[str, tuple[float, float]] = {}
"""The times of the first and the last failed request of each outage, by place."""


class StoreAway(MachineError):
    """The store gives no answer, or one that it cannot work now. A request may have been done."""


def repeat_while_away(place: str, send: Callable[[], _Answer]) -> _Answer:
    """Sends a request until the store has answered.

    The patience counts from the beginning of the outage, so that the requests of a job do not wait
    for it one after the other.

    Args:
      place: the store, for the log.
      send: the request, which may be carried out more than once.

    Raises:
      StoreAway: the patience is over.
    """
    failing_since = None
    while True:
        start = time.monotonic()
        try:
            answer = send()
        except StoreAway as error:
            now = time.monotonic()
            if failing_since is None:  # an upload may have gone well until just now
                failing_since = max(start, now - LONGEST_TRY_SECONDS)
            if not _has_patience(place, failing_since, error):
                raise
            time.sleep(_PAUSE_SECONDS)
        except Exception:  # this is an answer, too
            _end(place)
            raise
        else:
            _end(place)
            return answer


def _has_patience(place: str, failing_since: float, error: StoreAway) -> bool:
    """Returns whether to wait. The first request that waits says so."""
    now, seconds = time.monotonic(), get_repeat_seconds()
    with _lock:
        since, last = _outages.get(place, (failing_since, now))
        if now - last > LONGEST_TRY_SECONDS + seconds:  # nobody has asked since that outage
            del _outages[place]
            since = failing_since
        if now - min(since, failing_since) > seconds:
            return False
        if place not in _outages:
            begin = time.strftime("%H:%M:%S", time.localtime(time.time() - now + since))
            message = "The store is away since %s: %s. Waiting for it, at most %d s."
            _log.warning(message, begin, error.problem, seconds)
        _outages[place] = since, now
    return True


def _end(place: str) -> None:
    if place in _outages:
        with _lock:
            since, _ = _outages.pop(place, (None, None))
        if since is not None:
            _log.warning("%s is there again after %.0f s.", place, time.monotonic() - since)
