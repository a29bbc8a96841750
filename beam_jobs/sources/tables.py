"""Shared parts of `csv` and `jsonl`: the entry of a row or a line, and the recognition.

A row names an image by its path, with its class or its boxes in columns that the config names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import beam_jobs.sources.parsing as parsing
from beam_jobs.sources.box_formats import to_corners
from beam_jobs.sources.columns import (
    Columns,
    Meaning,
    Row,
    find_field,
    is_missing,
    parse_numbers,
    read_columns,
)
from beam_jobs.sources.folder_view import FolderView, Question, SourceMatch
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, join_names, say_folder, unless
from beam_jobs.stages.boxes import FRACTIONS, Size
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
            return parsing.parse_text(fields.get("label"))
        found = [name for name in columns if parsing.parse_flag(fields.get(name), name)]
        if len(found) != 1:
            detail = f"one of the columns {join_names(columns)} must be 1, got "
            reason = "contradictory" if found else "no_label"
            raise Reject(reason, detail + (join_names(found) or "none"))
        return found[0]

    def read_boxes(self, fields: Row) -> list[Box]:
        """The boxes of a row or of a line: of its columns of corners, or of its column `boxes`."""
        source = self.source
        if source.corners:
            numbers: Any = read_columns(fields, source.corners)
        else:
            value = fields.get("boxes")
            if isinstance(value, list) and not all(isinstance(each, list) for each in value):
                return list(map(parsing.parse_box, value))
            if (numbers := parse_numbers(value)) is None:
                raise Reject("malformed", f"boxes: {str(value):.80} must be lists of four numbers")
        labels = source.single_class or fields.get("label")
        labels = labels if isinstance(labels, list) else [labels] * len(numbers)
        if len(labels) != len(numbers):
            raise Reject("malformed", f"{len(numbers)} boxes have {len(labels)} labels")
        return [
            parsing.make_box(to_corners(box, source.box_format), label)
            for box, label in zip(numbers, labels, strict=True)
        ]


class Table(NamedTuple):
    """A file whose rows or lines name images in the column `path`, of which some may be found.

    `images` is the folder at which the paths start, if the images are found by their paths.
    """

    file: RawFile
    header: Sequence[str]
    rows: Sequence[Row]
    path: str
    images: str = "."
    find_by: str = "path"
    num_found: int = 0

    @property
    def names(self) -> list[str]:
        return [name for name in self.header if name and name != self.path]

    def rank(self) -> tuple[Any, ...]:
        """Orders columns of paths. A row's number may be the name of an image by chance."""
        values = [str(row.get(self.path)) for row in self.rows[:_MAX_LOOKED_UP]]
        is_found, num_images = self.num_found > 0, sum(map(parsing.is_image_name, values))
        has_suffix = is_found and num_images > len(values) / 2
        return is_found, has_suffix, self.path.lower() in _PATHS, self.num_found


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
        key, meaning = tables[0].file.key, _judge_tables(view, tables)
        if isinstance(meaning, Meaning):
            yield from _match_parts(kind, view, tables, meaning)
        elif isinstance(meaning, Question):
            yield meaning._replace(type=kind, reason=f"{key}: {meaning.reason}")
        elif meaning:
            yield f"{key}: {meaning}"


def _match_parts(
    kind: str, view: FolderView, tables: Sequence[Table], meaning: Meaning
) -> Iterator[SourceMatch]:
    splits = [(table, parsing.find_split_of_path(table.file.key)) for table in tables]
    parts = [(table, split) for table, split in splits if split]
    rest = [table for table, split in splits if not split]
    names, total = [split for _, split in parts], sum(len(table.rows) for table, _ in parts)
    is_divided = "train" in names and 1 < len(names) == len({*names})
    if is_divided and all(len(table.rows) == total for table in rest):
        match = _match_tables(kind, view, parts, meaning)
        remarks = [f"{rest[0].file.key} is all of them"] if rest else []
        yield match._replace(notes=[*match.notes, *remarks])
    else:
        yield from (_match_tables(kind, view, [(table, None)], meaning) for table in tables)


def _find_images(
    view: FolderView, file: RawFile, header: Sequence[str], rows: Sequence[Row]
) -> Table | str | None:
    """Returns the table, the reason why its images cannot be used, or None for another file."""
    if any(parsing.is_image_name(name) and view.count_images_named([name]) for name in header):
        line = _guess_header(header)
        return f"{file.key} has no header: its first line names an image. Add the line {line}"
    usual = next((name for name in header if name.lower() in _PATHS), "")
    tables = [Table(file, header, rows, usual)]
    for name in header:
        values = [v for row in rows[:_MAX_LOOKED_UP] if isinstance(v := row.get(name), str) and v]
        folder, number = view.find_images_folder(values, file.key)
        tables.append(Table(file, header, rows, name, folder, "path", number))
        number = view.count_images_named(values)
        tables.append(Table(file, header, rows, name, ".", "name", number))
    best = max(tables, key=Table.rank)
    if best.num_found:
        return best
    columns = Columns(rows, best.names, [None] * len(rows), view.chosen, "columns.label")
    is_table = usual and isinstance(columns.find_meaning(), Meaning)
    first = next((row[usual] for row in rows if is_table and row.get(usual)), "")
    return first and (
        f"{file.key} names images and classes, but none of its images ({first}) is below this "
        "folder. Correct the paths, or name the folder that holds both"
    )


def _judge_tables(view: FolderView, tables: Sequence[Table]) -> Meaning | Question | str:
    """Finds the meaning of the columns that these tables share."""
    rows = [row for table in tables for row in table.rows]
    sizes = [size for table in tables for size in _measure(view, table)]
    names, path = tables[0].names, tables[0].path
    meaning = Columns(rows, names, sizes, view.chosen, "columns.label").find_meaning()
    if meaning == "" and names:
        choices = [{"columns.label": name} for name in names[:5]]
        text = f"which of its columns {join_names(names)} has the classes is not clear"
        return Question(text, choices)
    if isinstance(meaning, Meaning) and meaning.task == "classification" and meaning.label:
        label = meaning.label
        pairs = {(row.get(path), str(find_field(row, label))) for row in rows}
        images = Counter(image for image, _ in pairs)
        if several := sum(number > 1 for number in images.values()):
            return (
                f"{several:,} of {len(images):,} images have several classes in the column {label}:"
                " multi-label classification is not supported. If its rows are boxes, name the "
                "columns: --source task=detection --source corners=[...]"
            )
    return meaning


def _guess_header(first: Sequence[str]) -> str:
    """The header for a table that has none, by its first line."""
    names = {index: "path" for index, cell in enumerate(first) if parsing.is_image_name(cell)}
    is_number = [cell.replace(".", "", 1).lstrip("-").isdigit() for cell in first]
    numbers = [index for index, is_one in enumerate(is_number) if is_one]
    if len(numbers) in (4, 6):
        usual = ("xmin", "ymin", "xmax", "ymax", "width", "height")
        names |= zip(numbers, usual, strict=False)
    rest = [index for index in range(len(first)) if index not in names]
    texts = [index for index in rest if not is_number[index]]
    splits = [index for index in texts if parsing.find_split(first[index])]
    names |= dict.fromkeys(splits[:1], "split")  # Google's AutoML begins with it
    for index in [index for index in (*texts, *rest) if index not in names][:1]:
        names[index] = "label"
    return ",".join(names.get(index, f"column_{index}") for index in range(len(first)))


def _measure(view: FolderView, table: Table) -> list[Size | None]:
    """The sizes of the rows' images, of the first images that are found."""
    sizes: dict[Any, Size | None] = {}
    for row in table.rows:
        name = row.get(table.path)
        if name not in sizes and len(sizes) < _MAX_MEASURED and isinstance(name, str):
            sizes[name] = view.measure_image(name, table.images, table.find_by == "name")
    return [sizes.get(row.get(table.path)) for row in table.rows]


def _match_tables(
    kind: str, view: FolderView, parts: Sequence[tuple[Table, str | None]], meaning: Meaning
) -> SourceMatch:
    first, corners = parts[0][0], meaning.corners
    columns = {"path": first.path, "label": meaning.label, **meaning.others, "boxes": meaning.boxes}
    if meaning.box_format == "xyxy" and corners and "corners" not in view.chosen:
        columns |= zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
        meaning = meaning._replace(corners=())
    columns = {ours: theirs for ours, theirs in columns.items() if theirs and ours != theirs}
    places: list[dict[str, Any]] = [
        {"manifest": t.file.key, **unless("images", t.images, "."), **unless("split", split, None)}
        for t, split in parts
    ]
    keys: dict[str, Any] = places[0] if len(places) == 1 else {"parts": places}
    keys |= meaning.make_keys("task") | unless("columns", columns, {})
    keys |= unless("find_by", first.find_by, "path")
    keys |= meaning.make_keys("corners", "box_format", "units", "one_hot", "single_class")
    noun = "boxes" if meaning.task == "detection" else "labels"
    reason = "; ".join(
        f"{table.file.key} names images{say_folder(table.images)} with {noun}"
        f"{' by their file names' if table.find_by == 'name' else ''} "
        f"({table.num_found:,} of the first {count(len(table.rows[:_MAX_LOOKED_UP]), 'row')} "
        "looked up were found)"
        for table, _ in parts
    )
    # A table with the columns of another tool may be a copy of the XML files beside it.
    is_copy = bool(columns and view.list_candidates(".xml"))
    return SourceMatch(kind, reason, keys, is_certain=not is_copy, notes=meaning.notes)


def read_corners(reader: ManifestReader, fields: Row) -> list[Box]:
    """The boxes of a row of a CSV file with the usual columns, of which all may be empty."""
    if reader.source.corners or "boxes" in reader.source.columns:
        return reader.read_boxes(fields)
    if all(is_missing(fields.get(name)) for name in (*parsing.CORNERS, "label")):
        return []
    single = reader.source.single_class
    return [parsing.parse_box({**fields, "label": single} if single else fields)]
