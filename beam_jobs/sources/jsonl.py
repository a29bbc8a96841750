"""A manifest of JSON lines, one object per image. A missing list of boxes is an error.

The objects may be the items of a list, as Apple's Create ML has them, which count as lines.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from beam_jobs.sources.columns import find_field, list_names
from beam_jobs.sources.folder_view import MAX_CANDIDATES, FolderView, Question, SourceMatch
from beam_jobs.sources.parsing import check_size, decode_text, name_part, parse_json_object
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.tables import ManifestReader, recognise_tables
from beam_jobs.sources.wording import get_task, join_names
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import JsonlSource
from pipeline_ops.raw_data.limits import MAX_SAMPLE_ANNOTATION_BYTES
from pipeline_ops.raw_data.raw_file import RawFile

_MAX_START_BYTES = 64 << 20


def read_entries(files: SourceFiles, source: JsonlSource) -> Iterator[SourceEntry]:
    for key, part in source.list_parts().items():
        reader = ManifestReader(files, source, part)
        text = decode_text(files.read(part.manifest, key), "surrogateescape")
        for number, line in enumerate(_divide(text), start=1):
            if not line.strip():
                continue
            with files.entry(f"{part.manifest}:{number}", prefix=f"line {number}: ") as entry:
                check_size(len(line), MAX_SAMPLE_ANNOTATION_BYTES, "a line")
                fields = parse_json_object(line.encode("utf-8", "surrogateescape"))
                fields |= {name: find_field(fields, own) for name, own in source.columns.items()}
                entry.key = reader.find_key(fields.get("path"))
                boxes = None
                if source.task == "detection":
                    first = source.corners[0] if source.corners else "boxes."
                    outer, dot, _ = first.partition(".")
                    if dot and not isinstance(fields.get(outer), list | dict):
                        detail = f"must have a list of {outer}, which may be empty"
                        raise Reject("malformed", detail)
                    boxes = reader.read_boxes(fields)
                yield reader.make_entry(fields, boxes)


def _divide(text: str) -> list[str]:
    """The lines of a file, or the items of its list."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return list(map(json.dumps, json.loads(text)))
    return text.split("\n")


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
    """Finds files of JSON lines with a path and a label or boxes."""
    yield from _recognise_createml(view)
    files = [(file, *_read_lines(view, file)) for file in view.list_candidates(".jsonl", ".ndjson")]
    found = list(recognise_tables("jsonl", view, files[:MAX_CANDIDATES]))
    yield from found
    if not found and files and files[0][1]:
        file, names, _ = files[0]
        need = "The source needs path and label, or path and boxes"
        yield f"the lines of {file.key} have the keys {join_names(names)}. {need}"


def _recognise_createml(view: FolderView) -> Iterator[SourceMatch]:
    """Finds Create ML's lists of images, whose boxes have their centers, one for each split."""
    corners = [f"annotations.coordinates.{name}" for name in ("x", "y", "width", "height")]
    parts = []
    for file in view.list_candidates(".json")[:MAX_CANDIDATES]:
        items = view.read_json(file)
        items = [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []
        xs = [find_field(item.get("annotations"), "coordinates.x") for item in items]
        names = [str(item["image"]) for item in items if "image" in item]
        folder, found = view.find_images_folder(names, file.key)
        if found and any(isinstance(x, list) and x and x[0] is not None for x in xs):
            parts.append(name_part("manifest", file.key, folder))
    if parts:
        keys: dict[str, Any] = {"columns": {"path": "image", "label": "annotations.label"}}
        keys |= {"corners": corners, "parts": parts, "box_format": "center_xywh"} | get_task(True)
        yield SourceMatch("jsonl", f"{parts[0]['manifest']} is a list of Create ML", keys)


def _read_lines(view: FolderView, file: RawFile) -> tuple[list[str], list[dict[str, Any]]]:
    """The keys of the lines, `objects.bbox` for those inside of others, and the lines."""
    rows = []
    for line in decode_text(view.read_start(file, _MAX_START_BYTES), "replace").split("\n"):
        with contextlib.suppress(Reject):  # also of the last line, which may be cut off
            rows.append(parse_json_object(line.encode()))
    return list_names(rows), rows
