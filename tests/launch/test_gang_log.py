"""The log of a gang."""

from __future__ import annotations

import re

import pytest
from small_disks import DISK_BYTES

from pipeline_ops.contract.layout import Attempt
from pipeline_ops.contract.progress import ProgressReader, ProgressWriter
from pipeline_ops.errors import MachineError
from pipeline_ops.launch.gang_log import GangLog
from pipeline_ops.storage.open_store import open_path


def test_each_line_has_its_time_and_its_worker_and_comes_once(tmp_path):
    attempt = Attempt(tmp_path)
    log = GangLog(attempt)
    attempt.worker_log("worker 1").write_text("first\nhalf a l")
    ProgressWriter(attempt.worker_progress("worker 0"), 0).report(
        "train", 3, 10, "steps", {"loss": 0.5}
    )
    reader = ProgressReader(open_path(attempt.worker_progress("worker 0")))
    for _ in range(2):
        log.copy_new_lines(
            ["worker 0", "worker 1"], [("worker 0", event) for event in reader.read_new()]
        )
    with open(attempt.worker_log("worker 1"), "a") as file:
        file.write("ine\n")
    log.copy_new_lines(["worker 0", "worker 1"], [])
    log.write_message("the end\nof it")
    lines = log.path.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  ", line) for line in lines)
    assert sorted(line[26:] for line in lines[:2]) == [
        "worker 0   train 3/10 steps  loss 0.5",
        "worker 1   first",
    ]
    assert [line[26:] for line in lines[2:]] == [
        "worker 1   half a line",
        "gang       the end",
        "gang       of it",
    ]


def test_a_full_disk_is_named(small_disk):
    """N9."""
    log = GangLog(Attempt(small_disk))
    with pytest.raises(MachineError, match=r"cannot write .*gang\.log: no space left.* Free disk"):
        log.write_message("x" * 2 * DISK_BYTES)
