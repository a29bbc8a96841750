"""Counting over threads and processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from beam_jobs.progress_counter import Notes, ProgressCounter, StoppedByDriver, stop_workers


def test_the_notes_of_all_workers_add_up(tmp_path: Path):
    tally = ProgressCounter(tmp_path / "tally")

    def work() -> None:
        notes = Notes(tmp_path / "tally")
        for index in range(1000):
            notes.add(is_rejected=index % 10 == 0)
        notes.flush()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.read() == (8000, 800)
    assert tally.read() == (8000, 800)


def test_a_note_that_is_half_written_waits_for_its_other_half(tmp_path: Path):
    tally = ProgressCounter(tmp_path / "tally")
    with open(tmp_path / "tally", "ab", buffering=0) as file:
        file.write(b"\x05\0\0\0\x01")
        assert tally.read() == (0, 0)
        file.write(b"\0\0\0")
        assert tally.read() == (5, 1)


def test_a_worker_stops_at_its_next_note_and_the_count_stays(tmp_path: Path):
    tally, notes = ProgressCounter(tmp_path / "tally"), Notes(tmp_path / "tally")
    notes.add(is_rejected=False)
    notes.flush()
    assert tally.read() == (1, 0)
    stop_workers(tmp_path / "tally")
    with pytest.raises(StoppedByDriver):
        notes.flush()
    assert tally.read() == (1, 0)
