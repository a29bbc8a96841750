"""Tampered versions of a registry: they are neither fetched nor served, and nothing is written
elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from publishers import publish, wait_until
from signing_keys import make_pair

from pipeline_ops.artifacts.manifest import NAME, SIGNATURE
from pipeline_ops.cli.main import main
from pipeline_ops.errors import DataError
from pipeline_ops.export.serving.model_reloader import AliasSource, ModelReloader
from pipeline_ops.registry.minisign import read_public_key, read_secret_key
from pipeline_ops.registry.registry import Registry
from pipeline_ops.system.disk_cache import HostCache


@pytest.fixture(params=["folder", "s3"])
def registry(request, tmp_path) -> Registry:
    made = Registry(
        tmp_path / "models" / "digits"
        if request.param == "folder"
        else request.getfixturevalue("s3_uri")
    )
    publish(made, "a", num_bytes=1000)
    made.promote(1, "first")
    return made


def put(registry: Registry, path: str, content: bytes) -> None:
    """Writes as the owner of the registry's folder or bucket can."""
    if isinstance(registry.location, Path):
        (registry.location / path).write_bytes(content)
    else:
        (registry.store.folder / path).write(content)


def change_manifest(registry: Registry, **changes) -> None:
    value = json.loads(registry.store.read_file(1, NAME))
    value["files"][0] |= changes
    put(registry, f"1/{NAME}", json.dumps(value).encode())


def refusals(registry: Registry, tmp_path: Path, key=None) -> list[str]:
    """The messages of a copy and of a server."""
    messages = []
    for ask in (
        lambda: registry.get_version(1).copy_to(tmp_path / "copy", key),
        lambda: AliasSource(registry, "champion", tmp_path / "served", key).fetch_folder(1),
    ):
        with pytest.raises(DataError) as refused:
            ask()
        messages.append(str(refused.value))
    return messages


def sign(registry: Registry, secret: Path) -> None:
    put(
        registry,
        f"1/{SIGNATURE}",
        read_secret_key(secret).sign(registry.store.read_file(1, NAME), NAME),
    )


@pytest.mark.parametrize("path", ["../../../../dags/x.py", "{outside}/x.py"])
def test_a_path_that_leads_outside_is_refused_and_nothing_is_written_there(
    registry, tmp_path, path
):
    """F7."""
    (tmp_path / "dags").mkdir()
    change_manifest(registry, path=path.format(outside=tmp_path / "dags"))
    assert all(
        "not a manifest of this version of Trainyard: files.0.path" in text
        for text in refusals(registry, tmp_path)
    )
    assert os.listdir(tmp_path / "dags") == []


@pytest.mark.parametrize(
    "content, problem", [(b"b" * 1000, "another checksum"), (b"b", "the manifest")]
)
def test_a_file_that_was_changed_is_refused(registry, tmp_path, content, problem):
    """F7: `serve` and a local `fetch` verified nothing."""
    put(registry, "1/saved_model.pb", content)
    assert all(
        "saved_model.pb" in text and problem in text for text in refusals(registry, tmp_path)
    )


def test_a_link_in_the_place_of_a_file_is_refused(tmp_path):
    """F7."""
    registry = Registry(tmp_path / "models" / "digits")
    publish(registry, "a", num_bytes=1000)
    registry.promote(1, "first")
    file = registry.location / "1" / "saved_model.pb"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert all("is a link" in text for text in refusals(registry, tmp_path))


def test_a_signed_version_is_copied_and_served_and_its_signature_goes_with_it(registry, tmp_path):
    public, secret = make_pair(tmp_path / "keys")
    sign(registry, secret)
    key = read_public_key(public)
    registry.get_version(1).copy_to(tmp_path / "copy", key)
    key.verify(
        (tmp_path / "copy" / NAME).read_bytes(),
        (tmp_path / "copy" / SIGNATURE).read_bytes(),
        "copy",
    )
    served, _ = AliasSource(registry, "champion", tmp_path / "served", key).fetch_folder(1)
    assert (
        served.is_relative_to(tmp_path / "served")
        and (served / "saved_model.pb").read_bytes() == b"a" * 1000
    )


def test_a_version_without_a_signature_or_with_a_wrong_one_is_refused(registry, tmp_path):
    (public, secret), (_, other) = make_pair(tmp_path / "keys"), make_pair(tmp_path / "others")
    key = read_public_key(public)
    assert all("is not signed" in text for text in refusals(registry, tmp_path, key))
    sign(registry, other)
    assert all("is signed by the key" in text for text in refusals(registry, tmp_path, key))
    sign(registry, secret)
    change_manifest(registry, sha256="0" * 64)
    assert all("is not valid" in text for text in refusals(registry, tmp_path, key))


def list_cached_versions(local: Path) -> list[str]:
    """The versions that stay in a full host cache, because a process uses them."""
    HostCache(local, 1).get_or_create("parsed", "1", lambda folder: None)
    return [path.name for path in local.glob("trainyard-cache/*/version-*")]


def test_a_version_from_a_bucket_may_leave_the_host_cache_once_it_is_copied_or_loaded(
    s3_uri, tmp_path
):
    registry, local = Registry(s3_uri), tmp_path / "local"
    publish(registry, "a", num_bytes=1000)
    registry.promote(1, "first")
    registry.get_version(1).fetch()
    assert len(list_cached_versions(local)) == 1
    registry.get_version(1).copy_to(tmp_path / "copy")
    assert list_cached_versions(local) == []
    reloader = ModelReloader(AliasSource(registry, "champion", tmp_path / "copies"))
    reloader.start()
    wait_until(lambda: reloader.problem)
    reloader.stop()
    reloader.join()
    assert "as a SavedModel" in reloader.problem and list_cached_versions(local) == []


@pytest.fixture
def config_file(tmp_path, request) -> Path:
    """Of a pipeline whose registry is that of `registry`."""
    root = Path(__file__).resolve().parents[2]
    values = yaml.safe_load((root / "configs" / "digits.yaml").read_text())
    values["export"] |= {"model": "digits", "registry": str(tmp_path / "models")}
    values["storage"] = {"root": str(tmp_path / "storage")}
    file = tmp_path / "configs" / "digits.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.mark.parametrize("registry", ["folder"], indirect=True)
def test_fetch_verifies_by_a_key_file_and_also_what_was_fetched_before(
    registry, config_file, tmp_path, capsys
):
    public, secret = make_pair(tmp_path / "keys")
    words = [
        "models",
        "fetch",
        str(config_file),
        "champion",
        str(tmp_path / "here"),
        "--verify",
        str(public),
    ]
    assert main(words) == 65
    assert f"1/{NAME} is not signed, and {public} requires a signature" in capsys.readouterr().err
    assert not (tmp_path / "here" / "1").exists()
    sign(registry, secret)
    assert main(words) == 0 and main(words) == 0
    (tmp_path / "here" / "1" / "saved_model.pb").write_bytes(b"b" * 1000)
    assert main(words) == 65
    assert "saved_model.pb has another checksum" in capsys.readouterr().err
