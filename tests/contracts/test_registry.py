"""The registry: whole versions, one champion, and people and jobs that come at the same time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline_ops.contracts.errors import ConfigError, DataError
from pipeline_ops.contracts.fingerprint import Fingerprint
from pipeline_ops.contracts.manifest import Input, Manifest, find_damage, list_files, write_manifest
from pipeline_ops.contracts.registry import Registry

PUBLISHER = """
import sys, pathlib
sys.path.insert(0, {tests!r})
from test_registry import publish
from pipeline_ops.contracts.registry import Registry
registry = Registry(pathlib.Path(sys.argv[1]))
for index in range(int(sys.argv[3])):
    publish(registry, sys.argv[2] + str(index))
    print(index, flush=True)
"""


def publish(registry: Registry, digest: str, num_bytes: int = 200_000):
    """Publishes a version of three files and a manifest, as export does."""
    def fill(folder: Path, number: int) -> None:
        (folder / "variables").mkdir()
        for name in ("saved_model.pb", "variables/variables.index", "variables/variables.data"):
            (folder / name).write_bytes(digest.encode() * (num_bytes // len(digest)))
        fingerprint = Fingerprint(config={"number": number}, inputs={}, code={}, versions={})
        write_manifest(folder, Manifest(job="export", pipeline="p", fingerprint=fingerprint, fingerprint_digest=fingerprint.digest,
                                        inputs={"train": Input(uri="", digest=digest)}, files=list_files(folder)))

    return registry.publish(digest, fill)


def start_publisher(registry: Registry, digest: str, count: int) -> subprocess.Popen:
    code = PUBLISHER.format(tests=str(Path(__file__).parent))
    return subprocess.Popen([sys.executable, "-c", code, str(registry.folder), digest, str(count)], stdout=subprocess.PIPE)


def damage(registry: Registry) -> list[str]:
    return [line for version in registry.versions() for line in find_damage(version.uri, version.manifest(), checksums=True)]


@pytest.fixture
def registry(tmp_path) -> Registry:
    return Registry(tmp_path / "models" / "digits")


def moves(registry: Registry) -> list[int]:
    return [move["version"] for move in registry.history()]


def test_a_registry_that_nobody_has_used_is_empty(registry):
    assert registry.versions() == [] and registry.champion() is None and registry.history() == [] and registry.previous() is None


def test_versions_are_numbered_from_one_and_nothing_is_in_service_by_itself(registry):
    assert [publish(registry, digest).number for digest in "abc"] == [1, 2, 3]
    assert [version.number for version in registry.versions()] == [1, 2, 3]
    assert registry.champion() is None


def test_ten_follows_nine(registry):
    for index in range(11):
        publish(registry, f"digest {index}", num_bytes=10)
    assert [version.number for version in registry.versions()][-3:] == [9, 10, 11]


def test_a_model_is_published_once(registry):
    assert publish(registry, "a").number == publish(registry, "a").number == 1
    assert registry.made_from("a").number == 1 and registry.made_from("b") is None


def test_promoting_moves_the_champion_and_remembers_why(registry):
    for digest in "ab":
        publish(registry, digest)
    registry.promote(1, "first")
    registry.promote(2, "better", expected=1)
    assert registry.champion().number == 2
    assert [(move["version"], move["reason"]) for move in registry.history()] == [(1, "first"), (2, "better")]
    assert registry.history()[0]["time"] <= registry.history()[1]["time"] <= time.time()


def test_promoting_the_champion_changes_nothing(registry):
    publish(registry, "a")
    registry.promote(1, "first")
    registry.promote(1, "again")
    assert moves(registry) == [1]


@pytest.mark.parametrize("expected, message", [(None, "version 2 was chosen over no version, but in service is version 1 by now"),
                                               (3, "version 2 was chosen over version 3, but in service is version 1 by now")])
def test_a_decision_against_another_champion_is_refused(registry, expected, message):
    for digest in "abc":
        publish(registry, digest)
    registry.promote(1, "first")
    with pytest.raises(DataError, match=message):
        registry.promote(2, "late", expected=expected)
    assert moves(registry) == [1]


def test_a_version_that_is_not_there_can_not_be_promoted_and_the_others_are_named(registry):
    publish(registry, "a")
    publish(registry, "b")
    with pytest.raises(ConfigError, match="there is no version 7; there are 1, 2"):
        registry.promote(7, "typo")


def test_rolling_back_puts_the_champion_before_in_service(registry):
    for digest in "ab":
        registry.promote(publish(registry, digest).number, "better")
    assert registry.roll_back().number == 1
    assert registry.champion().number == 1
    assert registry.history()[-1]["reason"] == "rolled back from version 2"


def test_two_roll_backs_lead_two_champions_back(registry):
    for digest in "abc":
        registry.promote(publish(registry, digest).number, "better")
    assert [registry.roll_back().number, registry.roll_back().number] == [2, 1]
    with pytest.raises(ConfigError, match="no earlier champion"):
        registry.roll_back()
    assert moves(registry) == [1, 2, 3, 2, 1]


def test_rolling_back_after_a_roll_back_and_a_new_version_skips_the_bad_one(registry):
    for digest in "ab":
        registry.promote(publish(registry, digest).number, "better")
    registry.roll_back()
    registry.promote(publish(registry, "c").number, "fixed")
    assert registry.roll_back().number == 1


def test_the_first_champion_has_nothing_to_go_back_to(registry):
    publish(registry, "a")
    registry.promote(1, "first")
    with pytest.raises(ConfigError, match="put another version in service by its number"):
        registry.roll_back()


def test_the_number_of_a_version_that_was_in_service_is_never_used_again(registry):
    for digest in "ab":
        registry.promote(publish(registry, digest).number, "better")
    registry.promote(1, "back")
    shutil.rmtree(registry.folder / "2")
    assert publish(registry, "c").number == 3


def test_what_has_no_number_for_a_name_is_no_version(registry):
    publish(registry, "a")
    for name in ("0", "007", "²", "-1", "latest", ".2.77.staging"):
        (registry.folder / name).mkdir()
    (registry.folder / "5").write_text("a file")
    assert [version.number for version in registry.versions()] == [1]


def test_a_version_without_a_manifest_is_named(registry):
    (registry.folder / "1").mkdir(parents=True)
    with pytest.raises(DataError, match="1/manifest.json: there is no such manifest"):
        registry.made_from("a")


def test_a_failure_while_a_version_is_filled_leaves_nothing(registry):
    def fill(folder: Path, number: int) -> None:
        (folder / "saved_model.pb").write_bytes(b"half")
        raise DataError("the candidate is gone")

    with pytest.raises(DataError, match="the candidate is gone"):
        registry.publish("a", fill)
    assert [path.name for path in registry.folder.iterdir()] == [".publish.lock"]


def test_publishers_at_once_get_a_number_each(registry):
    publishers = [start_publisher(registry, digest, 5) for digest in "abc"]
    assert [publisher.wait(60) for publisher in publishers] == [0, 0, 0]
    assert [version.number for version in registry.versions()] == list(range(1, 16))
    assert len({version.manifest().inputs["train"].digest for version in registry.versions()}) == 15
    assert damage(registry) == []


def test_a_reader_sees_whole_versions_and_a_champion_that_is_there(registry):
    """While one process publishes and promotes, another looks as fast as it can."""
    publisher = start_publisher(registry, "a", 12)
    stop, seen, faults = threading.Event(), set(), []

    def promote():
        while not stop.is_set():
            for version in registry.versions():
                registry.promote(version.number, "newest")

    promoter = threading.Thread(target=promote)
    promoter.start()
    while publisher.poll() is None:
        faults += damage(registry)
        champion = registry.champion()
        seen.add(champion.number if champion else None)
        faults += [] if champion is None else find_damage(champion.uri, champion.manifest())
    stop.set()
    promoter.join()
    assert faults == [] and len(seen) > 2 and len(registry.versions()) == 12


def test_kills_at_twenty_random_moments_leave_whole_versions_and_are_repaired_by_the_next_publisher(registry):
    generator = random.Random(5)
    for kill in range(20):
        publisher = start_publisher(registry, f"kill {kill} ", 1000)
        publisher.stdout.readline()  # it has published once, so it is at work
        time.sleep(generator.uniform(0, 0.03))
        os.kill(publisher.pid, signal.SIGKILL)
        publisher.wait()
        assert damage(registry) == []
    before = len(registry.versions())
    publish(registry, "after all")
    assert [version.number for version in registry.versions()] == list(range(1, before + 2))
    assert list(registry.folder.glob(".*.staging")) == []
