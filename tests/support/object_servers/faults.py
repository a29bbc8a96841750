"""The faults that a proxy causes, as one value that a test sets."""

from __future__ import annotations

import random
import re
import threading
import time
from dataclasses import dataclass
from typing import Literal

WRITES = frozenset({"PUT", "POST", "DELETE", "PATCH"})
CONDITIONS = frozenset({"if-none-match", "if-match", "x-goog-if-generation-match"})


@dataclass(frozen=True)
class Faults:
    """The rules by which requests go wrong. Without arguments nothing does.

    Attributes:
      latency_seconds: what each request waits before anything happens.
      unavailable_one_in: one request in so many gets 503 and does not reach the server.
      lost_answer_one_in: one in so many is carried out, and gets 503 instead of its answer.
      dropped_one_in: one in so many is carried out, and its connection ends without an answer.
      bytes_per_second: limit of all bodies together, for each direction.
      denied: the requests that get 403.
      vanished: whether every request gets 404, as if there was no such bucket.
      full: whether uploads get 507.
      ignore_conditions: whether the server does not see If-None-Match, If-Match and
        x-goog-if-generation-match, as an old S3 server. Azure signs these headers and gives 403.
      refused: whether connections are refused.
      only: a pattern for "METHOD /path?query". Requests in which it is not found are left alone.
      max_failures: after so many of the faults `*_one_in` no further ones come.
      seed: of what is drawn for `*_one_in`.
    """

    latency_seconds: float = 0.0
    unavailable_one_in: int | None = None
    lost_answer_one_in: int | None = None
    dropped_one_in: int | None = None
    bytes_per_second: float | None = None
    denied: Literal["none", "writes", "all"] = "none"
    vanished: bool = False
    full: bool = False
    ignore_conditions: bool = False
    refused: bool = False
    only: str = ""
    max_failures: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """An error that the proxy gives itself: what S3, Google and Azure say."""

    status: int
    code: str
    azure_code: str
    message: str


UNAVAILABLE = Answer(503, "SlowDown", "ServerBusy", "Please reduce your request rate.")
DENIED = Answer(403, "AccessDenied", "AuthorizationFailure", "Access Denied.")
VANISHED = Answer(404, "NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist.")
FULL = Answer(507, "QuotaExceeded", "QuotaExceeded", "The quota of the bucket is exceeded.")


@dataclass(frozen=True)
class Verdict:
    """The fate of one request.

    Attributes:
      answer: what the client gets instead of the server's answer.
      is_forwarded: whether the server gets the request.
      is_dropped: whether the connection ends without an answer.
    """

    answer: Answer | None = None
    is_forwarded: bool = True
    is_dropped: bool = False


class Judge:
    """Decides request by request, in the order in which they come."""

    def __init__(self, faults: Faults):
        self.faults = faults
        self._random = random.Random(faults.seed)
        self._only = re.compile(faults.only)
        self._num_failures = 0
        self._lock = threading.Lock()

    def concerns(self, method: str, path: str) -> bool:
        return bool(self._only.search(f"{method} {path}"))

    def decide(self, method: str, path: str) -> Verdict:
        faults = self.faults
        if faults.vanished:
            return Verdict(VANISHED, is_forwarded=False)
        if faults.denied == "all" or (faults.denied == "writes" and _is_write(method, path)):
            return Verdict(DENIED, is_forwarded=False)
        if faults.full and _is_upload(method, path):
            return Verdict(FULL, is_forwarded=False)
        with self._lock:
            if self._draw(faults.unavailable_one_in):
                return Verdict(UNAVAILABLE, is_forwarded=False)
            if self._draw(faults.lost_answer_one_in):
                return Verdict(UNAVAILABLE)
            return Verdict(is_dropped=self._draw(faults.dropped_one_in))

    def _draw(self, one_in: int | None) -> bool:
        if one_in is None or self._num_failures == self.faults.max_failures:
            return False
        fails = self._random.randrange(one_in) == 0
        self._num_failures += fails
        return fails


def _is_write(method: str, path: str) -> bool:
    return method in WRITES


def _is_upload(method: str, path: str) -> bool:
    """Returns whether a request stores bytes. A POST may also be one that removes many objects."""
    query = path.partition("?")[2]
    removes = method == "POST" and ("delete" in query.split("&") or "comp=batch" in query)
    return method in {"PUT", "POST"} and not removes


class Throttle:
    """A limit in bytes per second that several threads share."""

    def __init__(self, bytes_per_second: float | None):
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, num_bytes: int) -> None:
        """Waits as long as so many bytes take."""
        if self._rate is None:
            return
        with self._lock:
            start = max(time.monotonic(), self._free_at)
            self._free_at = end = start + num_bytes / self._rate
        time.sleep(max(0.0, end - time.monotonic()))
