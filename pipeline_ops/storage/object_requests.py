"""Requests to a bucket: sent again while its store is away, and with errors of ours.

The client repeats a failed request for a few seconds, during which no signal is handled. Here the
request is sent again until the patience of the process is over (`store_options.py`). A process says
once for each outage what it waits for, and once that it is over.

obstore has few kinds of errors. The rest is in their text, which holds the response of the store.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from obstore import exceptions

from pipeline_ops.errors import ConfigError, DataError, MachineError, TrainyardError
from pipeline_ops.storage.store_options import LONGEST_TRY_SECONDS, get_repeat_seconds
from pipeline_ops.storage.store_path import StoreAway

_Response = TypeVar("_Response")
_PAUSE_SECONDS = 1.0
_MAX_TEXT = 400
_QUERY = re.compile(r"\?[^\s)]+")
"""The query of a URL. In Azure's, there may be a signature that grants access."""
_KEY = re.compile(r"https?://\S+| (at location|for path) .*?(?=: | not found)")
"""Where a message repeats the key: in the URL, and in the client's own words."""
_CODE, _MESSAGE = re.compile("<Code>([^<]+)</Code>"), re.compile("<Message>([^<]+)</Message>")
"""The parts of an answer in XML."""
_CAUSES = {
    "/latest/api/token": "there are no credentials in the environment, and the machine has no role",
    "connectionrefused": "the connection was refused",
    "invalidcertificate": "its certificate is not signed by a known authority",
    "kind: timeout": "it did not answer in time",
    "dns error": "its host name is unknown",
    "tunnelunsuccessful": "a proxy did not connect to it",
    "incompletemessage": "it ended the connection without an answer",
    "connectionreset": "it ended the connection without an answer",
}
_CAUSE = re.compile("|".join(_CAUSES), re.IGNORECASE)
"""Causes that only the client's debug output has."""
_PATH = re.compile(r'[Pp]ath "([^"]*)"')
"""The key in the message about an invalid one."""
_BUCKET_MISSING = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_NOT_FOUND = re.compile(r"status code: 404\b")
_NO_LISTING = re.compile("PROPFIND.*status code: (405|501)", re.DOTALL)
"""The answer of a web server without WebDAV."""
_AWAY = re.compile(r"HTTP error|status code: (408|429|500|502|503|504)\b")
"""No answer, or one of a store that cannot work now."""
_UPLOAD_ENDED = "NoSuchUpload"
"""The response if the last request of an upload is repeated, or the parts are gone."""
_EMPTY_RANGE = re.compile(r"status code: 416\b|InvalidRange|Wanted range starting at")
_FULL = re.compile(
    r"status code: 507\b|QuotaExceeded|InsufficientStorage|StorageFull|XMinioStorageFull"
)
_DENIED = re.compile(
    r"status code: 40[13]\b|"
    "AccessDenied|AuthorizationFailure|InvalidAccessKeyId|SignatureDoesNot"
)
_DENIALS = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_outages: dict[str, tuple[float, float]] = {}
"""The times of the first and the last failed request of each outage, by store."""


def send_request(
    send: Callable[[], _Response], store: str, uri: str, root: str, can_be_missing: bool
) -> _Response:
    """Sends a request until the store has responded, and translates its errors.

    The patience counts from the beginning of the outage, so that the requests of a job do not wait
    for it one after the other.

    Args:
      send: the request, which may be carried out more than once.
      store: the bucket with its endpoint, for the log.
      uri, root, can_be_missing: as in `translate_errors`.
    """
    failing_since = None
    while True:
        start = time.monotonic()
        try:
            with translate_errors(uri, root, can_be_missing):
                response = send()
        except StoreAway as error:
            if failing_since is None:  # an upload may have gone well until just now
                failing_since = max(start, time.monotonic() - LONGEST_TRY_SECONDS)
            if not _has_patience(store, failing_since, error):
                raise
            time.sleep(_PAUSE_SECONDS)
        except Exception:  # this is a response, too
            _end_outage(store)
            raise
        else:
            _end_outage(store)
            return response


def _has_patience(store: str, failing_since: float, error: StoreAway) -> bool:
    """Returns whether to wait. The first request that waits says so."""
    now, seconds = time.monotonic(), get_repeat_seconds()
    with _lock:
        since, last = _outages.get(store, (failing_since, now))
        if now - last > LONGEST_TRY_SECONDS + seconds:  # there was no request since that outage
            del _outages[store]
            since = failing_since
        if now - min(since, failing_since) > seconds:
            return False
        if store not in _outages:
            begin = time.strftime("%H:%M:%S", time.localtime(time.time() - now + since))
            message = "The store is away since %s: %s. Waiting for it, at most %d s."
            _log.warning(message, begin, error.problem, seconds)
        _outages[store] = since, now
    return True


def _end_outage(store: str) -> None:
    if store in _outages:
        with _lock:
            since, _ = _outages.pop(store, (None, None))
        if since is not None:
            _log.warning("%s is there again after %.0f s.", store, time.monotonic() - since)


def is_empty_range(error: Exception) -> bool:
    """Returns whether a store refused a range because it begins at the end of the file."""
    return bool(_EMPTY_RANGE.search(_read_answer(error)))


@contextlib.contextmanager
def translate_errors(uri: str, root: str, can_be_missing: bool = True) -> Iterator[None]:
    """Translates the errors of one request into those of `StorePath`.

    A condition that is not met is a FileExistsError, and a key that is no path a DataError.

    Args:
      uri: what the request is about.
      root: the root of the store with its endpoint, for advice.
      can_be_missing: whether the request needs an object. Otherwise only the bucket can be missing.
    """
    try:
        yield
    except (exceptions.BaseError, OSError, ValueError) as error:
        if isinstance(error, TrainyardError):
            raise
        raise _translate(error, uri, root, can_be_missing) from None


def _translate(error: Exception, uri: str, root: str, can_be_missing: bool) -> Exception:
    message, text = _read_answer(error), _shorten(error)
    if _UPLOAD_ENDED in message:
        return StoreAway(f"{uri}: the store has ended the upload")
    if _BUCKET_MISSING.search(message):
        return ConfigError(f"{root}: there is no such bucket: {text}. Create it, or name another.")
    if _NO_LISTING.search(message):
        return ConfigError(
            f"{uri}: the web server does not list its files by WebDAV",
            "Turn WebDAV's PROPFIND on, or copy the files into a folder or a bucket.",
        )
    if isinstance(error, exceptions.InvalidPathError):
        return _describe_invalid_key(error, uri)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return FileExistsError(errno.EEXIST, "exists already", uri)
    is_missing = isinstance(error, FileNotFoundError | exceptions.NotFoundError)
    if is_missing and can_be_missing:
        return FileNotFoundError(errno.ENOENT, "no such object", uri)
    if is_missing or (not can_be_missing and _NOT_FOUND.search(message)):
        return ConfigError(
            f"{root}: the answer is 404: there is no such bucket, or no object store: {text}. "
            "Create the bucket, name another, or correct storage.endpoint."
        )
    if isinstance(error, _DENIALS) or _DENIED.search(message):
        return ConfigError(
            f"{uri}: the store denies access: {text}. Check the credentials in the environment, or "
            "the connection that storage.connection names, and their rights to the bucket."
        )
    if _FULL.search(message):
        return MachineError(f"{uri}: the bucket is full: {text}. Make room in it, then retry.")
    if isinstance(error, exceptions.UnknownConfigurationKeyError | ValueError):
        return ConfigError(f"{root}: {text}. Use a URI such as s3://bucket/folder.")
    is_away = _AWAY.search(message) and text != _CAUSES["invalidcertificate"]
    kind = StoreAway if is_away else MachineError
    return kind(f"{uri}: {text} ({root})", "Check that the store can be reached, then retry.")


def _describe_invalid_key(error: Exception, uri: str) -> DataError:
    found, bucket = _PATH.search(str(error)), "/".join(uri.split("/", 3)[:3])
    key = f"{bucket}/{found[1]}" if found else uri
    recursive = "--recursive " if key.endswith("/") else ""
    return DataError(
        f'{key}: {uri} cannot be listed, because a part of this key is empty, "." or ".."',
        f"Remove this object, in the store's console or with its command (aws s3 rm {recursive}"
        f"{shlex.quote(key)}).",
    )


def _read_answer(error: Exception) -> str:
    """The message without the key, which may end like a status or be named like a code."""
    return _KEY.sub("", str(error).partition("Debug source")[0])


def _shorten(error: Exception) -> str:
    """The error in one line, without secrets and the client's own debug output."""
    text = _QUERY.sub("", str(error).partition("Debug source")[0])
    if cause := _CAUSE.search(str(error)):
        return _CAUSES[cause[0].lower()]
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        text = f"{code[1]}: {message[1]}" if message else code[1]
    text = " ".join(text.split()).rstrip(".: ")
    return text[:_MAX_TEXT] + ("..." if len(text) > _MAX_TEXT else "")
