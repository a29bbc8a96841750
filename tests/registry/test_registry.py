"""The registry: whole versions, aliases and roll-backs, in a local folder and on S3."""

from __future__ import annotations

import functools
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from manifests import make_manifest
from publishers import publish

from pipeline_ops.contract.manifest import NAME, Input, list_files, write_manifest
from pipeline_ops.errors import ConfigError, DataError, OutOfDate
from pipeline_ops.registry.aliases import move
from pipeline_ops.registry.registry import Registry, check_origin
from pipeline_ops.registry.versions import fetch_version, list_numbers


def moves(registry: Registry) -> list[int]:
    return [move.version for move in registry.read_history().moves]


def test_a_registry_that_nobody_has_used_is_empty(registry):
    assert registry.list_versions() == registry.read_history().moves == []
    assert registry.find_champion() is registry.find_by_alias("previous") is None


def test_versions_are_numbered_from_one_and_nothing_is_in_service_by_itself(registry):
    assert [publish(registry, digest).number for digest in "abc"] == [1, 2, 3]
    assert [version.number for version in registry.list_versions()] == [1, 2, 3]
    assert registry.find_champion() is None


def test_a_model_is_published_once(registry):
    assert publish(registry, "a").number == publish(registry, "a").number == 1
    assert [version.number for version in registry.find_by_training("a")] == [1]
    assert registry.find_by_training("b") == []


def test_a_champion_that_may_not_be_replaced_stays(registry):
    for digest in "ab":
        publish(registry, digest)
    registry.promote(1, "first", check_replaced=pytest.fail)  # nothing is replaced

    check = functools.partial(check_origin, pipeline="rows", shared_with=["q"])
    with pytest.raises(ConfigError, match=r"comes from pipeline p, .*shared_with: \[q, p\]"):
        registry.promote(2, "better", 1, check)
    assert registry.find_champion().number == 1 and moves(registry) == [1]
    registry.promote(2, "better", 1, functools.partial(check, shared_with=["p"]))
    assert moves(registry) == [1, 2]


def test_promoting_moves_the_champion_once_and_remembers_why(registry):
    for digest in "ab":
        publish(registry, digest)
    registry.promote(1, "first")
    registry.promote(2, "better", expected=1)
    registry.promote(2, "again")
    assert registry.find_champion().number == 2
    first, second = registry.read_history().moves
    assert (first.version, first.reason) == (1, "first")
    assert (second.version, second.reason) == (2, "better")
    assert first.time <= second.time <= time.time()


@pytest.mark.parametrize(
    "expected, message",
    [
        (None, "version 1 is in service now, and version 2 was compared with no version"),
        (3, "version 1 is in service now, and version 2 was compared with version 3"),
    ],
)
def test_a_decision_against_another_champion_is_refused(registry, expected, message):
    for digest in "abc":
        publish(registry, digest)
    registry.promote(1, "first")
    with pytest.raises(OutOfDate, match=message):
        registry.promote(2, "late", expected=expected)
    assert moves(registry) == [1]


def test_a_version_that_is_not_there_can_not_be_promoted_and_the_others_are_named(registry):
    publish(registry, "a")
    publish(registry, "b")
    with pytest.raises(ConfigError, match="there is no version 7. Existing versions: 1, 2"):
        registry.promote(7, "typo")


def test_rolling_back_puts_the_champion_before_in_service_until_there_is_none(registry):
    for digest in "abc":
        registry.promote(publish(registry, digest).number, "better")
    assert registry.read_aliases().names == {"champion": 3, "previous": 2}
    assert registry.roll_back().number == registry.find_champion().number == 2
    assert registry.read_history().moves[-1].reason == "rolled back from version 3"
    assert registry.find_by_alias("previous").number == 1
    assert registry.roll_back().number == 1
    problem = "no earlier champion to go back to. Put another version in service by its number"
    with pytest.raises(ConfigError, match=problem):
        registry.roll_back()
    assert moves(registry) == [1, 2, 3, 2, 1]


def test_rolling_back_after_a_roll_back_and_a_new_version_skips_the_bad_one(registry):
    for digest in "ab":
        registry.promote(publish(registry, digest).number, "better")
    registry.roll_back()
    registry.promote(publish(registry, "c").number, "fixed")
    assert registry.roll_back().number == 1


@pytest.mark.parametrize("is_of_an_earlier_release", [False, True])
def test_the_number_of_a_version_that_was_in_service_is_never_used_again(
    folder, is_of_an_earlier_release
):
    for digest in "ab":
        folder.promote(publish(folder, digest).number, "better")
    folder.promote(1, "back")
    if is_of_an_earlier_release:
        for file in (folder.location / "aliases").iterdir():
            record = json.loads(file.read_text())
            del record["highest"]
            file.write_text(json.dumps(record))
    shutil.rmtree(folder.location / "2")
    assert publish(folder, "c").number == 3
    folder.promote(3, "better")
    shutil.rmtree(folder.location / "3")
    folder.set_alias("champion-before", 1, "")
    assert publish(folder, "d").number == 4


def test_what_has_no_number_for_a_name_is_no_version(folder):
    publish(folder, "a")
    for name in ("0", "007", "²", "-1", "latest", ".2.77.staging"):
        (folder.location / name).mkdir()
    (folder.location / "5").write_text("a file")
    assert [version.number for version in folder.list_versions()] == [1]


def test_a_version_without_a_manifest_is_named_and_stops_no_other(folder, caplog):
    publish(folder, "a")
    (folder.location / "2").mkdir()
    assert [version.number for version in folder.find_by_training("a")] == [1]
    assert "2/manifest.json: there is no such manifest" in caplog.text
    assert publish(folder, "b").number == 3


def test_a_version_that_references_a_file_elsewhere_is_refused(registry):
    def fill(folder: Path, number: int) -> None:
        (folder / "saved_model.pb").write_bytes(b"1")
        [file] = list_files(folder)
        moved = file.model_copy(update={"stored_at": f"{'a' * 32}/saved_model.pb"})
        write_manifest(folder, make_manifest("export", files=[moved]))

    with pytest.raises(DataError, match=r"saved_model\.pb is stored at aaa.* holds all of its"):
        registry.publish("a", fill).read_manifest()


# Aliases


def test_any_name_may_stand_for_a_version_and_moves_at_once(registry):
    for digest in "ab":
        publish(registry, digest)
    registry.set_alias("canary", 1, "try it")
    registry.set_alias("canary", 2, "try that")
    assert registry.find_by_alias("canary").number == 2 and registry.find_champion() is None
    registry.set_alias("canary", None, "enough")
    assert registry.find_by_alias("canary") is None
    assert [(move.alias, move.version) for move in registry.read_history().moves] == [
        ("canary", 1),
        ("canary", 2),
        ("canary", None),
    ]


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("champion", "Promote a version"),
        ("previous", "Promote a version"),
        ("Canary", "an alias must begin"),
        ("1", "an alias must begin"),
        ("../x", "an alias must begin"),
    ],
)
def test_a_name_that_can_not_be_given_is_refused(folder, name, complaint):
    publish(folder, "a")
    with pytest.raises(ConfigError, match=complaint):
        folder.set_alias(name, 1, "no")


def test_of_two_who_promote_against_the_same_champion_one_is_told(registry):
    for digest in "abcdef":
        publish(registry, digest)
    registry.promote(1, "first")
    told = []

    def promote(number: int) -> None:
        try:
            registry.promote(number, "better", expected=1)
        except OutOfDate as error:
            told.append(str(error))

    threads = [threading.Thread(target=promote, args=[number]) for number in range(2, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4 and all(
        f"version {registry.find_champion().number} is in service now" in text for text in told
    )
    assert len(moves(registry)) == 2


def test_an_alias_that_names_another_version_than_was_seen_does_not_move(registry):
    for digest in "abc":
        publish(registry, digest)
    registry.set_alias("canary", 2, "try it", expected=None)
    with pytest.raises(OutOfDate, match="canary names version 2 now, and it named no version"):
        registry.set_alias("canary", 3, "try that", expected=None)
    registry.set_alias("canary", 3, "try that", expected=2)
    with pytest.raises(OutOfDate, match="names version 3 now, and it named version 2"):
        registry.set_alias("canary", None, "enough", expected=2)
    assert registry.find_by_alias("canary").number == 3


# Retirement


def test_retiring_keeps_the_newest_and_whatever_an_alias_names(registry):
    for digest in "abcdefg":
        publish(registry, digest)
    for number in (1, 3):
        registry.promote(number, "better")
    registry.set_alias("audit", 2, "asked for")
    assert registry.retire(2, "too many") == [4, 5]
    assert [version.number for version in registry.list_versions()] == [1, 2, 3, 6, 7]
    assert registry.retire(2, "again") == []
    assert registry.read_history().moves[-1].retired == [4, 5]


def test_one_version_is_retired_unless_an_alias_names_it(registry):
    for digest in "abc":
        publish(registry, digest)
    registry.promote(3, "better")
    registry.set_alias("audit", 1, "asked for")
    registry.retire_version(2, "wrong labels")
    assert [version.number for version in registry.list_versions()] == [1, 3]
    assert list_numbers(registry.folder) == [1, 3]
    for number, reason in ((1, "it is audit"), (3, "it is champion"), (2, "there is no version 2")):
        with pytest.raises(ConfigError, match=reason):
            registry.retire_version(number, "no")
    last = registry.read_history().moves[-1]
    assert (last.retired, last.reason) == ([2], "wrong labels")


def test_a_folder_that_no_export_has_published_is_not_retired(folder):
    publish(folder, "a")
    (folder.folder.local / "7").mkdir()
    with pytest.raises(ConfigError, match="no export has published it. Remove it by hand"):
        folder.retire_version(7, "what is it")
    assert (folder.folder.local / "7").is_dir() and not moves(folder)


def test_a_retired_version_can_not_come_back_and_its_number_is_not_used_again(registry):
    for digest in "abc":
        publish(registry, digest)
    registry.retire(1, "too many")
    with pytest.raises(ConfigError, match="there is no version 2. Existing versions: 3"):
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
    move(registry.folder, lambda present: present.with_retired([1, 2], "decided, not done"))
    assert [version.number for version in registry.list_versions()] == [3]
    assert registry.retire(1, "again") == [1, 2]
    assert list_numbers(registry.folder) == [3]


def test_a_folder_that_nobody_published_is_never_retired(folder, caplog):
    """Deletion touches only our own versions: others may keep models for TensorFlow Serving in the
    same folder."""
    for digest in "abc":
        publish(folder, digest)
    shutil.copytree(folder.location / "3", folder.location / "4")
    (folder.location / "4" / NAME).unlink()
    (folder.location / "5").symlink_to(folder.location / "3")
    publish(folder, "d")
    assert folder.retire(1, "too many") == [1, 2, 3]
    assert (folder.location / "4" / "saved_model.pb").exists()
    assert (folder.location / "5").is_symlink()
    assert f"{folder.location}/4 is not a folder that this program made" in caplog.text


def test_weights_that_are_no_version_are_read_where_they_are(tmp_path):
    """`train.warm_start` may name a file, or the folder of a SavedModel."""
    for name in ("start.npz", "model"):
        weights = Input(uri=str(tmp_path / name), digest="a")
        assert fetch_version(weights) == weights
