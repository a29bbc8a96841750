"""Reads the quarantine files of a data set."""

from __future__ import annotations

from pathlib import Path

from beam_jobs.io.example import unpack
from beam_jobs.io.tfrecord_reader import scan_records


def read_quarantine(file: Path) -> list[dict]:
    """The features of each record."""
    with open(file, "rb") as opened:
        return [unpack(record) for _, record in scan_records(opened, file.stat().st_size)]
