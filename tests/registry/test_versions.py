"""The promises of a model's versions, in a folder and in a bucket of each kind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from publishers import forget_clients, make_version_writer

from pipeline_ops.contract.manifest import NAME, find_damage, read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import (
    Version,
    VersionWriter,
    add_version,
    hold_publication,
    list_numbers,
)
from pipeline_ops.storage.store_path import StorePath


@pytest.fixture
def model(store_root, monkeypatch, tmp_path) -> StorePath:
    """The folder of a model without versions, in each kind of store."""
    forget_clients()
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))
    return Registry(f"{store_root.uri}/models/digits").folder


def add(model: StorePath, fill: str | VersionWriter, at_least: int = 1) -> int:
    """Adds a version with this content, or with what a function writes."""
    writer = make_version_writer(fill, num_bytes=3000) if isinstance(fill, str) else fill
    with hold_publication(model) as lease:
        return add_version(model, lease, at_least, writer).number


def read_fetched(model: StorePath, number: int) -> set[str]:
    """The characters of a version's file."""
    return {*(Version(model / str(number)).fetch() / "saved_model.pb").read_text()}


class TestPromises:
    def test_a_folder_that_nobody_has_used_is_empty(self, model):
        assert list_numbers(model) == []
        for ask in (Version(model / "1").read_manifest, Version(model / "1").fetch):
            with pytest.raises(DataError, match=r"1/manifest\.json: there is no such"):
                ask()

    def test_versions_get_the_next_number_and_at_least_the_one_that_is_asked_for(self, model):
        assert [add(model, "a"), add(model, "b"), add(model, "c", at_least=9)] == [1, 2, 9]
        assert add(model, "d", at_least=3) == 10
        assert list_numbers(model) == [1, 2, 9, 10]  # not sorted as text

    def test_a_version_is_invisible_until_it_is_whole(self, model):
        def fill(folder: Path, number: int) -> None:
            make_version_writer("a", 3000)(folder, number)
            assert list_numbers(model) == []
            with pytest.raises(DataError):
                Version(model / str(number)).read_manifest()

        number = add(model, fill)
        assert list_numbers(model) == [number]

    def test_a_fetched_version_is_whole_and_its_content_is_its_own(self, model):
        for content in "ab":
            number = add(model, content)
            manifest = Version(model / str(number)).fetch() / NAME
            assert find_damage(manifest, read_manifest(manifest), checksums=True) == []
            assert read_fetched(model, number) == {content}

    def test_a_removed_version_is_gone_and_its_number_is_not_used_again(self, model):
        assert [add(model, "a"), add(model, "b")] == [1, 2]
        for number in (1, 1, 17):
            Version(model / str(number)).remove()
        with pytest.raises(DataError, match="there is no such manifest"):
            Version(model / "1").read_manifest()
        assert list_numbers(model) == [2] and add(model, "c", at_least=3) == 3

    @pytest.mark.parametrize("error", [DataError("no"), KeyboardInterrupt()], ids=repr)
    def test_a_writer_that_fails_leaves_nothing_to_see_and_stops_nobody(self, model, error):
        def fill(folder: Path, number: int) -> None:
            (folder / "saved_model.pb").write_bytes(b"half")
            raise error

        with pytest.raises(type(error)):
            add(model, fill)
        assert list_numbers(model) == []
        number = add(model, "a")
        assert list_numbers(model) == [number]

    def test_one_at_a_time_publishes(self, model):
        inside, most = [], []

        def publish(content: str) -> None:
            def fill(folder: Path, number: int) -> None:
                inside.append(content)
                most.append(len(inside))
                make_version_writer(content, 3000)(folder, number)
                inside.remove(content)

            add(model, fill)

        threads = [threading.Thread(target=publish, args=[content]) for content in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1, 1, 1, 1] and list_numbers(model) == [1, 2, 3, 4]
        assert set.union(*(read_fetched(model, number) for number in range(1, 5))) == set("abcd")
