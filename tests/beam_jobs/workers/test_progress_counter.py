"""Counting over threads and processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from beam_jobs.workers.progress_counter import (
    ProgressCounter,
    ProgressReporter,
    StoppedByDriver,
    stop_workers,
)


def test_the_notes_of_all_workers_add_up(tmp_path: Path):
    counter = ProgressCounter(tmp_path / "progress")

    def work() -> None:
        reporter = ProgressReporter(tmp_path / "progress")
        for index in range(1000):
            reporter.add(is_rejected=index % 10 == 0)
        reporter.flush()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read() == (8000, 800)
    assert counter.read() == (8000, 800)


def test_a_note_that_is_half_written_waits_for_its_other_half(tmp_path: Path):
    counter = ProgressCounter(tmp_path / "progress")
    with open(tmp_path / "progress", "ab", buffering=0) as file:
        file.write(b"\x05\0\0\0\x01")
        assert counter.read() == (0, 0)
        file.write(b"\0\0\0")
        assert counter.read() == (5, 1)


def test_a_worker_stops_at_its_next_note_and_the_count_stays(tmp_path: Path):
    counter, reporter = (
        ProgressCounter(tmp_path / "progress"),
        ProgressReporter(tmp_path / "progress"),
    )
    reporter.add(is_rejected=False)
    reporter.flush()
    assert counter.read() == (1, 0)
    stop_workers(tmp_path / "progress")
    with pytest.raises(StoppedByDriver):
        reporter.flush()
    assert counter.read() == (1, 0)
