"""Options of a bucket, besides its URI, and credentials of an Airflow connection that they name.

Otherwise obstore takes credentials from the environment (`AWS_ACCESS_KEY_ID`,
`AZURE_STORAGE_ACCOUNT_KEY`, `GOOGLE_APPLICATION_CREDENTIALS`, ...), from a file that it names, or
from the machine's role.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from pipeline_ops.errors import ConfigError

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


class Connection(Protocol):
    """The parts of an Airflow connection that are used here."""

    login: str | None
    password: str | None
    host: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """The further fields of the connection."""


_S3_EXTRAS = {
    "aws_session_token": "AWS_SESSION_TOKEN",
    "region_name": "AWS_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
}
_AZURE_EXTRAS = {"sas_token": "AZURE_STORAGE_SAS_KEY", "tenant_id": "AZURE_STORAGE_TENANT_ID"}
_UNREAD_EXTRAS = frozenset(
    {"role_arn", "profile_name", "assume_role_method", "impersonation_chain", "connection_string"}
)
"""Ways to get credentials that Airflow's own hooks know."""
_reader: Callable[[str], Connection] | None = None


def set_connection_reader(reader: Callable[[str], Connection]) -> None:
    """Sets the function that reads a connection by its id, for this process."""
    global _reader
    _reader = reader


def read_credentials(connection_id: str, root: str) -> dict[str, str]:
    """The variables with which a connection gives access to the bucket of a URI.

    A connection belongs to Airflow, which this package does not import: programs that can read
    connections register a reader. A job gets the credentials as variables of its environment, like
    the tools of each cloud, and never in a file.

    Raises:
      ConfigError: there is no such connection, or it has no credentials for this kind of bucket.
        The message holds none of its values.
    """
    if _reader is None:
        raise ConfigError(f"storage.connection: {connection_id} can only be read with Airflow.")
    try:
        connection = _reader(connection_id)
    except Exception as error:
        raise ConfigError(
            f"storage.connection: the Airflow connection {connection_id} cannot be read "
            f"({type(error).__name__}). Create it in Airflow for tasks, and in a terminal as the "
            f"variable AIRFLOW_CONN_{connection_id.upper()}."
        ) from None
    extras = {name for name, value in connection.extra_dejson.items() if value}
    if unread := sorted(_UNREAD_EXTRAS & extras):
        raise ConfigError(
            f"storage.connection: the Airflow connection {connection_id} sets {', '.join(unread)}, "
            "which is not read. Give it keys, or let the program's own role reach the bucket and "
            "leave storage.connection out."
        )
    variables = _TRANSLATORS[root.partition("://")[0]](connection)
    found = {name: str(value) for name, value in variables.items() if value}
    if not found:
        raise ConfigError(
            f"storage.connection: the Airflow connection {connection_id} has no credentials for "
            f"{root.partition('://')[0]}://. Name a connection of the type of that store."
        )
    return found


def _translate_s3(connection: Connection) -> dict[str, Any]:
    extra = connection.extra_dejson
    return {
        "AWS_ACCESS_KEY_ID": connection.login or extra.get("aws_access_key_id"),
        "AWS_SECRET_ACCESS_KEY": connection.password or extra.get("aws_secret_access_key"),
    } | _rename(extra, _S3_EXTRAS)


def _translate_gs(connection: Connection) -> dict[str, Any]:
    extra = connection.extra_dejson
    key = extra.get("keyfile_dict")
    return {
        "GOOGLE_SERVICE_ACCOUNT": extra.get("key_path"),
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key) if isinstance(key, dict) else key,
    }


def _translate_az(connection: Connection) -> dict[str, Any]:
    extra = connection.extra_dejson
    if extra.get("tenant_id"):  # the login is then that of an application
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": (connection.host or "").partition(".")[0],
            "AZURE_STORAGE_CLIENT_ID": connection.login,
            "AZURE_STORAGE_CLIENT_SECRET": connection.password,
        } | _rename(extra, _AZURE_EXTRAS)
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": connection.login,
        "AZURE_STORAGE_ACCOUNT_KEY": connection.password,
    } | _rename(extra, _AZURE_EXTRAS)


def _rename(extra: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: extra.get(old) for old, new in names.items()}


_TRANSLATORS: Mapping[str, Callable[[Connection], dict[str, Any]]] = {
    "s3": _translate_s3,
    "gs": _translate_gs,
    "az": _translate_az,
}
