"""A manifest of JSON lines, one object per image. A missing list of boxes is an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from beam_jobs.sources.columns import find_field, list_names
from beam_jobs.sources.folder_view import (
    MAX_CANDIDATES,
    FolderView,
    Question,
    SourceMatch,
    join_names,
)
from beam_jobs.sources.parsing import decode_text, parse_json_object
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.tables import ManifestReader, recognise_tables
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import JsonlSource
from pipeline_ops.raw_data.raw_file import RawFile

_MAX_LINE_BYTES = 16 << 20
_MAX_START_BYTES = 64 << 20


def read_entries(files: SourceFiles, source: JsonlSource) -> Iterator[SourceEntry]:
    for key, part in source.list_parts().items():
        reader = ManifestReader(files, source, part)
        text = decode_text(files.read(part.manifest, key), "surrogateescape")
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            with files.entry(f"{part.manifest}:{number}", prefix=f"line {number}: ") as entry:
                if len(line) > _MAX_LINE_BYTES:
                    detail = f"a line of {len(line)} characters, allowed are {_MAX_LINE_BYTES}"
                    raise Reject("too_large", detail)
                fields = parse_json_object(line.encode("utf-8", "surrogateescape"))
                fields |= {name: find_field(fields, own) for name, own in source.columns.items()}
                entry.key = reader.find_key(fields.get("path"))
                boxes = None
                if source.task == "detection":
                    if not source.corners and not isinstance(fields.get("boxes"), list):
                        raise Reject("malformed", "must have a list of boxes, which may be empty")
                    boxes = reader.read_boxes(fields)
                yield reader.make_entry(fields, boxes)


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
    """Finds files of JSON lines with a path and a label or boxes."""
    files = [(file, *_read_lines(view, file)) for file in view.list_candidates(".jsonl", ".ndjson")]
    found = list(recognise_tables("jsonl", view, files[:MAX_CANDIDATES]))
    yield from found
    if not found and files and files[0][1]:
        file, names, _ = files[0]
        yield (
            f"the lines of {file.key} have the keys {join_names(names)}. "
            "The source needs path and label, or path and boxes"
        )


def _read_lines(view: FolderView, file: RawFile) -> tuple[list[str], list[dict[str, Any]]]:
    """The keys of the lines, `objects.bbox` for those inside of others, and the lines."""
    rows = []
    for line in decode_text(view.read_start(file, _MAX_START_BYTES), "replace").split("\n"):
        with contextlib.suppress(Reject):  # also of the last line, which may be cut off
            rows.append(parse_json_object(line.encode()))
    return list_names(rows), rows
