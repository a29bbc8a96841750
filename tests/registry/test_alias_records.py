"""Records of aliases that are damaged, foreign or too long."""

from __future__ import annotations

import pytest
from publishers import publish

from pipeline_ops.errors import DataError
from pipeline_ops.registry.registry import Registry
from pipeline_ops.storage.store_path import read_usage

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
    (folder.location / "aliases" / "00000003.json").write_bytes(content)
    assert folder.find_champion().number == 2 and [
        move.version for move in folder.read_history().moves
    ] == [1, 2]
    [problem] = folder.read_history().problems
    assert "aliases/00000003.json" in problem and len(problem) < 500 and problem in caplog.text
    folder.promote(1, "back")
    assert (
        folder.find_champion().number == 1
        and (folder.location / "aliases" / "00000004.json").exists()
    )


def test_among_the_records_a_link_and_a_file_of_another_name_are_passed_over(folder, tmp_path):
    """F16."""
    folder.promote(publish(folder, "a").number, "first")
    (tmp_path / "secret").write_text("root:x:0:0")
    (folder.location / "aliases" / "00000002.json").symlink_to(tmp_path / "secret")
    (folder.location / "aliases" / "notes.txt").write_text("{}")
    assert folder.find_champion().number == 1 and len(folder.read_history().problems) == 2
    assert "root:x" not in "".join(folder.read_history().problems)
    folder.set_alias("canary", 1, "try it")
    assert folder.find_by_alias("canary").number == 1


def test_a_record_with_the_highest_number_is_an_error_of_the_move(folder):
    """N7: promote succeeded and changed nothing."""
    folder.promote(publish(folder, "a").number, "first")
    record = folder.location / "aliases" / "00000001.json"
    record.rename(record.with_name("99999999.json"))
    publish(folder, "b")
    with pytest.raises(DataError, match=r"99999999\.json has the highest number.*Remove"):
        folder.promote(2, "second")
    assert folder.find_champion().number == 1


def test_the_newest_moves_are_read_without_the_others(s3_uri):
    """N10: the page of a model read each of 3,000 records, to show a hundred."""
    registry = Registry(s3_uri)
    publish(registry, "a")
    for number in range(5):
        registry.set_alias("canary", 1, str(number))
        registry.set_alias("canary", None, "and back")
    before = read_usage().requests
    moves = registry.read_history(newest=2).moves
    assert [move.reason for move in moves] == ["4", "and back"]
    assert read_usage().requests - before == 3  # the listing, and the two


def test_no_move_is_read_to_see_that_a_new_version_was_never_in_service(s3_uri):
    """N10: each export read each record."""
    registry = Registry(s3_uri)
    for number, digest in enumerate("abc", 1):
        registry.promote(publish(registry, digest).number, str(number))
    publish(registry, "d")
    assert registry.find_earlier_services({1, 3, 4}) == [1, 3]
    before = read_usage().requests
    assert registry.find_earlier_services({4}) == []
    assert read_usage().requests - before == 2  # the listing, and the state


def test_a_reason_of_any_length_is_kept_shortened(folder):
    folder.promote(publish(folder, "a").number, "x" * 1_000_000)
    assert folder.read_history().moves[0].reason == "x" * 1000
