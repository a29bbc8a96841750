"""A CSV manifest: UTF-8, commas, and a header with the columns in any order.

    path,label                       classification. Optional: split, group
    path,xmin,ymin,xmax,ymax,label   detection, one row per box. Optional: split, group, width,
                                     height, is_difficult, is_crowd

Other columns are ignored. A row with a path and no other field of the box is an image without
boxes. Rows of one path may stand anywhere in the file. `width` and `height` are those of the
annotated image, and are checked against the file.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator

from beam_jobs.sources.collect import Collector, Files, Found, make_box
from beam_jobs.sources.manifest import CORNERS, ManifestEntry, add_entry, key_or_place
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import CsvSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing

_COLUMNS = {
    "classification": ("path", "label"),
    "detection": ("path", "xmin", "ymin", "xmax", "ymax", "label"),
}
_OF_THE_IMAGE = ("split", "group", "width", "height")

Row = dict[str, str]


def read_records(source: CsvSource, listing: Listing) -> Found:
    """Raises DataError: there is no such file, or its header lacks a column."""
    collector, files = Collector(source.class_names), Files(listing)
    by_path: dict[str, list[tuple[int, Row | Reject]]] = defaultdict(list)
    for line, path, row in read_rows(files.read(source.manifest, "manifest"), source):
        if path is None:
            collector.reject(f"{source.manifest}:{line}", row.reason, row.detail)
        else:
            by_path[path].append((line, row))
    for path, rows in by_path.items():
        place = f"{source.manifest}:{rows[0][0]}"
        with collector.rejects(key_or_place(path, place, source, files)):
            for entry, line in _entries_of(path, rows, source):
                add_entry(entry, f"{source.manifest}:{line}", source, collector, files)
    return collector.found()


def read_rows(content: bytes, source: CsvSource) -> Iterator[tuple[int, str | None, Row | Reject]]:
    """Yields the line, the path and the fields by column of every row.

    A malformed row has a Reject in place of its fields, and may have None in place of its path.

    Raises:
      DataError: the header lacks a column.
    """
    reader = csv.reader(
        io.StringIO(content.decode("utf-8-sig", "surrogateescape"), newline=""), strict=True
    )
    header = _read_header(reader, source)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, None, Reject("malformed", f"line {line}: {error}")
            continue
        if not fields:
            continue
        if len(fields) != len(header):
            path = fields[header.index("path")] if len(fields) > header.index("path") else None
            yield (
                line,
                path,
                Reject(
                    "malformed",
                    f"line {line} has {len(fields)} fields, and the header {len(header)}",
                ),
            )
            continue
        row = dict(zip(header, fields, strict=True))
        yield (
            (line, row["path"], row)
            if row["path"]
            else (line, None, Reject("malformed", f"line {line} has no path"))
        )


def _read_header(reader: Iterator[list[str]], source: CsvSource) -> list[str]:
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise DataError(f"{source.manifest}:1: no header of a CSV file: {error}") from None
    wanted = _COLUMNS[source.task]
    if missing := [name for name in wanted if name not in header]:
        raise DataError(
            f"{source.manifest}:1: the header lacks {', '.join(missing)}; "
            f"for {source.task} it must have {','.join(wanted)}, "
            f"and has {_shown(header)}"
        )
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        raise DataError(
            f"{source.manifest}:1: the header has {', '.join(map(_shown, twice))} more than once"
        )
    return header


def _shown(header: list[str] | str) -> str:
    return ascii(header if isinstance(header, str) else ",".join(header))[1:-1][:200]


def _entries_of(
    path: str, rows: list[tuple[int, Row | Reject]], source: CsvSource
) -> Iterator[tuple[ManifestEntry, int]]:
    """Yields one entry for each row, or one entry for all boxes of an image.

    Raises Reject: malformed, contradictory.
    """
    for _, row in rows:
        if isinstance(row, Reject):
            raise row
    if source.task == "classification":
        for line, row in rows:
            yield (
                ManifestEntry(path, row["label"], split=row.get("split"), group=row.get("group")),
                line,
            )
        return
    line, first = rows[0]
    for other_line, row in rows:
        if differing := [name for name in _OF_THE_IMAGE if row.get(name) != first.get(name)]:
            raise Reject(
                "contradictory",
                f"lines {line} and {other_line} say different things of {', '.join(differing)}",
            )
    boxes = tuple(box for other_line, row in rows if (box := _box_of(row, other_line)))
    yield (
        ManifestEntry(path, boxes=boxes, **{name: first.get(name) for name in _OF_THE_IMAGE}),
        line,
    )


def _box_of(row: Row, line: int) -> Box | None:
    if not any(row[name] for name in (*CORNERS, "label")):
        return None
    try:
        return make_box(
            [row[name] for name in CORNERS],
            row["label"],
            row.get("is_difficult", ""),
            row.get("is_crowd", ""),
        )
    except Reject as reject:
        raise Reject(reject.reason, f"line {line}: {reject.detail}") from None
