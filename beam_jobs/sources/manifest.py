"""Entries of a CSV or JSON-lines manifest, and their conversion to records.

This module knows no file format.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, Files, size_of, split_named, text
from beam_jobs.stages.given_boxes import FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import ManifestSource

CORNERS = ("ymin", "xmin", "ymax", "xmax")


@dataclasses.dataclass(frozen=True)
class ManifestEntry:
    """One image as a manifest describes it. `boxes` is None for classification."""

    path: Any
    label: Any = ""
    boxes: tuple[Box, ...] | None = None
    split: Any = None
    group: Any = None
    height: Any = None
    width: Any = None


def add_entry(
    entry: ManifestEntry, place: str, source: ManifestSource, collector: Collector, files: Files
) -> None:
    """Adds the record of an entry.

    Raises Reject: the entry has a value that can't be right.
    """
    label = text(entry.label) if entry.boxes is None else ""
    collector.note_labels([label] if entry.boxes is None else [box.label for box in entry.boxes])
    frame = FRACTIONS if source.units == "fractions" else size_of(entry.height, entry.width)
    group = None if entry.group in (None, "") else text(entry.group)
    image = files.image(source.images, entry.path)
    collector.add(
        Record(
            image,
            label,
            entry.boxes,
            split_named(entry.split),
            group,
            None if entry.boxes is None else frame,
        ),
        place,
    )


def key_or_place(path: Any, place: str, source: ManifestSource, files: Files) -> str:
    """The key of the image that an entry names, or the entry's place if it names none."""
    try:
        return files.key(source.images, path)
    except Reject:
        return place
