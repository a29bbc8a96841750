"""What the CSV and the JSON-lines manifest have in common: entries, and how they become records. Knows no file format."""

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
class Entry:
    """What a manifest says of one image, as it stands there; `boxes` is None for classification."""

    path: Any
    label: Any = ""
    boxes: tuple[Box, ...] | None = None
    split: Any = None
    group: Any = None
    height: Any = None
    width: Any = None


def add_entry(entry: Entry, place: str, source: ManifestSource, collector: Collector, files: Files) -> None:
    """Raises Reject: what the entry says can't be."""
    label = text(entry.label) if entry.boxes is None else ""
    collector.note_labels([label] if entry.boxes is None else [box.label for box in entry.boxes])
    frame = FRACTIONS if source.units == "fractions" else size_of(entry.height, entry.width)
    group = None if entry.group in (None, "") else text(entry.group)
    image = files.image(source.images, entry.path)
    collector.add(Record(image, label, entry.boxes, split_named(entry.split), group, None if entry.boxes is None else frame), place)


def key_or_place(path: Any, place: str, source: ManifestSource, files: Files) -> str:
    """The key of the image that an entry names; its place where it names none."""
    try:
        return files.key(source.images, path)
    except Reject:
        return place
