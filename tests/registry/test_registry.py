"""The registry: whole versions, aliases, and people and jobs that come at the same time; on a local
folder and on S3."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import threading
import time
from pathlib import Path

import pytest
from publishers import publish, publish_and_say, publish_many, start, wait_until

from pipeline_ops.artifacts.manifest import NAME, find_damage, read_manifest
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.aliases import move
from pipeline_ops.registry.registry import Registry


@pytest.fixture(params=["folder", "s3"])
def registry(request, tmp_path) -> Registry:
    """An empty one of each kind."""
    return Registry(
        tmp_path / "models" / "digits"
        if request.param == "folder"
        else request.getfixturevalue("s3_place")
    )


@pytest.fixture
def folder(tmp_path) -> Registry:
    """An empty local one."""
    return Registry(tmp_path / "models" / "digits")


def damage(registry: Registry, cache: Path) -> list[str]:
    """What is wrong with the versions that a reader sees, files and checksums."""
    found = []
    for version in registry.versions():
        local = version.fetch(cache) / NAME
        found += find_damage(local, read_manifest(local), checksums=True)
    return found


def moves(registry: Registry) -> list[int]:
    return [move.version for move in registry.history()]


def test_a_registry_that_nobody_has_used_is_empty(registry):
    assert (
        registry.versions() == []
        and registry.champion() is None
        and registry.history() == []
        and registry.previous() is None
    )


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
    assert [version.number for version in registry.made_from("a")] == [1] and registry.made_from(
        "b"
    ) == []


def test_promoting_moves_the_champion_and_remembers_why(registry):
    for digest in "ab":
        publish(registry, digest)
    registry.promote(1, "first")
    registry.promote(2, "better", expected=1)
    assert registry.champion().number == 2
    assert [(move.version, move.reason) for move in registry.history()] == [
        (1, "first"),
        (2, "better"),
    ]
    assert registry.history()[0].time <= registry.history()[1].time <= time.time()


def test_promoting_the_champion_changes_nothing(registry):
    publish(registry, "a")
    registry.promote(1, "first")
    registry.promote(1, "again")
    assert moves(registry) == [1]


@pytest.mark.parametrize(
    "expected, message",
    [
        (None, "version 2 was chosen over no version, but in service is version 1 by now"),
        (3, "version 2 was chosen over version 3, but in service is version 1 by now"),
    ],
)
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
    assert registry.history()[-1].reason == "rolled back from version 2"


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


def test_the_number_of_a_version_that_was_in_service_is_never_used_again(folder):
    for digest in "ab":
        folder.promote(publish(folder, digest).number, "better")
    folder.promote(1, "back")
    shutil.rmtree(folder.place / "2")
    assert publish(folder, "c").number == 3


def test_what_has_no_number_for_a_name_is_no_version(folder):
    publish(folder, "a")
    for name in ("0", "007", "²", "-1", "latest", ".2.77.staging"):
        (folder.place / name).mkdir()
    (folder.place / "5").write_text("a file")
    assert [version.number for version in folder.versions()] == [1]


def test_a_version_without_a_manifest_is_named_and_stops_no_other(folder, caplog):
    publish(folder, "a")
    (folder.place / "2").mkdir()
    assert [version.number for version in folder.made_from("a")] == [1]
    assert "2/manifest.json: there is no such manifest" in caplog.text
    assert publish(folder, "b").number == 3


def test_a_failure_while_a_version_is_filled_leaves_nothing_for_a_reader_and_stops_nobody(registry):
    def fill(folder: Path, number: int) -> None:
        (folder / "saved_model.pb").write_bytes(b"half")
        raise DataError("the candidate is gone")

    with pytest.raises(DataError, match="the candidate is gone"):
        registry.publish("a", fill)
    assert registry.versions() == []
    assert [version.number for version in registry.versions()] == [] and publish(
        registry, "a"
    ).number in (1, 2)


# Aliases


def test_any_name_may_stand_for_a_version_and_moves_at_once(registry):
    for digest in "ab":
        publish(registry, digest)
    registry.set_alias("canary", 1, "try it")
    registry.set_alias("canary", 2, "try that")
    assert registry.aliased("canary").number == 2 and registry.champion() is None
    registry.set_alias("canary", None, "enough")
    assert registry.aliased("canary") is None
    assert [(move.alias, move.version) for move in registry.history()] == [
        ("canary", 1),
        ("canary", 2),
        ("canary", None),
    ]


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("champion", "promote a version"),
        ("previous", "promote a version"),
        ("Canary", "an alias must begin"),
        ("1", "an alias must begin"),
        ("../x", "an alias must begin"),
    ],
)
def test_a_name_that_can_not_be_given_is_refused(folder, name, complaint):
    publish(folder, "a")
    with pytest.raises(ConfigError, match=complaint):
        folder.set_alias(name, 1, "no")


def test_the_champion_before_is_called_previous(registry):
    for digest in "abc":
        registry.promote(publish(registry, digest).number, "better")
    assert (registry.aliased("champion").number, registry.aliased("previous").number) == (3, 2)
    registry.roll_back()
    assert (registry.aliased("champion").number, registry.aliased("previous").number) == (2, 1)


def test_of_two_who_promote_against_the_same_champion_one_is_told(registry):
    for digest in "abcdef":
        publish(registry, digest)
    registry.promote(1, "first")
    told = []

    def promote(number: int) -> None:
        try:
            registry.promote(number, "better", expected=1)
        except DataError as error:
            told.append(str(error))

    threads = [threading.Thread(target=promote, args=[number]) for number in range(2, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4 and all(
        f"in service is version {registry.champion().number} by now" in text for text in told
    )
    assert len(moves(registry)) == 2


# Retirement


def test_retiring_keeps_the_newest_and_whatever_an_alias_names(registry):
    for digest in "abcdefg":
        publish(registry, digest)
    for number in (1, 3):
        registry.promote(number, "better")
    registry.set_alias("audit", 2, "asked for")
    assert registry.retire(2, "too many") == [4, 5]
    assert [version.number for version in registry.versions()] == [1, 2, 3, 6, 7]
    assert registry.retire(2, "again") == []
    assert registry.history()[-1].retired == [4, 5]


def test_a_retired_version_can_not_come_back_and_its_number_is_not_used_again(registry):
    for digest in "abc":
        publish(registry, digest)
    registry.retire(1, "too many")
    with pytest.raises(ConfigError, match="there is no version 2; there are 3"):
        registry.promote(2, "late")
    assert publish(registry, "b").number == 4


def test_a_champion_that_was_retired_is_skipped_by_a_roll_back(registry):
    for digest in "abc":
        registry.promote(publish(registry, digest).number, "better")
    registry.retire(1, "too many")
    registry.roll_back()
    with pytest.raises(ConfigError, match="no earlier champion"):
        registry.roll_back()


def test_a_retirement_that_was_killed_before_it_removed_anything_is_finished_by_the_next(registry):
    for digest in "abc":
        publish(registry, digest)
    move(registry.store, lambda present: present.without([1, 2], "decided, not done"))
    assert [version.number for version in registry.versions()] == [3]
    assert registry.retire(1, "again") == [1, 2]
    assert registry.store.numbers() == [3]


def test_a_folder_that_nobody_published_is_never_retired(folder, caplog):
    """Deletion touches only our own versions: others may keep models for TensorFlow Serving in the
    same folder."""
    for digest in "abc":
        publish(folder, digest)
    shutil.copytree(folder.place / "3", folder.place / "4")
    (folder.place / "4" / NAME).unlink()
    (folder.place / "5").symlink_to(folder.place / "3")
    publish(folder, "d")
    assert folder.retire(1, "too many") == [1, 2, 3]
    assert (folder.place / "4" / "saved_model.pb").exists() and (folder.place / "5").is_symlink()
    assert f"{folder.place}/4 is not a folder that this program made" in caplog.text


# Records that are none


BAD_RECORDS = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    b'{"names": {"champion": "../x"}}',
    b'{"names": {"champion": -1}}',
    b'{"names": {"A": 1}}',
    b'{"last": {"alias": "champion", "version": 1, "time": NaN, "reason": ""}}',
    b"[" * 100_000,
    b'{"last": {"alias": "champion", "version": 1, "time": 1e300, "reason": ""}}',
    b" " * (4 << 20) + b" {}",
]


@pytest.mark.parametrize("content", BAD_RECORDS, ids=range(len(BAD_RECORDS)))
def test_a_record_that_is_none_is_one_problem_and_the_others_count(folder, content, caplog):
    """F16: one alias record that was not JSON made the models page 500 for everybody."""
    for digest in "ab":
        folder.promote(publish(folder, digest).number, digest)
    (folder.place / "aliases" / "00000003.json").write_bytes(content)
    assert folder.champion().number == 2 and [move.version for move in folder.history()] == [1, 2]
    [problem] = folder.records().problems
    assert "aliases/00000003.json" in problem and len(problem) < 500 and problem in caplog.text
    folder.promote(1, "back")
    assert folder.champion().number == 1 and (folder.place / "aliases" / "00000004.json").exists()


def test_among_the_records_a_link_and_a_file_of_another_name_are_passed_over(folder, tmp_path):
    """F16."""
    folder.promote(publish(folder, "a").number, "first")
    (tmp_path / "secret").write_text("root:x:0:0")
    (folder.place / "aliases" / "00000002.json").symlink_to(tmp_path / "secret")
    (folder.place / "aliases" / "notes.txt").write_text("{}")
    assert folder.champion().number == 1 and len(folder.records().problems) == 2
    assert "root:x" not in "".join(folder.records().problems)
    folder.set_alias("canary", 1, "try it")
    assert folder.aliased("canary").number == 1


def test_a_reason_of_any_length_is_kept_shortened(folder):
    folder.promote(publish(folder, "a").number, "x" * 1_000_000)
    assert folder.history()[0].reason == "x" * 1000


# At the same time


def test_publishers_at_once_get_a_number_each(registry, tmp_path):
    publishers = [start(publish_many, str(registry.place), tag, 4) for tag in "abc"]
    for publisher in publishers:
        publisher.join(180)
    assert [publisher.exitcode for publisher in publishers] == [0, 0, 0]
    assert [version.number for version in registry.versions()] == list(range(1, 13))
    assert len({version.manifest().inputs["train"].digest for version in registry.versions()}) == 12
    assert damage(registry, tmp_path / "cache") == []


def test_of_two_who_publish_the_same_model_at_once_one_wins_and_the_other_gets_its_version_or_is_told(  # noqa: E501
    registry,
):
    answers = multiprocessing.get_context("forkserver").Queue()
    publishers = [
        start(publish_and_say, str(registry.place), "the same", answers) for _ in range(3)
    ]
    said = [answers.get(timeout=180) for _ in publishers]
    assert len(registry.versions()) == 1, said
    number = registry.versions()[0].number
    assert number in said and all(
        each == number or "is publishing the same model right now" in each for each in said
    )


def test_a_reader_sees_whole_versions_and_a_champion_that_is_there(registry, tmp_path):
    """While one process publishes and promotes, another looks as fast as it can,
    at least four times."""
    go_on = multiprocessing.get_context("forkserver").Semaphore(4)
    publisher = start(publish_many, str(registry.place), "a", 8, True, None, go_on)
    champions, faults = [], []
    while publisher.is_alive():
        faults += damage(registry, tmp_path / "cache")
        champions += [registry.champion()]
        go_on.release()
    assert publisher.exitcode == 0
    assert (
        faults == []
        and len(champions) >= 4
        and registry.champion().number == len(registry.versions()) == 8
    )


def test_publishers_killed_at_twenty_random_moments_are_never_seen_by_a_reader_and_repaired_by_the_next(  # noqa: E501
    registry, tmp_path
):
    generator, stop, faults, looks = random.Random(5), threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            try:
                faults.extend(damage(registry, tmp_path / "cache"))
                looks.append(len(registry.versions()))
            except Exception as error:
                faults.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for kill in range(20):
            at_work = multiprocessing.get_context("forkserver").Event()
            publisher = start(
                publish_many, str(registry.place), f"kill {kill}", 1000, True, at_work
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
    assert faults == [] and len(registry.versions()) > 0
    before = [version.number for version in registry.versions()]
    after = publish(registry, "after all").number
    assert after > max(before) and [version.number for version in registry.versions()] == [
        *before,
        after,
    ]
    assert remains(registry) == []
    registry.promote(after, "after all")
    assert registry.champion().number == after


def remains(registry: Registry) -> list[str]:
    """What lies beside whole versions, records, locks, and marks of what was given up."""
    whole = {str(version.number) for version in registry.versions()} | {"aliases", "claims"}
    if isinstance(registry.place, Path):
        return [
            entry.name
            for entry in registry.place.iterdir()
            if entry.name not in whole | {".publish.lock"}
        ]
    names = [name for name in registry.store._sizes() if name.split("/")[0] not in whole]
    return [name for name in names if not name.endswith("/manifest.json")]
