"""A manifest of JSON lines, one object per image. A missing list of boxes is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from beam_jobs.sources.parsing import parse_box, parse_json_object
from beam_jobs.sources.source import SourceEntry, SourceFiles, make_manifest_entry
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import JsonlSource

_MAX_LINE_BYTES = 16 << 20


def read_entries(files: SourceFiles, source: JsonlSource) -> Iterator[SourceEntry]:
    for number, line in enumerate(files.read(source.manifest, "manifest").split(b"\n"), start=1):
        if not line.strip():
            continue
        with files.entry(f"{source.manifest}:{number}", prefix=f"line {number}: ") as entry:
            if len(line) > _MAX_LINE_BYTES:
                raise Reject(
                    "too_large", f"a line of {len(line)} bytes, allowed are {_MAX_LINE_BYTES}"
                )
            fields = parse_json_object(line)
            entry.key = files.find_key(fields.get("path"), source.images)
            yield make_manifest_entry(fields, _parse_boxes(fields, source), source)


def _parse_boxes(value: dict[str, Any], source: JsonlSource) -> tuple[Box, ...] | None:
    if source.task == "classification":
        return None
    boxes = value.get("boxes")
    if not isinstance(boxes, list):
        raise Reject("malformed", "must have a list of boxes, which may be empty")
    return tuple(map(parse_box, boxes))
