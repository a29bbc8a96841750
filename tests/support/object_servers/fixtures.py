"""Roots of stores for tests: a folder, and a bucket of each kind.

obstore 0.12 reads these variables itself, in `from_url` and in each constructor:

- S3: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or
  AWS_DEFAULT_REGION, AWS_ALLOW_HTTP, AWS_METADATA_ENDPOINT. It reads no AWS_PROFILE, no file below
  ~/.aws, no AWS_CA_BUNDLE and no AWS_EC2_METADATA_DISABLED.
- Google: GOOGLE_SERVICE_ACCOUNT (the path of a file with `gcs_base_url` and `disable_oauth`),
  GOOGLE_APPLICATION_CREDENTIALS. An address with http:// needs no leave of its own.
- Azure: AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN,
  AZURE_STORAGE_ENDPOINT, AZURE_ALLOW_HTTP, AZURE_MSI_ENDPOINT. It reads no
  AZURE_STORAGE_CONNECTION_STRING and no AZURE_STORAGE_ALLOW_HTTP.

`client_options` in Python replaces all that the variables say about the client, also *_ALLOW_HTTP.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from npm_packages import find_missing_program

from .azure_server import AzureServer
from .gcs_server import GcsServer
from .s3_server import S3Server

BUCKET = "trainyard"
BUCKET_KINDS = ("s3", "gs", pytest.param("az", marks=pytest.mark.stores))
"""Azurite is fetched from npm the first time."""


@dataclass(frozen=True)
class StoreRoot:
    """A root that no other test uses.

    Attributes:
      uri: a folder, or `s3://bucket/prefix` and so on.
      environment: what a client process needs. This process has it already.
      server: the server of a bucket, for a proxy before it.
    """

    uri: str
    environment: dict[str, str] = field(default_factory=dict)
    server: S3Server | GcsServer | AzureServer | None = None


@pytest.fixture(scope="session")
def object_servers(tmp_path_factory) -> Iterator[dict[str, S3Server | GcsServer | AzureServer]]:
    """The servers that tests have asked for, by the scheme of their URIs. They start once."""
    servers = _Servers(tmp_path_factory.mktemp("accounts"))
    yield servers
    for server in servers.values():
        server.__exit__(None, None, None)


class _Servers(dict):
    def __init__(self, folder: Path):
        self._folder = folder

    def __missing__(self, kind: str) -> S3Server | GcsServer | AzureServer:
        if kind == "az" and (missing := find_missing_program()):
            pytest.skip(f"Azurite needs {missing}, which is not installed")
        if kind == "gs":
            server = GcsServer(self._folder)
        else:
            server = {"s3": S3Server, "az": AzureServer}[kind]()
        self[kind] = server.__enter__()
        server.make_bucket(BUCKET)
        return server


@pytest.fixture
def make_root(object_servers, tmp_path, monkeypatch):
    """Makes a fresh root of a kind, and sets its environment for this process and its children."""

    def make(kind: str) -> StoreRoot:
        if kind == "folder":
            return StoreRoot(str(tmp_path / "root"))
        server = object_servers[kind]
        environment = server.build_environment()
        set_environment(monkeypatch, environment)
        return StoreRoot(f"{kind}://{BUCKET}/{tmp_path.name}", environment, server)

    return make


@pytest.fixture(params=("folder", *BUCKET_KINDS))
def store_root(request, make_root) -> StoreRoot:
    """A folder, and a prefix in a bucket of each kind."""
    return make_root(request.param)


@pytest.fixture(params=BUCKET_KINDS)
def bucket_root(request, make_root) -> StoreRoot:
    """A prefix in a bucket of each kind."""
    return make_root(request.param)


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """Sets variables. Those of this machine that clients of object stores read, are unset."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
