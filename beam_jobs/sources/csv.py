"""A CSV manifest: UTF-8, and a header with the columns in any order.

Commas, semicolons or tabs separate the columns: the most frequent of them in the header. The rows
of one path may stand anywhere in the file. A row with a path and no other field of the box
is an image without boxes.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from beam_jobs.sources.folder_view import MAX_CANDIDATES, FolderView, Question, SourceMatch
from beam_jobs.sources.parsing import decode_text
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.tables import ManifestReader, read_corners, recognise_tables
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import CsvSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

_MAX_TABLE_BYTES = 64 << 20
_IMAGE_COLUMNS = ("split", "group", "width", "height")


class _Row(NamedTuple):
    """One row: its fields by column, or its fault. A bad row may have no path."""

    line: int
    path: str = ""
    fields: Mapping[str, str] = {}
    fault: Reject | None = None


def read_entries(files: SourceFiles, source: CsvSource) -> Iterator[SourceEntry]:
    has_boxes = source.task == "detection"
    for name, part in source.list_parts().items():
        reader = ManifestReader(files, source, part)
        groups: dict[str | int, list[_Row]] = defaultdict(list)
        for row in _read_rows(files.read(part.manifest, name), part.manifest, source):
            groups[row.path if has_boxes and row.path else row.line].append(row)
        for rows in groups.values():
            first = rows[0]
            where = f"{part.manifest}:{first.line}"
            with files.entry(where, reader.find_key(first.path)):
                for row in rows:
                    if row.fault:
                        raise row.fault
                boxes = _parse_boxes(rows, reader) if has_boxes else None
                yield reader.make_entry(first.fields, boxes)


def find_delimiter(header: str) -> str:
    """The separator of columns: the most frequent one in the first line, and first the comma."""
    return max(",;\t", key=header.count)


def _read_rows(content: bytes, name: str, source: CsvSource) -> Iterator[_Row]:
    text = decode_text(content, "surrogateescape")
    delimiter = find_delimiter(text.partition("\n")[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header = _read_header(reader, name, source)
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
        path, fault = fields.get("path", ""), ""
        if len(values) != len(header):
            fault = f"line {line} has {len(values)} fields, and the header {len(header)}"
        elif not path:
            fault = f"line {line} has no path"
        if values:
            yield _Row(line, path, fields, Reject("malformed", fault) if fault else None)


def _read_header(reader: Iterator[list[str]], manifest: str, source: CsvSource) -> list[str]:
    """Our names of the columns, or theirs for columns that the source does not need."""
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        fault = f"not the header of a CSV file: {error}"
        raise DataError(f"{manifest}:1: {fault}. Correct the file.") from None
    needed = _list_columns(source)
    if missing := [name for name in needed if name not in header]:
        fault = f"the header lacks {', '.join(missing)}"
        need = f"For {source.task} it needs {','.join(needed)}, got {_shorten(','.join(header))}"
        cure = "Correct the file, or name its columns in preprocess.source.columns."
        raise DataError(f"{manifest}:1: {fault}. {need}. {cure}")
    if twice := sorted(n for n, count in Counter(header).items() if n and count > 1):
        names = ", ".join(map(_shorten, twice))
        raise DataError(
            f"{manifest}:1: the header has {names} more than once. Rename or remove the column."
        )
    ours = {name: column for column, name in source.columns.items()}
    hidden = source.columns.keys() - ours.keys()
    return ["" if name in hidden else ours.get(name, name) for name in header]


def _list_columns(source: CsvSource) -> list[str]:
    """The names of the columns that the source needs."""
    ours = ["path"]
    if source.task == "detection" and not source.corners:
        ours += ["boxes"] if "boxes" in source.columns else ["xmin", "ymin", "xmax", "ymax"]
    if not source.one_hot and source.single_class is None:
        ours.append("label")
    columns: dict[str, str] = dict(source.columns.items())
    theirs = [columns.get(name, name) for name in ours]
    return theirs + list(source.corners or source.one_hot or ())


def _shorten(header: str) -> str:
    return ascii(header)[1:-1][:200]


def _parse_boxes(rows: list[_Row], reader: ManifestReader) -> tuple[Box, ...]:
    first, boxes = rows[0], list[Box]()
    names = [name for name in _IMAGE_COLUMNS if name not in (reader.source.corners or ())]
    for row in rows:
        if differing := [name for name in names if row.fields.get(name) != first.fields.get(name)]:
            detail = f"lines {first.line} and {row.line} differ in {', '.join(differing)}"
            raise Reject("contradictory", detail)
        try:
            boxes += read_corners(reader, row.fields)
        except Reject as reject:
            raise Reject(reject.reason, f"line {row.line}: {reject.detail}") from None
    return tuple(boxes)


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
    """Finds CSV files with a column of images and one of classes, whatever their names are."""
    tables: list[tuple[RawFile, Sequence[str], list[dict[str, str]]]] = []
    for file in view.list_candidates(".csv", ".tsv")[:MAX_CANDIDATES]:
        try:
            tables.append((file, *_read_table(view, file)))
        except (csv.Error, ValueError) as error:
            yield f"{file.key} cannot be read: {error}"
    yield from recognise_tables("csv", view, tables)


def _read_table(view: FolderView, file: RawFile) -> tuple[Sequence[str], list[dict[str, str]]]:
    """The header and the rows of a CSV file, of a very large one the first."""
    content = view.read_start(file, _MAX_TABLE_BYTES)
    if file.num_bytes > len(content):
        content = content[: content.rfind(b"\n") + 1]
    text = decode_text(content, "surrogateescape")
    delimiter = find_delimiter(text.partition("\n")[0])
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    return reader.fieldnames, list(reader)
