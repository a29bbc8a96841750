"""A folder of copies, as a model server sees it that polls the folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest
from polling_server import PollingServer, find_highest
from publishers import (
    follow,
    follow_without_exchange,
    make_version_writer,
    publish,
    start,
)
from small_disks import mount_small_disk

from pipeline_ops.contract.manifest import NAME, find_damage, read_manifest
from pipeline_ops.errors import ConfigError, MachineError
from pipeline_ops.registry.polled_folder import PolledFolder
from pipeline_ops.registry.registry import Registry


@pytest.fixture
def polled(registry, tmp_path) -> PolledFolder:
    """A folder that is missing, and a registry with versions 1 to 4, of which 4 is in service."""
    for digest in "abcd":
        registry.promote(publish(registry, digest, num_bytes=30_000).number, "newer")
    return PolledFolder(tmp_path / "served", registry)


@pytest.fixture
def local(folder, tmp_path) -> PolledFolder:
    """The same, of a registry in a folder."""
    for digest in "abcd":
        folder.promote(publish(folder, digest, num_bytes=3_000).number, "newer")
    return PolledFolder(tmp_path / "served", folder)


def list_entries(polled: PolledFolder) -> list[str]:
    return sorted(name for name in os.listdir(polled.folder) if name != ".fetch.lock")


def is_whole(polled: PolledFolder, number: int) -> bool:
    manifest = read_manifest(polled.folder / str(number) / NAME)
    version = polled.registry.get_version(number)
    damage = find_damage(polled.folder / str(number) / NAME, manifest, checksums=True)
    return manifest == version.read_manifest() and not damage


def test_a_server_that_polls_serves_each_champion_and_nothing_between(polled):
    registry = polled.registry
    with PollingServer(polled.folder) as server:
        for move in (
            lambda: None,
            lambda: registry.promote(1, "by hand"),
            lambda: registry.promote(3, "by hand"),
            registry.roll_back,
            lambda: registry.promote(4, "again"),
            lambda: registry.promote(2, "by hand"),
        ):
            move()
            polled.follow("champion")
            server.wait()
    assert server.served == ["4", "1", "3", "1", "4", "2"] and server.damage == []


def test_a_rollback_reaches_a_folder_with_several_newer_copies(local):
    for number in (1, 2, 3, 4):
        local.add(number)
    local.registry.promote(1, "by hand")
    with PollingServer(local.folder) as server:
        server.wait()
        lines = local.follow("champion")
    assert server.served == ["4", "1"]
    assert lines == [
        f"{local.folder}/1",
        *(f"withdrawn and removed: {local.folder}/{number}" for number in (2, 3, 4)),
        f"a server that polls {local.folder} serves version 1 (@champion)",
    ]
    assert list_entries(local) == ["1"] and is_whole(local, 1)
    assert local.follow("champion") == lines[:1]


def test_a_number_is_copied_and_a_higher_one_is_named(local):
    local.follow("champion")
    lines = local.add(2)
    assert list_entries(local) == ["2", "4"] and lines[0] == f"{local.folder}/2"
    assert f"{local.folder} also has 4, which a server that polls it serves" in lines[1]
    assert local.add(4) == [f"{local.folder}/4"]


def test_copies_of_retired_versions_go_and_others_stay(local):
    for number in (1, 2, 3):
        local.add(number)
    local.registry.set_alias("canary", 1, "")
    assert local.registry.retire(1, "old") == [2]
    lines = local.follow("champion")
    assert list_entries(local) == ["1", "3", "4"]
    assert "version 2 is no longer in the registry: removed its copy" in lines


@pytest.mark.parametrize("name", ["9", "007", " 8", "+6", "04", "20261129"])
def test_another_entry_with_a_higher_number_is_kept_under_a_name_that_no_server_reads(local, name):
    local.folder.mkdir()
    (local.folder / name).mkdir()
    (local.folder / name / "mine").write_text("by hand")
    lines = local.follow("champion")
    assert find_highest(local.folder) == local.folder / "4"
    [kept] = [each for each in list_entries(local) if each != "4"]
    assert (local.folder / kept / "mine").read_text() == "by hand"
    assert str(local.folder / kept) in lines[1] and "Remove it" in lines[1]
    assert lines[1:] == local.follow("champion")[1:]  # named until it is gone


def test_links_files_other_models_and_copies_with_more_in_them_are_kept(local, tmp_path):
    other = Registry(tmp_path / "models" / "digits2")
    local.add(3)
    local.registry.promote(2, "by hand")
    (local.folder / "5").symlink_to(local.folder / "3")
    (local.folder / "6").write_text("a file")
    other.publish("x", make_version_writer("x", 300))
    os.rename(local.folder / "3", local.folder / "7")
    (local.folder / "7" / "digits-3.sigstore.json").write_text("signature")
    local.follow("champion")
    kept = [each for each in list_entries(local) if each != "2"]
    assert [each.split("-")[1] for each in kept] == ["5", "6", "7"]
    assert (local.folder / kept[2] / "digits-3.sigstore.json").exists()


@pytest.mark.parametrize("damage", ["half", "another model", "a link", "a file", "nothing in it"])
def test_a_number_that_is_there_and_is_not_the_version_is_replaced(local, tmp_path, damage):
    copy = local.folder / "4"
    if damage == "half":
        local.follow("champion")
        (copy / "saved_model.pb").write_bytes(b"d")
    elif damage == "another model":
        other = Registry(tmp_path / "other" / "digits")
        for digest in "wxyz":
            other.promote(publish(other, digest, num_bytes=300).number, "newer")
        PolledFolder(local.folder, other).follow("champion")
    else:
        local.folder.mkdir()
        {
            "a link": lambda: copy.symlink_to(tmp_path / "missing"),
            "a file": copy.touch,
            "nothing in it": copy.mkdir,
        }[damage]()
    lines = local.follow("champion")
    assert is_whole(local, 4) and "was replaced, because" in lines[1] and "restart" in lines[1]


def test_a_file_system_that_exchanges_no_names_gets_a_whole_copy_as_well(local):
    local.follow("champion")
    (local.folder / "4" / "saved_model.pb").write_bytes(b"d")
    fetch = start(follow_without_exchange, str(local.registry.location), str(local.folder))
    fetch.join(60)
    assert fetch.exitcode == 0 and list_entries(local) == ["4"] and is_whole(local, 4)


def test_the_folder_of_a_registry_is_refused(local):
    with pytest.raises(ConfigError, match="is the folder of a model in a registry"):
        PolledFolder(local.registry.location, local.registry).follow("champion")
    assert len(local.registry.list_versions()) == 4


def test_an_alias_that_is_not_there_changes_nothing(local):
    local.follow("champion")
    with pytest.raises(ConfigError, match="no version has the alias canary"):
        local.follow("canary")
    assert list_entries(local) == ["4"]


@pytest.mark.stores
def test_a_fetch_that_is_killed_before_any_step_is_never_seen_and_the_next_one_heals(
    local, tmp_path
):
    registry = local.registry
    registry.promote(1, "by hand")
    for step in range(1000):
        polled = PolledFolder(tmp_path / f"served {step}", registry)
        for number in (2, 3, 4):
            polled.add(number)
        shutil.copytree(polled.folder / "4", polled.folder / "5")
        (polled.folder / "5" / "mine").write_text("by hand")
        with PollingServer(polled.folder) as server:
            server.wait()
            arguments = str(registry.location), str(polled.folder), "champion"
            fetch = start(follow, *arguments, step)
            fetch.join(60)
            server.wait()
            polled.follow("champion")
        assert server.served == ["5", "1"] and server.damage == []
        entries = list_entries(polled)
        assert [name.split("-")[:2] for name in entries] == [["1"], ["withdrawn", "5"]]
        assert (polled.folder / entries[1] / "mine").exists() and is_whole(polled, 1)
        if fetch.exitcode == 0:
            break
    assert step > 15


def test_fetches_at_once_leave_the_champion(local):
    local.follow("champion")
    local.registry.set_alias("canary", 2, "")
    location, folder = str(local.registry.location), str(local.folder)
    fetches = [start(follow, location, folder, "champion") for _ in range(4)]
    for fetch in fetches:
        fetch.join(60)
    assert [fetch.exitcode for fetch in fetches] == [0] * 4
    assert list_entries(local) == ["4"] and is_whole(local, 4)


@pytest.fixture
def full(folder, tmp_path) -> Iterator[PolledFolder]:
    """A folder on a disk with room for two versions."""
    for digest in "ab":
        folder.promote(publish(folder, digest, num_bytes=20_000).number, "newer")
    with mount_small_disk(tmp_path / "disk", "size=160k") as disk:
        yield PolledFolder(disk / "served", folder)


def test_a_full_disk_leaves_the_old_version_and_the_next_fetch_heals(full):
    full.follow("champion")
    full.registry.roll_back()
    filler = full.folder.parent / "filler"
    filler.write_bytes(bytes(40_000))
    with PollingServer(full.folder) as server:
        server.wait()
        with pytest.raises(MachineError, match="no space left on device"):
            full.follow("champion")
        assert list_entries(full) == ["2"] and is_whole(full, 2)
        filler.unlink()
        full.follow("champion")
    assert server.served == ["2", "1"] and server.damage == []


def test_a_disk_that_is_full_to_the_last_byte_lets_a_rollback_to_a_copy_through(full):
    full.add(1)
    (full.folder / "2").mkdir()
    with contextlib.suppress(OSError), open(full.folder.parent / "filler", "wb", 0) as filler:
        while True:
            filler.write(bytes(1024))
    full.registry.roll_back()
    full.follow("champion")
    assert find_highest(full.folder) == full.folder / "1"
