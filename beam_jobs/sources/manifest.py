"""The shared part of `csv` and `jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.sources.parsing import parse_text
from beam_jobs.sources.source import SourceEntry
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box
from pipeline_ops.config.sources import ManifestSource


def make_entry(
    fields: Mapping[str, Any], boxes: Sequence[Box] | None, source: ManifestSource
) -> SourceEntry:
    """The entry of a row or a line. `boxes` is None for classification."""
    label = parse_text(fields.get("label")) if boxes is None else None
    path: Any = fields.get("path")
    size = fields.get("height"), fields.get("width")
    return SourceEntry(
        path,
        label,
        boxes,
        fields.get("split"),
        fields.get("group"),
        frame=FRACTIONS if source.units == "fractions" else size,
        folder=source.images,
    )
