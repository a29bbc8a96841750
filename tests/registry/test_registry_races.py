"""Publishers and readers of a registry at the same time, and publishers that are killed."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from pathlib import Path

import pytest
from publishers import publish, publish_and_report, publish_many, start, wait_until

from pipeline_ops.contract.manifest import NAME, find_damage, read_manifest
from pipeline_ops.registry.registry import Registry


def damage(registry: Registry) -> list[str]:
    """The damage of the versions that a reader sees: files and checksums."""
    found = []
    for version in registry.list_versions():
        local = version.fetch() / NAME
        found += find_damage(local, read_manifest(local), checksums=True)
    return found


@pytest.mark.stores
def test_publishers_at_once_get_a_number_each(registry):
    publishers = [start(publish_many, str(registry.location), tag, 4) for tag in "abc"]
    for publisher in publishers:
        publisher.join(180)
    assert [publisher.exitcode for publisher in publishers] == [0, 0, 0]
    assert [version.number for version in registry.list_versions()] == list(range(1, 13))
    assert (
        len(
            {version.read_manifest().inputs["train"].digest for version in registry.list_versions()}
        )
        == 12
    )
    assert damage(registry) == []


def test_of_those_who_publish_the_same_model_at_once_all_get_the_same_version(registry):
    answers = multiprocessing.get_context("forkserver").Queue()
    publishers = [
        start(publish_and_report, str(registry.location), "the same", answers) for _ in range(3)
    ]
    said = [answers.get(timeout=180) for _ in publishers]
    assert said == [1, 1, 1] and len(registry.list_versions()) == 1


def test_a_reader_sees_whole_versions_and_a_champion_that_is_there(registry):
    """While one process publishes and promotes, another looks as fast as it can,
    at least four times."""
    go_on = multiprocessing.get_context("forkserver").Semaphore(4)
    publisher = start(publish_many, str(registry.location), "a", 8, True, None, go_on)
    champions, faults = [], []
    while publisher.is_alive():
        faults += damage(registry)
        champions += [registry.find_champion()]
        go_on.release()
    assert publisher.exitcode == 0
    assert (
        faults == []
        and len(champions) >= 4
        and registry.find_champion().number == len(registry.list_versions()) == 8
    )


@pytest.mark.stores
def test_publishers_killed_at_twenty_random_moments_are_never_seen_by_a_reader_and_repaired_by_the_next(  # noqa: E501
    registry,
):
    generator, stop, faults, looks = random.Random(5), threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            try:
                faults.extend(damage(registry))
                looks.append(len(registry.list_versions()))
            except Exception as error:
                faults.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for kill in range(20):
            at_work = multiprocessing.get_context("forkserver").Event()
            publisher = start(
                publish_many, str(registry.location), f"kill {kill}", 1000, True, at_work
            )
            if kill % 2:  # the others are killed on their way to their first version
                assert at_work.wait(120)
            time.sleep(generator.uniform(0, 0.2))
            publisher.kill()
            publisher.join()
        wait_until(lambda: len(looks) > 2)
    finally:
        stop.set()
        reader.join()
    assert faults == [] and len(registry.list_versions()) > 0
    before = [version.number for version in registry.list_versions()]
    after = publish(registry, "after all").number
    assert after > max(before) and [version.number for version in registry.list_versions()] == [
        *before,
        after,
    ]
    assert remains(registry) == []
    registry.promote(after, "after all")
    assert registry.find_champion().number == after


def remains(registry: Registry) -> list[str]:
    """The entries next to whole versions, records, locks and marks of given-up numbers."""
    whole = {str(version.number) for version in registry.list_versions()} | {"aliases", "lease"}
    if isinstance(registry.location, Path):
        return [
            entry.name
            for entry in registry.location.iterdir()
            if entry.name not in whole | {".publish.lock"}
        ]
    names = [entry.name for entry in registry.folder.walk()]
    return [
        name
        for name in names
        if name.split("/")[0] not in whole and not name.endswith("/manifest.json")
    ]
