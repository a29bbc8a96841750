"""Parquet files with one image per row: its bytes, Hugging Face's `{bytes, path}`, or its path.

The key of an image is its place, `<file>#<row>`, or its path if it is a file of its own.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beam_jobs.io import raw
from beam_jobs.sources.columns import Columns, find_field, list_names
from beam_jobs.sources.folder_view import FolderView, Question, SourceMatch, read_size
from beam_jobs.sources.packed import find_containers, list_parts, make_entry, make_keys
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, join_names
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.reading import suggest_name
from pipeline_ops.config.sources import ParquetSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import MAX_ENTRIES, MAX_ROW_GROUP_BYTES, TooLarge, check_limit
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_MAX_ROWS = 500
"""Number of rows that are looked at to recognise the columns."""


def read_entries(files: SourceFiles, source: ParquetSource) -> Iterator[SourceEntry]:
    folder, num_rows = files.listing.folder, 0
    for container, split in find_containers(source, files.listing):
        with raw.translate_read_errors(container.key), raw.open_raw(container, folder) as opened:
            try:
                with raw.open_parquet(opened) as file:
                    num_rows += _count_rows(file, container, f"{folder / container.key}")
                    cure = "Divide the data set."
                    check_limit(folder, "its files have", num_rows, MAX_ENTRIES, "rows", cure)
                    yield from _FileReader(file, container, source, files).read_entries(split)
            except raw.CorruptParquet as error:
                fault = f"not a Parquet file, or a damaged one: {error}. Write or copy it again"
                raise DataError(f"{folder / container.key}: {fault}.") from None


def _count_rows(file: ParquetFile, container: RawFile, path: str) -> int:
    """The rows of all row groups, as the file declares them. Raises TooLarge."""
    groups = map(file.metadata.row_group, range(file.num_row_groups))
    counts = [group.num_rows for group in groups]
    if min(counts, default=0) < 0:
        raise raw.CorruptParquet(f"a row group has {min(counts)} rows")
    fault = "Each image takes a byte or more, so it is damaged, or most rows have none"
    cure = f"{fault}. Write it again without those rows."
    check_limit(path, "has", sum(counts), container.num_bytes, "rows", cure)
    return sum(counts)


def _check_size(file: ParquetFile, group: int, path: str) -> None:
    """Raises TooLarge for a row group that does not fit into memory.

    All columns count, because pyarrow ends the process where it lists those of a damaged footer.
    """
    num_bytes = file.metadata.row_group(group).total_byte_size
    example = "row_group_size=100 of pyarrow.parquet.write_table"
    cure = f"Write the file with fewer rows per group ({example})."
    check_limit(path, f"row group {group} has", num_bytes, MAX_ROW_GROUP_BYTES, "bytes", cure)


class _FileReader:
    def __init__(
        self, file: ParquetFile, container: RawFile, source: ParquetSource, files: SourceFiles
    ):
        self._file, self._container, self._source, self._files = file, container, source, files
        self._rows = raw.ParquetRows(file, container.num_bytes)
        self._path = f"{files.listing.folder / container.key}"
        self._columns = list(dict.fromkeys(self._find_columns()))
        self._check_image_column()
        self._names = _read_class_names(file, source.label) or source.class_names

    def read_entries(self, split: str | None) -> Iterator[SourceEntry]:
        """The rows. If a row group is damaged, its unread rows are one reject."""
        source, files, first = self._source, self._files, 0
        for group in range(self._file.num_row_groups):
            _check_size(self._file, group, self._path)
            number, fault = -1, "it ends early"
            end = first + self._file.metadata.row_group(group).num_rows
            try:
                for number, fields in self._rows.iterate(group, self._columns):
                    row = first + number
                    where = self._describe_row(row)
                    with files.entry(where, key=where, scope=self._container.key):
                        image = self._make_image(find_field(fields, source.image), row)
                        yield make_entry(image, fields, source, split, self._names)
            except raw.CorruptParquet as error:
                fault = str(error)
            if (start := first + number + 1) < end:
                rows = f"the rows {start} to {end - 1} of row group {group} cannot be read"
                with files.entry(self._describe_row(start)):
                    raise Reject("corrupt", f"{rows}: {fault}. Write the file again")
            first = end

    def _describe_row(self, row: int) -> str:
        return f"{self._container.key}#{row:06d}"

    def _find_columns(self) -> Iterator[str]:
        """The columns to read. A field inside a column is read with the whole column."""
        source, known = self._source, self._file.schema_arrow.names
        needed = {"image": source.image, "split": source.split, "group": source.group}
        if source.task == "detection":
            needed |= {f"corners.{index}": name for index, name in enumerate(source.corners or ())}
            needed |= {} if source.corners else {"boxes.field": source.boxes.field}
        needed["label"] = source.label  # which boxes of their own labels do without
        for key, name in needed.items():
            if name is None:
                continue
            is_whole = key == "image" or name in known
            column = name if is_whole else name.partition(".")[0]
            if column in known:
                yield column
            elif key != "label" or source.task == "classification":
                fault = f"there is no column {column}; {suggest_name(column, known)}"
                raise DataError(f"{self._path}: {fault}. Correct preprocess.source.{key}.")

    def _check_image_column(self) -> None:
        kind = self._file.schema_arrow.field(self._columns[0]).type
        inner = {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}
        content = str(inner.get("bytes", kind))
        column = f"{self._path}: the column {self._source.image}"
        if content.endswith("string") and self._source.images is None:
            cure = "set preprocess.source.images to the folder at which they start."
            raise DataError(f"{column} holds text. If these are paths, {cure}")
        if not content.endswith(("binary", "string")):
            need = "and must hold bytes, {bytes, path}, or paths. Correct preprocess.source.image."
            raise DataError(f"{column} is of the type {kind}, {need}")

    def _make_image(self, value: Any, row: int) -> raw.Raw:
        if isinstance(content := raw.find_bytes(value), bytes):
            digest, key, column = compute_digest(content), self._describe_row(row), self._columns[0]
            return raw.PackedImage(key, len(content), digest, self._container, row, column)
        path = value.get("path") if isinstance(value, Mapping) else value
        if path is None or self._source.images is None:
            raise Reject("no_image", f"the column {self._source.image} holds no bytes")
        return self._files.find_image(path, self._source.images)


def _read_class_names(file: ParquetFile, label: str) -> Sequence[str] | None:
    """The names of a ClassLabel in the metadata that Hugging Face's `datasets` writes, or None."""
    try:
        feature = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
        for part in label.split("."):
            while part not in feature and "feature" in feature:  # of a list
                feature = feature["feature"]
            feature = feature[0][part] if isinstance(feature, list) else feature[part]
        while "feature" in feature:
            feature = feature["feature"]
        return [str(name) for name in feature["names"]]
    except (KeyError, TypeError, ValueError, IndexError, RecursionError):
        return None  # other tools have no such metadata


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
    """Finds Parquet files with a column of images. The first rows of the first file are read."""
    files = view.list_candidates(".parquet")
    if not any(start.startswith(b"PAR1") for _, start in view.iterate_starts(".parquet")):
        return
    try:
        with raw.open_raw(files[0], view.folder) as opened, raw.open_parquet(opened) as parquet:
            names = parquet.schema_arrow.names
            groups = range(parquet.num_row_groups)
            reader = raw.ParquetRows(parquet, files[0].num_bytes)

            def read_group(group: int) -> Iterator[tuple[int, dict[str, Any]]]:
                _check_size(parquet, group, files[0].key)
                return reader.iterate(group, names)

            every = (row for group in groups for _, row in read_group(group))
            rows = list(itertools.islice(every, _MAX_ROWS))
    except (raw.CorruptParquet, TooLarge, OSError) as error:
        yield f"{files[0].key}: {error}"
        return
    image, sizes = _find_image_column(view, rows)
    columns = [name for name in list_names(rows) if name.partition(".")[0] != image.get("image")]
    found = Columns(rows, columns, sizes, view.chosen, "label").find_meaning() if image else ""
    if isinstance(found, Question):
        yield found._replace(type="parquet", reason=f"{files[0].key}: {found.reason}")
    elif isinstance(found, str):
        missing = "labels or boxes" if image else "images"
        yield found or f"{files[0].key} has no known column with {missing}, but {join_names(names)}"
    else:
        kind = "boxes" if found.task == "detection" else "labels"
        reason = f"{count(len(files), 'Parquet file')} with {kind}"
        keys = {**make_keys(found), **list_parts(files), **image}
        keys = {name: value for name, value in keys.items() if (name, value) != ("image", "image")}
        yield SourceMatch("parquet", reason, keys, notes=found.notes)


def _find_image_column(
    view: FolderView, rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Size | None]]:
    """The keys `image` and `images`, and the images' sizes. Empty if no column has images."""
    paths: dict[str, list[Any]] = {}
    for name in rows[0] if rows else ():
        contents = [raw.find_bytes(row[name]) for row in rows]
        if any(isinstance(content, bytes) for content in contents):
            found = [isinstance(c, bytes) and read_size(io.BytesIO(c)) or None for c in contents]
            return {"image": name}, found
        values = [each.get("path") if isinstance(each, dict) else each for each in contents]
        paths[name] = [value for value in values if isinstance(value, str)]
    for name, given in paths.items():
        folder, number = view.find_images_folder(given, "")
        if number:
            sizes = [view.measure_image(str(row[name]), folder, is_by_name=False) for row in rows]
            return {"image": name, "images": folder}, sizes
    return {}, []
