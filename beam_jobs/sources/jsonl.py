"""A manifest of JSON lines, one object per image. A missing list of boxes is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from beam_jobs.sources.parsing import parse_box, parse_json_object
from beam_jobs.sources.source import ManifestReader, SourceEntry, SourceFiles
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import JsonlSource

_MAX_LINE_BYTES = 16 << 20


def read_entries(files: SourceFiles, source: JsonlSource) -> Iterator[SourceEntry]:
    for key, part in source.list_parts().items():
        reader = ManifestReader(files, source, part)
        for number, line in enumerate(files.read(part.manifest, key).split(b"\n"), start=1):
            if not line.strip():
                continue
            with files.entry(f"{part.manifest}:{number}", prefix=f"line {number}: ") as entry:
                if len(line) > _MAX_LINE_BYTES:
                    detail = f"a line of {len(line)} bytes, allowed are {_MAX_LINE_BYTES}"
                    raise Reject("too_large", detail)
                fields = parse_json_object(line)
                fields |= {name: fields.get(theirs) for name, theirs in source.columns.items()}
                entry.key = reader.find_key(fields.get("path"))
                boxes = _parse_boxes(fields) if source.task == "detection" else None
                yield reader.make_entry(fields, boxes)


def _parse_boxes(value: dict[str, Any]) -> tuple[Box, ...]:
    boxes = value.get("boxes")
    if not isinstance(boxes, list):
        raise Reject("malformed", "must have a list of boxes, which may be empty")
    return tuple(map(parse_box, boxes))
