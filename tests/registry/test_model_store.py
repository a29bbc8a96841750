"""The promises of `model_store.ModelStore`, for each kind of store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from publishers import forget_clients, make_version_writer

from pipeline_ops.artifacts.damage import find_damage
from pipeline_ops.artifacts.manifest import NAME, read_manifest
from pipeline_ops.errors import DataError
from pipeline_ops.registry.model_store import ModelStore
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.version import Version


@pytest.fixture
def store(store_root, monkeypatch, tmp_path) -> ModelStore:
    """An empty store of one model's versions, of each kind."""
    forget_clients()
    monkeypatch.setenv("TRAINYARD_LOCAL_FOLDER", str(tmp_path / "local"))
    return Registry(f"{store_root.uri}/models/digits").store


def add(store: ModelStore, content: str, at_least: int = 1) -> int:
    with store.publishing() as add_version:
        return add_version(at_least, make_version_writer(content, num_bytes=3000))


def read_fetched(store: ModelStore, number: int) -> bytes:
    return (store.fetch(number) / "saved_model.pb").read_bytes()


class TestPromises:
    def test_a_store_that_nobody_has_used_is_empty(self, store):
        assert store.list_numbers() == [] and store.list_records("aliases") == []
        assert store.read_file(1, NAME) is None
        with pytest.raises(DataError, match=r"1(/manifest\.json)?: there is no such"):
            Version(1, store).fetch()

    def test_versions_get_the_next_number_and_at_least_the_one_that_is_asked_for(self, store):
        assert [add(store, "a"), add(store, "b"), add(store, "c", at_least=7)] == [1, 2, 7]
        assert add(store, "d", at_least=3) == 8
        assert store.list_numbers() == [1, 2, 7, 8]

    def test_numbers_are_in_order_and_not_sorted_as_text(self, store):
        for number in (9, 10, 11, 100):
            add(store, "a", at_least=number)
        assert store.list_numbers() == [9, 10, 11, 100]

    def test_a_version_is_invisible_until_it_is_whole(self, store):
        seen = []

        def fill(folder: Path, number: int) -> None:
            make_version_writer("a", 3000)(folder, number)
            seen.append((store.list_numbers(), store.read_file(number, NAME)))

        with store.publishing() as add_version:
            number = add_version(1, fill)
        assert seen == [([], None)] and store.list_numbers() == [number]
        assert store.read_file(number, NAME) == (store.fetch(number) / NAME).read_bytes()

    def test_a_fetched_version_is_whole_and_its_content_is_its_own(self, store):
        for content in "ab":
            number = add(store, content)
            manifest = store.fetch(number) / NAME
            assert find_damage(manifest, read_manifest(manifest), checksums=True) == []
            assert set(read_fetched(store, number)) == set(content.encode())

    def test_a_removed_version_is_gone_and_its_number_is_not_used_again(self, store):
        assert [add(store, "a"), add(store, "b")] == [1, 2]
        store.remove(1)
        assert store.list_numbers() == [2] and store.read_file(1, NAME) is None
        store.remove(1)
        store.remove(17)
        assert store.list_numbers() == [2] and add(store, "c", at_least=3) == 3

    @pytest.mark.parametrize("error", [DataError("no"), KeyboardInterrupt()], ids=repr)
    def test_a_writer_that_fails_leaves_nothing_to_see_and_stops_nobody(self, store, error):
        def fill(folder: Path, number: int) -> None:
            (folder / "saved_model.pb").write_bytes(b"half")
            raise error

        with pytest.raises(type(error)), store.publishing() as add_version:
            add_version(1, fill)
        assert store.list_numbers() == []
        number = add(store, "a")
        assert store.list_numbers() == [number]

    def test_one_at_a_time_publishes(self, store):
        inside, most = [], []

        def publish(content: str) -> None:
            write = make_version_writer(content, 3000)

            def write_alone(folder: Path, number: int) -> None:
                inside.append(content)
                most.append(len(inside))
                write(folder, number)
                inside.remove(content)

            with store.publishing() as add_version:
                add_version(1, write_alone)

        threads = [threading.Thread(target=publish, args=[content]) for content in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1, 1, 1, 1] and store.list_numbers() == [1, 2, 3, 4]
        assert {read_fetched(store, number)[:1] for number in range(1, 5)} == {
            b"a",
            b"b",
            b"c",
            b"d",
        }

    def test_a_record_is_written_once_and_read_as_it_is(self, store):
        store.create_record("aliases", "00000001.json", b"one")
        with pytest.raises(FileExistsError):
            store.create_record("aliases", "00000001.json", b"two")
        store.create_record("aliases", "00000002.json", b"2" * 100_000)
        assert store.list_records("aliases") == ["00000001.json", "00000002.json"]
        names = ["00000002.json", "00000003.json", "00000001.json"]
        two, missing, one = store.read_records("aliases", names)
        assert (two, one) == (b"2" * 100_000, b"one") and isinstance(missing, DataError)

    def test_of_many_who_write_the_same_record_one_is_first(self, store):
        won = []

        def write(content: str) -> None:
            for number in range(10):
                try:
                    store.create_record("aliases", f"{number:08d}.json", content.encode())
                    won.append((number, content))
                except FileExistsError:
                    pass

        threads = [threading.Thread(target=write, args=[content]) for content in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        names = store.list_records("aliases")
        contents = store.read_records("aliases", names)
        assert sorted(won) == [(i, content.decode()) for i, content in enumerate(contents)]
