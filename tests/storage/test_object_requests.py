"""The meaning of a store's answer depends on its status and code, never on the object's name."""

from __future__ import annotations

import pytest
from answering_server import answering_server

from pipeline_ops.errors import TrainyardError
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_options import wait_at_most
from pipeline_ops.storage.store_path import StoreAway


@pytest.fixture
def read_from(monkeypatch):
    """Reads an object whose requests a server answers with one status."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")

    def read(key: str, status: int) -> bytes:
        with answering_server(lambda *_: (status, b""), headers={"ETag": "1"}) as host:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
            monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
            with wait_at_most(0):
                return (open_root("s3://bucket/root") / key).read()

    return read


@pytest.mark.parametrize("key", ["shard-0507", "shard-0403", "NoSuchBucket", "AccessDenied"])
def test_a_name_like_a_status_or_a_code_changes_no_meaning(read_from, key):
    with pytest.raises(TrainyardError, match="418") as other:
        read_from(key, 418)
    assert "full" not in str(other.value)
    assert "denies" not in str(other.value)


def test_an_object_of_a_store_that_is_away_is_not_empty(read_from):
    with pytest.raises(StoreAway):
        read_from("shard-0416", 503)


@pytest.mark.parametrize("key", ["shard", "NoSuchBucket"])
def test_statuses_mean_what_they_say(read_from, key):
    assert read_from(key, 416) == b""
    with pytest.raises(TrainyardError, match="denies access"):
        read_from(key, 403)
    with pytest.raises(FileNotFoundError):
        read_from(key, 404)


def test_a_full_bucket_is_told(read_from):
    with pytest.raises(TrainyardError, match="the bucket is full"):
        read_from("shard", 507)
