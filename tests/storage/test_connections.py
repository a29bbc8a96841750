"""Credentials of a bucket from an Airflow connection."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage import store_options
from pipeline_ops.storage.store_options import read_credentials

SECRET = "the-secret"


@pytest.fixture
def connect(monkeypatch):
    """Sets the connection that every id names."""

    def connect(login=None, password=None, host=None, **extra) -> None:
        found = SimpleNamespace(login=login, password=password, host=host, extra_dejson=extra)
        monkeypatch.setattr(store_options, "_reader", lambda _: found)

    return connect


@pytest.mark.parametrize(
    ("root", "fields", "variables"),
    [
        (
            "s3://bucket",
            {"login": "key", "password": SECRET, "region_name": "eu-1"},
            {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-1"},
        ),
        (
            "s3://bucket",
            {"aws_access_key_id": "key", "aws_secret_access_key": SECRET, "aws_session_token": "t"},
            {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": "t",
            },
        ),
        (
            "gs://bucket",
            {"keyfile_dict": {"private_key": SECRET}},
            {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"private_key": "{SECRET}"}}'},
        ),
        ("gs://bucket", {"key_path": "/key.json"}, {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}),
        (
            "az://container",
            {"login": "account", "password": SECRET},
            {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": SECRET},
        ),
        (
            "az://container",
            {"login": "app", "password": SECRET, "host": "account.blob.net", "tenant_id": "t"},
            {
                "AZURE_STORAGE_ACCOUNT_NAME": "account",
                "AZURE_STORAGE_CLIENT_ID": "app",
                "AZURE_STORAGE_CLIENT_SECRET": SECRET,
                "AZURE_STORAGE_TENANT_ID": "t",
            },
        ),
    ],
)
def test_the_fields_of_each_type_become_the_variables_of_its_tools(
    connect, root, fields, variables
):
    connect(**fields)
    assert read_credentials("bucket_default", root) == variables


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"password": "", "host": "a"}, "has no credentials for s3://. Name a connection of the"),
        ({"role_arn": SECRET, "region_name": "eu-1"}, "sets role_arn, which is not read. Give it"),
        ({"login": "key", "password": SECRET, "profile_name": "p"}, "sets profile_name, which"),
    ],
)
def test_a_connection_that_gives_no_access_is_refused_without_its_values(connect, fields, message):
    connect(**fields)
    with pytest.raises(ConfigError, match=message) as refused:
        read_credentials("bucket_default", "s3://bucket")
    assert "bucket_default" in str(refused.value) and SECRET not in str(refused.value)


def test_a_connection_that_cannot_be_read_is_named_with_its_variable(monkeypatch):
    def fail(connection_id: str) -> None:
        raise LookupError(SECRET)

    monkeypatch.setattr(store_options, "_reader", fail)
    with pytest.raises(ConfigError, match="variable AIRFLOW_CONN_AWS_DEFAULT") as refused:
        read_credentials("aws_default", "s3://bucket")
    assert SECRET not in str(refused.value)
