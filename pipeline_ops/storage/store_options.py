"""Options of a bucket, besides its URI. There are no credentials here, at most their name.

obstore takes credentials from the environment (`AWS_ACCESS_KEY_ID`, `AZURE_STORAGE_ACCOUNT_KEY`,
`GOOGLE_APPLICATION_CREDENTIALS`, ...), from a file that it names, or from the machine's role.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.connections import read_credentials

_WEB_SCHEMES = ("http", "https")
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ENDPOINT_KEYS = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}
SCHEMES = tuple(_ENDPOINT_VARIABLES)
"""The schemes of the buckets that a store can be in."""
READ_SCHEMES = (*SCHEMES, *_WEB_SCHEMES)
"""The schemes of the places that can be read."""
_MAX_RETRIES, _RETRY_SECONDS, _REQUEST_SECONDS = 10, 5, 300
"""The limits of the client. An outage that is longer is waited for in `outage.py`."""
_BACKOFF = {
    "init_backoff": dt.timedelta(seconds=0.1),
    "max_backoff": dt.timedelta(seconds=3),
    "base": 2,
}


class Patience(NamedTuple):
    """Seconds of silence that end a request, and seconds for which an outage is waited for."""

    silence: int
    retries: int


JOB_PATIENCE = Patience(silence=30, retries=180)
_patience = JOB_PATIENCE
LONGEST_TRY_SECONDS = JOB_PATIENCE.silence + _RETRY_SECONDS
"""The time in which the client notices that its store is away."""
_repeat_seconds: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "trainyard_repeat_seconds", default=None
)


def get_patience() -> Patience:
    """Returns how long a client that is made now waits for its store."""
    return _patience


def get_repeat_seconds() -> int:
    """Returns for how many seconds a request that is made now waits for a store that is away."""
    seconds = _repeat_seconds.get()
    return _patience.retries if seconds is None else seconds


@contextlib.contextmanager
def wait_at_most(seconds: int) -> Iterator[None]:
    """Limits how long the requests of the block wait for a store that is away, in this thread.

    It is for servers, whose threads must not all wait for one store.
    """
    token = _repeat_seconds.set(seconds)
    try:
        yield
    finally:
        _repeat_seconds.reset(token)


@contextlib.contextmanager
def fail_soon() -> Iterator[None]:
    """Lets this process give up on a store after seconds in the block.

    It is for a person who waits at a terminal. A job waits for minutes, because nobody does.
    """
    global _patience
    before, _patience = _patience, Patience(silence=8, retries=10)
    try:
        yield
    finally:
        _patience = before


class StoreOptions(BaseModel):
    """The parts of `storage:` in a YAML that a client needs.

    Attributes:
      endpoint: the URL of a store that is compatible with S3 or Azure. None for the cloud's own, or
        for what the environment names.
      ca_file: a file with the certificates of the authorities that sign the endpoint's. None for
        the system's.
      connection: the id of an Airflow connection with the credentials. None for those of the
        environment.
    """

    model_config = ConfigDict(frozen=True)

    endpoint: str | None = None
    ca_file: str | None = None
    connection: str | None = None

    def read_credentials(self, root: str) -> dict[str, str]:
        """The variables that the connection stands for. Empty without one. Raises ConfigError."""
        return read_credentials(self.connection, root) if self.connection else {}

    def find_endpoint(self, root: str) -> str | None:
        """The endpoint for a root, from these options or from the environment."""
        names = _ENDPOINT_VARIABLES.get(root.partition("://")[0], ())
        return self.endpoint or next(filter(None, map(os.environ.get, names)), None)

    def make_arguments(self, root: str) -> dict[str, Any]:
        """The arguments of obstore's clients. Raises ConfigError for an unreadable CA file."""
        scheme, credentials = root.partition("://")[0], self.read_credentials(root)
        names = _ENDPOINT_VARIABLES.get(scheme, ())
        named = next((credentials.pop(name) for name in names if name in credentials), None)
        endpoint = self.endpoint or named or self.find_endpoint(root)
        config = credentials | ({_ENDPOINT_KEYS[scheme]: endpoint} if endpoint else {})
        client: dict[str, Any] = {
            "timeout": dt.timedelta(seconds=_REQUEST_SECONDS),
            "read_timeout": dt.timedelta(seconds=_patience.silence),
        }
        # An account of Google names its own endpoint.
        if scheme in ("gs", "http") or (endpoint or "").startswith("http://"):
            client["allow_http"] = True
        if self.ca_file:
            try:
                client["root_certificate"] = Path(self.ca_file).read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"storage.ca_file: {self.ca_file} cannot be read: {error.strerror}. Name a "
                    "file with certificates in PEM format."
                ) from None
        return {
            **({} if scheme in _WEB_SCHEMES else {"config": config}),
            "client_options": client,
            "retry_config": {
                "max_retries": _MAX_RETRIES,
                "retry_timeout": dt.timedelta(seconds=_RETRY_SECONDS),
                "backoff": _BACKOFF,
            },
        }
