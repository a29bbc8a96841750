"""Shared parts of `csv` and `jsonl`: the entry of a row or a line, and the recognition.

A row names an image by its path, with its class or its boxes in columns that the config names.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from beam_jobs.sources.box_formats import to_corners
from beam_jobs.sources.columns import (
    Meaning,
    Row,
    find_field,
    find_meaning,
    find_multi_label,
    parse_numbers,
)
from beam_jobs.sources.folder_view import (
    FolderView,
    Question,
    SourceMatch,
    count,
    get_task,
    join_names,
    say_folder,
    unless,
)
from beam_jobs.sources.parsing import (
    CORNERS,
    find_split,
    find_split_of_path,
    is_image_name,
    make_box,
    parse_box,
    parse_flag,
    parse_text,
)
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.boxes import FRACTIONS
from beam_jobs.stages.stage import Box, Reject
from pipeline_ops.config.sources import ManifestPart, ManifestSource
from pipeline_ops.raw_data.raw_file import RawFile

_PATHS = ("path", "filename", "file_name", "file", "image", "image_path", "image_id", "imageid")
"""The usual names of the column with the images, for a message."""
_MAX_LOOKED_UP = 200
"""Number of rows whose images are looked up."""
_MAX_MEASURED = 1000
"""Number of images whose sizes are read, to check boxes against them."""


@dataclasses.dataclass(frozen=True)
class ManifestReader:
    """Makes the entries of the rows of `csv`, or of the lines of `jsonl`."""

    files: SourceFiles
    source: ManifestSource
    part: ManifestPart

    def find_key(self, path: Any) -> str | None:
        """The key of the image with this path, or None for what cannot be a path."""
        if self.source.find_by == "path":
            return self.files.find_key(path, self.part.images)
        try:
            return self.files.find_image_by_name(path, self.part.images).key
        except Reject:
            return None

    def make_entry(self, fields: Row, boxes: Sequence[Box] | None) -> SourceEntry:
        """Makes the entry of an image. `boxes` is None for classification."""
        label = self._read_label(fields) if boxes is None else None
        path: Any = fields.get("path")
        if self.source.find_by == "name":
            path = self.files.find_image_by_name(path, self.part.images)
        taken = self.source.corners or ()
        size = [None if name in taken else fields.get(name) for name in ("height", "width")]
        return SourceEntry(
            path,
            label,
            boxes,
            fields.get("split") or self.part.split,
            fields.get("group"),
            frame=FRACTIONS if self.source.units == "fractions" else (size[0], size[1]),
            folder=self.part.images,
        )

    def _read_label(self, fields: Row) -> str:
        if not (columns := self.source.one_hot):
            return parse_text(fields.get("label"))
        found = [name for name in columns if parse_flag(fields.get(name), name)]
        if len(found) != 1:
            reason, several = (
                ("contradictory", join_names(found)) if found else ("no_label", "none")
            )
            raise Reject(
                reason, f"one of the columns {join_names(columns)} must be 1, got {several}"
            )
        return found[0]

    def read_boxes(self, fields: Row) -> list[Box]:
        """The boxes of a row or of a line: of its columns of corners, or of its column `boxes`."""
        source = self.source
        if source.corners:
            columns = [find_field(fields, name) for name in source.corners]
            if all(value in (None, "") or str(value).lower() == "nan" for value in columns):
                return []
            is_list = isinstance(columns[0], list)
            numbers: Any = list(zip(*columns, strict=True)) if is_list else [columns]
        else:
            value = fields.get("boxes")
            if isinstance(value, list) and not all(isinstance(each, list) for each in value):
                return list(map(parse_box, value))
            if (numbers := parse_numbers(value)) is None:
                raise Reject("malformed", f"boxes: {str(value):.80} must be lists of four numbers")
        labels = source.single_class or fields.get("label")
        labels = labels if isinstance(labels, list) else [labels] * len(numbers)
        if len(labels) != len(numbers):
            raise Reject("malformed", f"{len(numbers)} boxes have {len(labels)} labels")
        return [
            make_box(to_corners(list(box), source.box_format), label)
            for box, label in zip(numbers, labels, strict=True)
        ]


class Table(NamedTuple):
    """A file whose rows or lines name images in the column `path`, of which some were found.

    `sizes` are those of the rows' images, as far as they were read.
    """

    file: RawFile
    path: str
    names: Sequence[str]
    rows: Sequence[Row]
    sizes: Sequence[Any]
    images: str
    find_by: str
    num_found: int


def recognise_tables(
    kind: str, view: FolderView, files: Iterable[tuple[RawFile, Sequence[str], Sequence[Row]]]
) -> Iterator[SourceMatch | Question | str]:
    """Yields the matches of files with a header and rows.

    Files with equal columns are judged together. Those of the splits are one match, also beside a
    file that is their whole, with as many rows as they have.
    """
    groups: dict[Any, list[Table]] = defaultdict(list)
    for file, header, rows in files:
        found = _find_images(view, file, header, rows)
        if isinstance(found, Table):
            groups[found.path, *found.names].append(found)
        elif found:
            yield found
    for tables in groups.values():
        meaning = _judge_tables(view, tables)
        if isinstance(meaning, Meaning):
            yield from _match_parts(kind, view, tables, meaning)
        elif isinstance(meaning, Question):
            yield meaning._replace(type=kind, reason=f"{tables[0].file.key}: {meaning.reason}")
        elif meaning:
            yield f"{tables[0].file.key}: {meaning}"


def _match_parts(
    kind: str, view: FolderView, tables: Sequence[Table], meaning: Meaning
) -> Iterator[SourceMatch]:
    splits = {table.file.key: find_split_of_path(table.file.key) for table in tables}
    parts = [table for table in tables if splits[table.file.key]]
    names = [splits[table.file.key] for table in parts]
    rest = [table for table in tables if table not in parts]
    is_divided = "train" in names and 1 < len(names) == len({*names})
    total = sum(len(table.rows) for table in parts)
    if is_divided and all(len(table.rows) == total for table in rest):
        remark = f"{rest[0].file.key} is all of them" if rest else ""
        yield _match_tables(kind, view, parts, names, meaning, remark)
    else:
        for table in tables:
            yield _match_tables(kind, view, [table], [None], meaning)


def _find_images(
    view: FolderView, file: RawFile, header: Sequence[str], rows: Sequence[Row]
) -> Table | str | None:
    """Returns the table, the reason why its images cannot be used, or None for another file."""
    if any(is_image_name(name) and view.count_images_named([name]) for name in header):
        return f"{file.key} has no header: its first line names an image. Add the line " + (
            _guess_header(header)
        )
    usual = next((name for name in header if name.lower() in _PATHS), "")
    best = (usual, ".", "path", 0)
    for name in header:
        values = [v for row in rows[:_MAX_LOOKED_UP] if isinstance(v := row.get(name), str) and v]
        folder, number = view.find_images_folder(values, file.key)
        by_name = view.count_images_named(values)
        best = max(best, (name, folder, "path", number), key=_rank_path(rows))
        best = max(best, (name, ".", "name", by_name), key=_rank_path(rows))
    path, images, find_by, found = best
    names = [name for name in header if name and name != path]
    if found:
        sizes = _measure(view, rows, path, find_by, images)
        return Table(file, path, names, rows, sizes, images, find_by, found)
    is_table = usual and isinstance(
        find_meaning(rows, names, [None] * len(rows), view.chosen, "columns.label"), Meaning
    )
    first = next((row[usual] for row in rows if is_table and row.get(usual)), "")
    return first and (
        f"{file.key} names images and classes, but none of its images ({first}) is below this "
        "folder. Correct the paths, or name the folder that holds both"
    )


def _rank_path(rows: Sequence[Row]) -> Callable[[tuple[str, str, str, int]], tuple[Any, ...]]:
    """Orders columns of paths. A row's number may be the name of an image by chance."""

    def rank(candidate: tuple[str, str, str, int]) -> tuple[Any, ...]:
        name, _, _, number = candidate
        values = [str(row.get(name)) for row in rows[:_MAX_LOOKED_UP]]
        has_suffix = sum(map(is_image_name, values)) > len(values) / 2
        return number > 0, number > 0 and has_suffix, name.lower() in _PATHS, number

    return rank


def _judge_tables(view: FolderView, tables: Sequence[Table]) -> Meaning | Question | str:
    """Finds the meaning of the columns that these tables share."""
    first, rows = tables[0], [row for table in tables for row in table.rows]
    sizes = [size for table in tables for size in table.sizes]
    meaning = find_meaning(rows, first.names, sizes, view.chosen, "columns.label")
    if meaning == "" and first.names:
        choices = [{"columns.label": name} for name in first.names[:5]]
        text = f"which of its columns {join_names(first.names)} has the classes is not clear"
        return Question(text, choices)
    if isinstance(meaning, Meaning) and meaning.task == "classification" and meaning.label:
        return find_multi_label(rows, first.path, meaning.label) or meaning
    return meaning


def _guess_header(first: Sequence[str]) -> str:
    """The header for a table that has none, by its first line."""
    is_number = [cell.replace(".", "", 1).lstrip("-").isdigit() for cell in first]
    names = ["path" if is_image_name(cell) else "" for cell in first]
    numbers = [index for index, is_one in enumerate(is_number) if is_one]
    rest = [i for i, name in enumerate(names) if not name and not is_number[i]]
    if len(numbers) in (4, 6):
        usual = ("xmin", "ymin", "xmax", "ymax", "width", "height")
        for index, name in zip(numbers, usual, strict=False):
            names[index] = name
    for index in [i for i in rest if find_split(first[i])][:1]:  # Google's AutoML begins with it
        names[index] = "split"
        rest.remove(index)
    for index in rest[:1] or [i for i, name in enumerate(names) if not name][:1]:
        names[index] = "label"
    return ",".join(name or f"column_{index}" for index, name in enumerate(names))


def _measure(
    view: FolderView, rows: Sequence[Row], path: str, find_by: str, images: str
) -> list[Any]:
    """The sizes of the rows' images, of the first images that are found."""
    sizes: dict[Any, Any] = {}
    for row in rows:
        name = row.get(path)
        if name not in sizes and len(sizes) < _MAX_MEASURED and isinstance(name, str):
            sizes[name] = view.measure_image(name, images, find_by == "name")
    return [sizes.get(row.get(path)) for row in rows]


def _match_tables(
    kind: str,
    view: FolderView,
    tables: Sequence[Table],
    splits: Sequence[str | None],
    meaning: Meaning,
    remark: str = "",
) -> SourceMatch:
    first = tables[0]
    columns = {"path": first.path, "label": meaning.label, **meaning.others}
    if meaning.boxes:
        columns["boxes"] = meaning.boxes
    has_boxes = meaning.task == "detection"
    corners = list(meaning.corners)
    if meaning.box_format == "xyxy" and corners:
        columns |= dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
        corners = []
    columns = {ours: theirs for ours, theirs in columns.items() if theirs and ours != theirs}
    parts: list[dict[str, Any]] = [
        {"manifest": table.file.key}
        | unless("images", table.images, ".")
        | unless("split", split, None)
        for table, split in zip(tables, splits, strict=True)
    ]
    keys: dict[str, Any] = parts[0] if len(parts) == 1 else {"parts": parts}
    keys |= get_task(has_boxes) | unless("columns", columns, {})
    keys |= unless("find_by", first.find_by, "path")
    keys |= unless("corners", corners, []) | unless("box_format", meaning.box_format, "xyxy")
    keys |= unless("units", meaning.units, "pixels")
    keys |= unless("one_hot", list(meaning.one_hot), [])
    keys |= unless("single_class", meaning.single_class, "")
    noun = "boxes" if has_boxes else "labels"
    reason = "; ".join(
        f"{table.file.key} names images{say_folder(table.images)} with {noun}"
        f"{' by their file names' if table.find_by == 'name' else ''} "
        f"({table.num_found:,} of the first {count(min(len(table.rows), _MAX_LOOKED_UP), 'row')} "
        "looked up were found)"
        for table in tables
    )
    notes = [*meaning.notes, *([remark] if remark else [])]
    # A table with the columns of another tool may be a copy of the XML files beside it.
    is_copy = bool(columns and view.list_candidates(".xml"))
    return SourceMatch(kind, reason, keys, is_certain=not is_copy, notes=notes)


def read_corners(reader: ManifestReader, fields: Row) -> list[Box]:
    """The boxes of a row of a CSV file with the usual columns, of which all may be empty."""
    if reader.source.corners or "boxes" in reader.source.columns:
        return reader.read_boxes(fields)
    if not any(fields.get(name) for name in (*CORNERS, "label")):
        return []
    single = reader.source.single_class
    return [parse_box({**fields, "label": single} if single else fields)]
