"""Recognises manifests: CSV files and JSON lines that name every image."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.recognition.folder_view import MAX_CANDIDATES, START_BYTES, FolderView
from beam_jobs.recognition.source_match import Certainty, SourceMatch, count
from beam_jobs.sources.parsing import CORNERS
from pipeline_ops.raw_data.raw_file import RawFile

_MAX_ROWS = 200
_OTHER_NAMES = {
    "path": ("filename", "file", "file_name", "image", "image_path", "filepath", "img", "image_id"),
    "label": ("class", "class_name", "category", "target", "y"),
    "xmin": ("x_min", "x1", "left"),
    "ymin": ("y_min", "y1", "top"),
    "xmax": ("x_max", "x2", "right"),
    "ymax": ("y_max", "y2", "bottom"),
}
"""Names that other tools have for our columns."""


def recognise_csv(view: FolderView) -> Iterator[SourceMatch]:
    """Finds CSV files with our columns, or with the columns of other tools."""
    for file in view.list_candidates(".csv", ".tsv")[:MAX_CANDIDATES]:
        header, rows = _read_table(view, file)
        known = [name for names in _OTHER_NAMES.values() for name in names]
        if "path" in header and "label" in header:
            yield _judge("csv", view, file, rows, has_boxes={*CORNERS} <= {*header})
        elif any(name.lower() in (*known, "path", "label") for name in header):
            renamed = [
                f"{name} to {ours}"
                for ours, others in _OTHER_NAMES.items()
                for name in header
                if name.lower() in (*others, ours) and name != ours
            ]
            reason = (
                f"{file.key} has the columns {', '.join(header)[:200]}. The source needs the "
                "columns path and label, and xmin, ymin, xmax, ymax for boxes"
                + (f". Rename {', '.join(renamed)}" if renamed else "")
            )
            yield SourceMatch("csv", Certainty.UNUSABLE, reason)


def _read_table(view: FolderView, file: RawFile) -> tuple[list[str], list[dict[str, str]]]:
    """The header and the first rows of a CSV file. Both are empty if it is none."""
    start = view.read_start(file)
    lines = start.decode("utf-8-sig", "replace").split("\n")
    if file.num_bytes > START_BYTES:
        lines.pop()  # cut off
    reader = csv.reader(io.StringIO("\n".join(lines[: _MAX_ROWS + 1]), newline=""))
    try:
        header, *rows = list(reader)
    except (ValueError, csv.Error):
        return [], []
    header = [name.strip() for name in header]
    return header, [dict(zip(header, row, strict=False)) for row in rows if row]


def recognise_jsonl(view: FolderView) -> Iterator[SourceMatch]:
    """Finds files of JSON lines with a path and a label or boxes."""
    for file in view.list_candidates(".jsonl", ".ndjson")[:MAX_CANDIDATES]:
        entries = list(_read_lines(view, file))
        if any("path" in entry and {"label", "boxes"} & {*entry} for entry in entries):
            yield _judge("jsonl", view, file, entries, any("boxes" in entry for entry in entries))
        elif entries:
            reason = (
                f"the lines of {file.key} have the keys {', '.join(map(str, entries[0]))[:200]}. "
                "The source needs path and label, or path and boxes"
            )
            yield SourceMatch("jsonl", Certainty.UNUSABLE, reason)


def _read_lines(view: FolderView, file: RawFile) -> Iterator[dict[str, Any]]:
    for line in view.read_start(file).split(b"\n")[:_MAX_ROWS]:
        try:
            value = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):  # also of the last line, which may be cut off
            continue
        if isinstance(value, dict):
            yield value


def _judge(
    kind: str,
    view: FolderView,
    file: RawFile,
    entries: Sequence[Mapping[str, Any]],
    has_boxes: bool,
) -> SourceMatch:
    """The match for a manifest with the right keys. It depends on its images."""
    names = [entry["path"] for entry in entries if isinstance(entry.get("path"), str)]
    folder, found = view.find_images_folder([name for name in names if name], file.key)
    if not found:
        reason = (
            f"{file.key} has the right columns, but none of its images"
            f"{f' ({names[0]})' if names else ''} is below this folder. Correct the paths, or name "
            "the folder that holds both"
        )
        return SourceMatch(kind, Certainty.UNUSABLE, reason)
    keys: dict[str, Any] = {"manifest": file.key}
    keys |= {} if folder == "." else {"images": folder}
    keys["task"] = "detection" if has_boxes else "classification"
    if has_boxes and _has_fractions(entries):
        keys["units"] = "fractions"
    reason = (
        f"{file.key} names images in {folder} with {'boxes' if has_boxes else 'labels'} "
        f"({found:,} of the first {count(len(names), 'path')} looked up were found)"
    )
    return SourceMatch(kind, Certainty.CERTAIN, reason, keys)


def _has_fractions(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether all corners of the boxes are from 0 to 1."""
    boxes = [box for entry in entries for box in _list_boxes(entry)]
    try:
        corners = [float(box[name]) for box in boxes for name in CORNERS if box.get(name) != ""]
    except (KeyError, TypeError, ValueError):
        return False
    return bool(corners) and all(0 <= corner <= 1 for corner in corners)


def _list_boxes(entry: Mapping[str, Any]) -> list[Any]:
    boxes = entry.get("boxes", [entry])
    return [box for box in boxes if isinstance(box, dict)] if isinstance(boxes, list) else []
