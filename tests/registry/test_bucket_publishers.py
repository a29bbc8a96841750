"""Publishers of a registry in a bucket that are killed, cut off or too slow."""

from __future__ import annotations

import dataclasses
import io
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_servers.fault_proxy import FaultProxy
from object_servers.fixtures import set_environment
from publishers import (
    forget_clients,
    make_version_writer,
    publish,
    publish_from_elsewhere,
    start,
)

from pipeline_ops.contract.manifest import NAME, ManifestFile
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.registry.versions import list_numbers
from pipeline_ops.storage.checksums import compute_checksums
from pipeline_ops.storage.object_store import ObjectPath
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.storage.store_path import Entry, StorePath


@dataclasses.dataclass(frozen=True)
class WatchedPath(ObjectPath):
    """A place in a store that calls a function before each operation, with its number."""

    before: Callable[[int], None] = print
    count: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def _ask(self, *arguments, **options):
        self.before(next(self.count))
        return super()._ask(*arguments, **options)


class WatchedRegistry(Registry):
    """A registry in a bucket, through a `WatchedPath`."""

    def __init__(self, location: str, before: Callable[[int], None]):
        super().__init__(location)
        object.__setattr__(self, "folder", WatchedPath(location, before=before))


def publish_promote_and_retire_until(location: str, digest: str, last: int):
    """Is killed before operation `last`."""

    def end(number: int) -> None:
        if number == last:
            os._exit(9)

    registry = WatchedRegistry(location, before=end)
    version = publish(registry, digest, num_bytes=3000)
    registry.promote(version.number, "newest")
    registry.retire(1, "too many")


def list_leftovers(registry: Registry) -> list[str]:
    """The files of numbers that have no version."""
    whole = [str(version.number) for version in registry.list_versions()]
    names = [entry.name for entry in registry.folder.walk()]
    return [
        name
        for name in names
        if (number := name.split("/")[0]).isdecimal()
        and number not in whole
        and name != f"{number}/{NAME}"
    ]


def find_damaged(registry: Registry) -> list[str]:
    """The files in the bucket, without any cache, that are not as the manifest says."""
    return [
        f"{version.number}/{file.path}"
        for version in registry.list_versions()
        for file in version.read_manifest().files
        if not _has_content(version.path / file.path, file)
    ]


def _has_content(place: StorePath, file: ManifestFile) -> bool:
    return place.exists() and file.has_content(compute_checksums(io.BytesIO(place.read())))


@pytest.mark.stores
def test_a_publisher_that_is_killed_at_any_operation_leaves_no_half_version_and_stops_nobody(
    s3_uri,
):
    exit_codes = []
    while exit_codes[-1:] != [0]:
        last = len(exit_codes) + 1
        registry = Registry(f"{s3_uri}-{last}")
        registry.promote(publish(registry, "first ", num_bytes=3000).number, "first")
        victim = start(publish_promote_and_retire_until, str(registry.location), "second ", last)
        victim.join(60)
        exit_codes.append(victim.exitcode)
        assert find_damaged(registry) == [] and registry.find_champion(), last
        retry = publish(registry, "second ", num_bytes=3000)
        registry.promote(retry.number, "retried")
        assert registry.retire(1, "too many") in ([1], []), last
        assert [version.number for version in registry.list_versions()] == [1, retry.number]
        assert list_leftovers(registry) == [] and find_damaged(registry) == [], last
    assert set(exit_codes) == {9, 0} and len(exit_codes) > 25


@pytest.mark.stores
@pytest.mark.parametrize("content", ["same ", "other "])
def test_a_publisher_that_loses_its_lease_at_any_operation_neither_doubles_nor_overwrites(
    s3_uri, content
):
    """Another one publishes in the middle of it, and is faster."""
    for moment in range(1, 1000):
        location, answers = f"{s3_uri}-{moment}", multiprocessing.get_context("forkserver").Queue()

        def overtake(number: int, moment=moment, location=location, answers=answers) -> None:
            if number == moment:
                start(publish_from_elsewhere, location, content, answers).join(60)

        slow, refusal = WatchedRegistry(location, before=overtake), None
        try:
            own = publish(slow, "same ", num_bytes=3000).number
        except MachineError as error:
            own, refusal = None, str(error)
        registry = Registry(location)
        assert find_damaged(registry) == [] and (not refusal or "another one has" in refusal)
        if answers.empty():  # it was over before that moment
            break
        found = {each: registry.find_by_training(each) for each in ("same ", "other ")}
        published = {each: [version.number for version in found[each]] for each in found}
        assert published[content] == [answers.get()], moment
        assert len(published["same "]) <= 1 and own in (None, *published["same "]), moment
        assert publish(registry, "next ").number > max(list_numbers(registry.folder)[:-1])
        assert list_leftovers(registry) == [], moment
    assert moment > 15


def test_a_publisher_whose_number_was_given_up_is_told_and_leaves_nothing_to_see(s3_uri):
    registry = Registry(s3_uri)

    def fill(folder: Path, number: int) -> None:
        make_version_writer("late", 3000)(folder, number)
        (open_root(s3_uri) / f"{number}/{NAME}").create(b"")  # by one that has lost the lease

    with pytest.raises(MachineError, match="another one has given up its number"):
        registry.publish("late", fill)
    assert registry.list_versions() == [] and list_leftovers(registry) == []
    assert publish(registry, "late").number == 2


class OutdatedPath(ObjectPath):
    """A place whose listing was made before the manifest of version 1."""

    def walk(self) -> list[Entry]:
        return [entry for entry in super().walk() if entry.name != f"1/{NAME}"]


def test_a_version_stays_if_a_slow_publisher_takes_it_for_abandoned(s3_uri):
    slow, registry = Registry(s3_uri), Registry(s3_uri)
    publish(registry, "a")
    object.__setattr__(slow, "folder", OutdatedPath(s3_uri))
    assert publish(slow, "b").number == 2
    assert [version.number for version in registry.list_versions()] == [1, 2]
    assert find_damaged(registry) == []


def test_foreign_files_take_no_number_and_stop_nobody(s3_uri):
    """F16."""
    for name in ("notes.txt", "0/x", "007/x", "latest/manifest.json", "leases/1.json"):
        (open_root(s3_uri) / name).write(b"{")
    registry = Registry(s3_uri)
    assert registry.list_versions() == [] and publish(registry, "a").number == 1


def test_a_store_that_ignores_conditions_is_refused_before_anything_is_published(
    s3_uri, object_servers, monkeypatch
):
    server = object_servers["s3"]
    with FaultProxy(server.address) as proxy, proxy.failing(ignore_conditions=True):
        set_environment(monkeypatch, server.build_environment(proxy.address))
        forget_clients()
        with pytest.raises(ConfigError, match="accepts If-None-Match and ignores it"):
            publish(Registry(s3_uri), "a")
        assert Registry(s3_uri).list_versions() == []


def test_a_publisher_survives_lost_answers_and_busy_servers(s3_uri, object_servers, monkeypatch):
    server = object_servers["s3"]
    with FaultProxy(server.address) as proxy:
        set_environment(monkeypatch, server.build_environment(proxy.address))
        forget_clients()
        registry = Registry(s3_uri)
        for seed in range(3):
            faults = {"unavailable_one_in": 10, "lost_answer_one_in": 10, "dropped_one_in": 20}
            with proxy.failing(**faults, seed=seed):
                number = publish(registry, f"{seed}", num_bytes=3000).number
                registry.promote(number, "newest")
        assert [version.number for version in registry.list_versions()] == [1, 2, 3]
        assert registry.find_champion().number == 3
        assert find_damaged(registry) == [] and list_leftovers(registry) == []
