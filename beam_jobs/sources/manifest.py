"""Entries of a CSV or JSON-lines manifest, and their conversion to records.

An entry is a mapping with the keys `path`, `label`, `split`, `group`, `height` and `width`, of
which all but `path` may be missing. This module knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, ListedFiles
from beam_jobs.sources.parsing import escape_surrogates, parse_size, parse_split, parse_text
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import ManifestSource


def add_entry(
    entry: Mapping[str, Any],
    boxes: tuple[Box, ...] | None,
    location: str,
    source: ManifestSource,
    collector: Collector,
    files: ListedFiles,
) -> None:
    """Adds the record of an entry. `boxes` is None for classification.

    Raises Reject: a value of the entry is not valid.
    """
    label = parse_text(entry.get("label")) if boxes is None else ""
    collector.set_current_labels([label] if boxes is None else [box.label for box in boxes])
    size = parse_size(entry.get("height"), entry.get("width"))
    frame = FRACTIONS if source.units == "fractions" else size
    group = entry.get("group")
    group = None if group in (None, "") else escape_surrogates(parse_text(group))
    image = files.find_image(source.images, entry.get("path"))
    split = parse_split(entry.get("split"))
    frame = None if boxes is None else frame
    collector.add(Record(image, label, boxes, split, group, frame), location)


def find_key_or_location(
    path: Any, location: str, source: ManifestSource, files: ListedFiles
) -> str:
    """The key of the image that an entry names, or the entry's location if it names none."""
    try:
        return files.to_key(source.images, path)
    except Reject:
        return location
