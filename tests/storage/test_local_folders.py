"""Removal of folders: in one place, by descriptor, owner and name."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from pipeline_ops.errors import MachineError
from pipeline_ops.storage.local_files import (
    open_folder,
    remove_folder,
    remove_own_folder,
    remove_staging_folders,
    staging_folder,
    withdraw_folder,
)
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.system.locks import exclusive_lock

ROOT = Path(__file__).resolve().parents[2]
THE_ONE_PLACE = ROOT / "pipeline_ops" / "storage" / "local_files.py"
FILES = [
    file
    for folder in ("pipeline_ops", "beam_jobs", "dags")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if file != THE_ONE_PLACE
]


def removals(source: bytes) -> list[str]:
    """The names in a file that stand for the removal of a tree."""
    return [
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in ("rmtree", "removedirs"))
        or (isinstance(node, ast.Name) and node.id in ("rmtree", "removedirs"))
    ]


def test_no_other_file_removes_trees():
    """F3, F4: each removal goes through the checks of owner and name."""
    assert [file for file in FILES if removals(file.read_bytes())] == []


def test_a_removal_elsewhere_can_be_seen():
    """Proves that the test above can fail."""
    assert removals(b"import shutil\nshutil.rmtree('/')\n") == ["rmtree"]
    assert removals(THE_ONE_PLACE.read_bytes()) == ["rmtree", "rmtree"]


@pytest.fixture
def victim(tmp_path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "thesis").write_text("1")
    return folder


def remove_tree(folder: Path) -> None:
    open_path(folder).remove_tree()


def withdraw(folder: Path) -> None:
    withdraw_folder(folder, "thesis")


def replace(folder: Path) -> None:
    """With a folder at a link's place that lacks the marker."""
    with pytest.raises(FileExistsError), staging_folder(folder, "marker"):
        pass


@pytest.mark.parametrize("remove", [remove_own_folder, remove_tree, withdraw, replace])
def test_a_link_in_the_place_of_a_folder_stays_with_what_it_leads_to(
    tmp_path, victim, remove, caplog
):
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "own").symlink_to(victim)
    remove(tmp_path / "place" / "own")
    assert (tmp_path / "place" / "own").is_symlink() and (victim / "thesis").exists()
    assert (
        "own is not a folder that this program made for itself. It is left unchanged."
        in caplog.text
    )


@pytest.mark.parametrize("remove", [remove_own_folder, remove_tree])
def test_a_folder_of_ours_goes_with_all_in_it_and_links_in_it_are_not_followed(
    tmp_path, victim, remove
):
    own = tmp_path / "place" / "own"
    (own / "deep").mkdir(parents=True)
    (own / "deep" / "link").symlink_to(victim)
    remove(own)
    remove(own)  # what is gone already is no fault
    assert os.listdir(own.parent) == [] and (victim / "thesis").exists()


def test_only_names_that_stagings_have_are_removed_as_stagings(tmp_path):
    foreign = [
        ".backup.staging",
        ".1.staging",
        "1.2.staging",
        ".1.2.staging.tar",
        ".1.x.staging",
        ".1.2.XYZ.staging",
    ]
    for name in [*foreign, ".1.2.staging", ".1.2.0abc.staging"]:
        (tmp_path / name).mkdir()
    (tmp_path / ".3.4.staging").write_text("a file")
    remove_staging_folders(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, ".3.4.staging"])


def test_a_staging_of_another_user_stays(tmp_path):
    (tmp_path / ".own.1.staging").mkdir()
    with open_folder(tmp_path) as descriptor:
        remove_folder(".own.1.staging", descriptor, {os.geteuid() + 1})
    assert os.listdir(tmp_path) == [".own.1.staging"]
    with staging_folder(tmp_path / "own"):
        pass
    assert os.listdir(tmp_path) == ["own"]


def test_a_link_in_the_place_of_a_lock_is_not_written_through(tmp_path, victim):
    (tmp_path / ".lock").symlink_to(victim / "thesis")
    with (
        pytest.raises(
            MachineError,
            match=r"cannot write .*\.lock: too many levels of symbolic links",
        ),
        exclusive_lock(tmp_path / ".lock", "it"),
    ):
        pass
    assert (victim / "thesis").read_text() == "1"
