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
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
PROXY_VARIABLE = "TRAINYARD_STORE_PROXY"
"""The URL of the HTTP proxy by which a process without other network reaches the store."""
_CLOUD_HOSTS = {
    "s3": ("amazonaws.com:443", "169.254.170.2:80"),
    "gs": ("googleapis.com:443", "metadata.google.internal:80"),
    "az": (
        "blob.core.windows.net:443",
        "blob.fabric.microsoft.com:443",
        "login.microsoftonline.com:443",
    ),
}
"""The servers that clients ask unless a variable names others: for objects and credentials."""
_MACHINE_ROLE = "169.254.169.254:80"
"""It has the credentials of a machine's role, in every cloud."""
_URL = re.compile(r'(https?)://(?:[^/@\s"]*@)?(\[[\da-fA-F:]+\]|[^/:\s"]+)(?::(\d+))?')
_REQUEST_SECONDS = 300
_RETRY_SECONDS = 5
"""For how long the client repeats a request. An outage that is longer is waited for in Python."""
_RETRIES: dict[str, Any] = {
    "max_retries": 10,
    "retry_timeout": dt.timedelta(seconds=_RETRY_SECONDS),
    "backoff": {
        "init_backoff": dt.timedelta(seconds=0.1),
        "max_backoff": dt.timedelta(seconds=3),
        "base": 2,
    },
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
        scheme, config = root.partition("://")[0], self.read_credentials(root)
        names = _ENDPOINT_VARIABLES.get(scheme, ())
        named = next((config.pop(name) for name in names if name in config), None)
        endpoint = self.endpoint or named or self.find_endpoint(root)
        client: dict[str, Any] = {
            "timeout": dt.timedelta(seconds=_REQUEST_SECONDS),
            "read_timeout": dt.timedelta(seconds=_patience.silence),
        }
        # An account of Google names its own endpoint.
        if scheme in ("gs", "http") or (endpoint or "").startswith("http://"):
            client["allow_http"] = True
        if proxy := os.environ.get(PROXY_VARIABLE):
            client["proxy_url"] = proxy
        if self.ca_file:
            try:
                client["root_certificate"] = Path(self.ca_file).read_bytes()
            except OSError as error:
                raise ConfigError(
                    f"storage.ca_file: {self.ca_file} cannot be read: {error.strerror}. Name a "
                    "file with certificates in PEM format."
                ) from None
        arguments = {"client_options": client, "retry_config": _RETRIES}
        if scheme in SCHEMES:
            if endpoint:
                config[_ENDPOINT_KEYS[scheme]] = endpoint
            arguments["config"] = config
        return arguments


def find_store_hosts(root: str, settings: Iterable[str]) -> list[str]:
    """The servers that a root's client may ask, as `host:port`, each with its subdomains.

    `settings` are the values of the variables and files that configure it.
    """
    named = {
        f"{host.strip('[]')}:{port or {'http': 80, 'https': 443}[scheme]}"
        for setting in settings
        for scheme, host, port in _URL.findall(setting)
    }
    return sorted({*named, *_CLOUD_HOSTS.get(root.partition("://")[0], ()), _MACHINE_ROLE})


_VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "s3": {
        "AWS_ACCESS_KEY_ID": ("login", "aws_access_key_id"),
        "AWS_SECRET_ACCESS_KEY": ("password", "aws_secret_access_key"),
        "AWS_SESSION_TOKEN": ("aws_session_token",),
        "AWS_REGION": ("region_name",),
        "AWS_ENDPOINT_URL": ("endpoint_url",),
    },
    "gs": {
        "GOOGLE_SERVICE_ACCOUNT": ("key_path",),
        "GOOGLE_SERVICE_ACCOUNT_KEY": ("keyfile_dict",),
    },
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": ("login",),
        "AZURE_STORAGE_ACCOUNT_KEY": ("password",),
        "AZURE_STORAGE_SAS_KEY": ("sas_token",),
    },
    "application in az": {
        "AZURE_STORAGE_ACCOUNT_NAME": ("account",),
        "AZURE_STORAGE_CLIENT_ID": ("login",),
        "AZURE_STORAGE_CLIENT_SECRET": ("password",),
        "AZURE_STORAGE_TENANT_ID": ("tenant_id",),
        "AZURE_STORAGE_SAS_KEY": ("sas_token",),
    },
}
"""The variables for each kind of bucket, with the fields of a connection that have their values.

With a tenant, the login of a connection to Azure is that of an application.
"""
_UNREAD_EXTRAS = frozenset(
    {"role_arn", "profile_name", "assume_role_method", "impersonation_chain", "connection_string"}
)
"""Ways to get credentials that Airflow's own hooks know."""
_reader: Callable[[str], Any] | None = None


def set_connection_reader(reader: Callable[[str], Any]) -> None:
    """Sets the function that reads an Airflow connection by its id, for this process."""
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
    fields = connection.extra_dejson | {
        "login": connection.login,
        "password": connection.password,
        "account": (connection.host or "").partition(".")[0],
    }
    if unread := sorted(name for name in _UNREAD_EXTRAS if fields.get(name)):
        raise ConfigError(
            f"storage.connection: the Airflow connection {connection_id} sets {', '.join(unread)}, "
            "which is not read. Give it keys, or let the program's own role reach the bucket and "
            "leave storage.connection out."
        )
    scheme = root.partition("://")[0]
    kind = "application in az" if scheme == "az" and fields.get("tenant_id") else scheme
    found = {}
    for variable, names in _VARIABLES[kind].items():
        if value := next(filter(None, map(fields.get, names)), None):
            found[variable] = json.dumps(value) if isinstance(value, dict) else str(value)
    if not found:
        raise ConfigError(
            f"storage.connection: the Airflow connection {connection_id} has no credentials for "
            f"{scheme}://. Name a connection of the type of that store."
        )
    return found
