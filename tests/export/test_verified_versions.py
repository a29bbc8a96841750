"""Tampered versions of a registry: they are neither fetched nor served, and nothing is written
elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from publishers import publish, wait_until

from pipeline_ops.contract.manifest import NAME, find_damage
from pipeline_ops.errors import DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.served.http.model_reloader import ModelReloader
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
    (registry.folder / path).write(content)


def change_manifest(registry: Registry, **changes) -> None:
    value = json.loads((registry.folder / f"1/{NAME}").read())
    value["files"][0] |= changes
    put(registry, f"1/{NAME}", json.dumps(value).encode())


def load_with_problem(registry: Registry) -> str:
    """The reason for which a server has no model."""
    reloader = ModelReloader(registry, "champion")
    reloader.start()
    wait_until(lambda: reloader.problem)
    reloader.stop()
    reloader.join()
    return reloader.problem


def refusals(registry: Registry, tmp_path: Path) -> list[str]:
    """The messages of a copy and of a server."""
    with pytest.raises(DataError) as refused:
        registry.get_version(1).copy_to(tmp_path / "copy")
    return [str(refused.value), load_with_problem(registry)]


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


def test_a_signature_that_an_earlier_release_wrote_does_no_harm(registry, tmp_path):
    put(registry, f"1/{NAME}.minisig", b"untrusted comment: signature\n")
    version = registry.get_version(1)
    assert [each.number for each in registry.list_versions()] == [1]
    assert find_damage(f"{version.fetch()}/{NAME}", version.read_manifest(), checksums=True) == []
    version.copy_to(tmp_path / "copy")
    assert sorted(os.listdir(tmp_path / "copy")) == [NAME, "saved_model.pb", "variables"]
    publish(registry, "b")
    assert registry.retire(keep=1, reason="old") == [] and registry.find_champion() == version


def list_cached_versions(local: Path) -> list[str]:
    """The versions that stay in a full host cache, because a process uses them."""
    HostCache(local, 1).get_or_create("parsed", "1", lambda folder: None)
    return [path.name for path in local.glob("trainyard-cache/*/version-*")]


def test_a_version_from_a_bucket_may_leave_the_host_cache_once_it_is_loaded(s3_uri, tmp_path):
    registry, local = Registry(s3_uri), tmp_path / "local"
    publish(registry, "a", num_bytes=1000)
    registry.promote(1, "first")
    registry.get_version(1).copy_to(tmp_path / "copy")
    assert list_cached_versions(local) == []
    registry.get_version(1).fetch()
    assert len(list_cached_versions(local)) == 1
    assert "as a SavedModel" in load_with_problem(registry) and list_cached_versions(local) == []
