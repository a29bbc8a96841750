"""A CSV manifest: UTF-8, commas, and a header with the columns in any order.

    path,label                       classification. Optional: split, group
    path,xmin,ymin,xmax,ymax,label   detection, one row per box. Optional: split, group, width,
                                     height, is_difficult, is_crowd

Other columns are ignored. A row with a path and no other field of the box is an image without
boxes. Rows of one path may stand anywhere in the file. `width` and `height` are those of the
annotated image, and are checked against the file.
"""

from __future__ import annotations

import collections
import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from beam_jobs.sources.collect import Collector, ListedFiles, SourceRecords
from beam_jobs.sources.manifest import add_entry, find_key_or_location
from beam_jobs.sources.parsing import CORNERS, parse_box
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import CsvSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing

_COLUMNS = {
    "classification": ("path", "label"),
    "detection": ("path", "xmin", "ymin", "xmax", "ymax", "label"),
}
_IMAGE_COLUMNS = ("split", "group", "width", "height")


class _Row(NamedTuple):
    """One row: its fields by column, or its fault. A bad row may have no path."""

    line: int
    path: str = ""
    fields: Mapping[str, str] = {}
    fault: Reject | None = None


def read_records(source: CsvSource, listing: Listing) -> SourceRecords:
    """Raises DataError: there is no such file, or its header lacks a column."""
    collector, files = Collector(source.class_names), ListedFiles(listing)
    by_path: dict[str, list[_Row]] = defaultdict(list)
    for row in _read_rows(files.read(source.manifest, "manifest"), source):
        if row.fault and not row.path:
            collector.reject(f"{source.manifest}:{row.line}", row.fault.reason, row.fault.detail)
        else:
            by_path[row.path].append(row)
    for path, rows in by_path.items():
        location = f"{source.manifest}:{rows[0].line}"
        with collector.catch_reject(find_key_or_location(path, location, source, files)):
            for row in rows:
                if row.fault:
                    raise row.fault
            boxes = _parse_boxes(rows) if source.task == "detection" else None
            for row in rows if boxes is None else rows[:1]:
                location = f"{source.manifest}:{row.line}"
                add_entry(row.fields, boxes, location, source, collector, files)
    return collector.to_source_records()


def _read_rows(content: bytes, source: CsvSource) -> Iterator[_Row]:
    """Raises DataError: the header lacks a column."""
    text = io.StringIO(content.decode("utf-8-sig", "surrogateescape"), newline="")
    reader = csv.reader(text, strict=True)
    header = _read_header(reader, source)
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield _Row(line, fault=Reject("malformed", f"line {line}: {error}"))
            continue
        fields = dict(zip(header, values, strict=False))
        path = fields.get("path", "")
        if len(values) == len(header) and path:
            yield _Row(line, path, fields)
        elif values:
            fault = (
                f"line {line} has no path"
                if len(values) == len(header)
                else f"line {line} has {len(values)} fields, and the header {len(header)}"
            )
            yield _Row(line, path, fault=Reject("malformed", fault))


def _read_header(reader: Iterator[list[str]], source: CsvSource) -> list[str]:
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(
            f"{source.manifest}:1: not the header of a CSV file: {error}. Correct the file."
        ) from None
    required = _COLUMNS[source.task]
    if missing := [name for name in required if name not in header]:
        raise DataError(
            f"{source.manifest}:1: the header lacks {', '.join(missing)}. "
            f"For {source.task} it needs {','.join(required)}, got {_shorten(','.join(header))}"
        )
    if twice := sorted(n for n, count in collections.Counter(header).items() if n and count > 1):
        raise DataError(
            f"{source.manifest}:1: the header has {', '.join(map(_shorten, twice))} more than "
            "once. Rename or remove the column."
        )
    return header


def _shorten(header: str) -> str:
    return ascii(header)[1:-1][:200]


def _parse_boxes(rows: list[_Row]) -> tuple[Box, ...]:
    """The boxes of an image. Raises Reject: malformed, contradictory."""
    first, boxes = rows[0], []
    for row in rows:
        if differing := [
            name for name in _IMAGE_COLUMNS if row.fields.get(name) != first.fields.get(name)
        ]:
            raise Reject(
                "contradictory",
                f"lines {first.line} and {row.line} differ in {', '.join(differing)}",
            )
        if any(row.fields[name] for name in (*CORNERS, "label")):
            try:
                boxes.append(parse_box(row.fields))
            except Reject as reject:
                raise Reject(reject.reason, f"line {row.line}: {reject.detail}") from None
    return tuple(boxes)
