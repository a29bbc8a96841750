"""Credentials of a bucket from a connection, which a YAML may name.

A connection belongs to Airflow, which this package does not import. Programs that can read
connections register a reader. A job gets the credentials as variables of its environment, like the
tools of each cloud, and never in a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pipeline_ops.errors import ConfigError


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
    """The variables that give access to a bucket.

    Args:
      connection_id: the connection.
      root: the URI of the bucket.

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
