"""Finds and reads the image bytes of a record.

The bytes are a file of their own, an object in a store, or a part of a file with many images. A
plan holds the places, which are small, instead of images. The worker that builds a shard reads the
bytes. `beam_jobs/output/shard.py` calls this module, and so do others that need single records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from beam_jobs.io.arrays import UnreadableArray, open_array, to_pixels
from beam_jobs.io.example import encode_png
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.limits import (
    MAX_BATCH_VALUES,
    MAX_ROW_GROUP_BYTES,
    MAX_VALUES_PER_BYTE,
    MIN_VALUES,
)
from pipeline_ops.raw_data.listing import RawFolder
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest, to_file_version
from pipeline_ops.raw_data.remote import RemoteFolder, make_change_error

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


@dataclasses.dataclass(frozen=True, slots=True)
class PackedImage:
    """An image inside a file with many images, the `container`.

    `num_bytes` and `digest` are the image's own, like a RawFile's. `offset` is the image's first
    byte in the file, or, if `column` names a column of a Parquet file, the image's row. If `scale`
    is set, `column` is an array of NumPy, whose values times `scale` are the pixels. The size and
    the digest are those of the pixels then, and the image is read as a PNG.
    """

    key: str
    num_bytes: int
    digest: int
    container: RawFile
    offset: int
    column: str = ""
    scale: float = 0

    def check(self, image: bytes | None) -> bytes:
        """Returns the image. Raises MachineError: it is not the one that the driver saw."""
        if image is None or compute_digest(image) != self.digest:
            raise make_change_error(self.key)
        return image


Raw = RawFile | PackedImage
_FETCH_LIMITS, _ROW_LIMITS = (32, 16e6), (None, 128e6)
"""Numbers of images and of their bytes that a worker reads ahead: from a store, and from Parquet
files and arrays. The first one that is reached counts."""


def find_raw_file(raw: Raw) -> RawFile:
    """The file below the source's folder that holds the image."""
    return raw.container if isinstance(raw, PackedImage) else raw


def read_raw(raw: Raw, folder: RawFolder) -> bytes:
    """The bytes of an image. Raises MachineError: they cannot be read, or have changed."""
    if isinstance(folder, RemoteFolder) or _is_row(raw):
        return _fetch([raw], folder)[raw.key]
    with translate_read_errors(raw.key):
        if isinstance(raw, RawFile):
            return _read_file(raw, folder)
        with open(raw.container.to_path(folder), "rb", buffering=0) as file:
            return raw.check(os.pread(file.fileno(), raw.num_bytes, raw.offset))


@contextlib.contextmanager
def translate_read_errors(key: str) -> Iterator[None]:
    """Raises MachineError for an OSError in the block, which reads a file that was listed."""
    try:
        yield
    except OSError as error:
        fault = f"cannot read {key}: {error.strerror}. It was there when the run started"
        raise MachineError(fault, "Retry.") from error


def read_beginning(file: RawFile, folder: RawFolder, num_bytes: int) -> bytes:
    """The first `num_bytes` of a file."""
    if isinstance(folder, RemoteFolder):
        [content] = folder.read_parts([(file, 0, min(num_bytes, file.num_bytes))])
        return content
    with translate_read_errors(file.key), open(file.to_path(folder), "rb") as opened:
        return opened.read(num_bytes)


def open_raw(file: RawFile, folder: RawFolder) -> io.BufferedReader:
    """Opens a file of many images. In a store, every read of its `raw` is a request."""
    if isinstance(folder, RemoteFolder):
        return folder.open(file)
    return open(file.to_path(folder), "rb")


class RawReader:
    """Reads records one after another, in the order of `raws`. Some records may be left out.

    Records in an object store are fetched a few ahead, or a worker would always wait for the
    network. So are rows of Parquet files: the smallest part that can be read is a row group.
    """

    def __init__(self, raws: Iterable[Raw], folder: RawFolder):
        self._folder, self._upcoming = folder, iter(raws)
        self._fetched: dict[str, bytes] = {}

    def read(self, raw: Raw) -> bytes:
        """Reads a record as `read_raw` does."""
        if isinstance(self._folder, Path) and not _is_row(raw):
            return read_raw(raw, self._folder)
        limits = _ROW_LIMITS if _is_row(raw) else _FETCH_LIMITS
        while raw.key not in self._fetched:
            if not (following := self._take_next(*limits)):
                raise LookupError(f"{raw.key} is not one of the records that follow")
            self._fetched = _fetch(following, self._folder)
        return self._fetched.pop(raw.key)

    def _take_next(self, max_files: int | None, max_bytes: float) -> list[Raw]:
        raws, num_bytes = list[Raw](), 0
        for raw in itertools.islice(self._upcoming, max_files):
            raws.append(raw)
            num_bytes += raw.num_bytes
            if num_bytes >= max_bytes:
                break
        return raws


def _is_row(raw: Raw) -> bool:
    return isinstance(raw, PackedImage) and raw.column != ""


def _fetch(raws: Sequence[Raw], folder: RawFolder) -> dict[str, bytes]:
    """Rows of Parquet files, and in a store also objects and parts of them, by key."""
    files = [raw for raw in raws if isinstance(raw, RawFile)]
    packed = [raw for raw in raws if isinstance(raw, PackedImage)]
    found = _read_rows([raw for raw in packed if raw.column], folder)
    if isinstance(folder, RemoteFolder):
        parts = [raw for raw in packed if not raw.column]
        images = folder.read_parts([(raw.container, raw.offset, raw.num_bytes) for raw in parts])
        found |= {raw.key: raw.check(image) for raw, image in zip(parts, images, strict=True)}
        found |= {raw.key: content for raw, content in zip(files, folder.read(files), strict=True)}
    return found


def _read_rows(raws: Iterable[PackedImage], folder: RawFolder) -> dict[str, bytes]:
    """Images in Parquet files and arrays, by key. Each part of a file is read once, in order."""
    groups: dict[tuple[RawFile, str, float], list[PackedImage]] = defaultdict(list)
    for raw in raws:
        groups[raw.container, raw.column, raw.scale].append(raw)
    found: dict[str, bytes] = {}
    for (container, column, scale), members in groups.items():
        with translate_read_errors(container.key), open_raw(container, folder) as file:
            if scale:
                found |= dict(_read_array_rows(file, column, scale, members))
                continue
            rows = read_rows(file, column, [raw.offset for raw in members])
        found |= {raw.key: raw.check(rows.pop(raw.offset, None)) for raw in members}
    return found


def _read_array_rows(
    file: BinaryIO, name: str, scale: float, raws: Iterable[PackedImage]
) -> Iterator[tuple[str, bytes]]:
    """The keys and PNGs of images in an array. Raises MachineError: the array has changed."""
    try:
        with open_array(file, name) as array:
            for raw in sorted(raws, key=attrgetter("offset")):
                pixels = to_pixels(array.read(raw.offset, 1), scale)[0]
                raw.check(pixels.tobytes())
                yield raw.key, encode_png(pixels)
    except UnreadableArray:
        raise make_change_error(name) from None


def _read_file(raw: RawFile, folder: Path) -> bytes:
    """Checks the state after the read: a write since the listing has changed the ctime by then."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block
    descriptor = os.open(raw.to_path(folder), flags)
    try:
        content = os.read(descriptor, raw.num_bytes)
        while len(content) < raw.num_bytes and (
            more := os.read(descriptor, raw.num_bytes - len(content))
        ):  # beyond 2 GB
            content += more
        stat = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    is_whole = stat.st_size == len(content) == raw.num_bytes
    if is_whole and (to_file_version(stat) == raw.version or raw.has_content(content)):
        return content
    raise make_change_error(raw.key)


_BATCH_ROWS, _BLOCK_BYTES = 16, 4 << 20


class CorruptParquet(Exception):
    """A file, or a row group of it, that pyarrow cannot read, or whose rows cost too much."""


@contextlib.contextmanager
def open_parquet(file: io.BufferedReader) -> Iterator[ParquetFile]:
    """Opens a file for a block, which raises CorruptParquet. No byte too much is read."""
    from pyarrow.parquet import ParquetFile

    with _translate_errors():
        yield ParquetFile(
            file.raw, buffer_size=_BLOCK_BYTES, pre_buffer=False, page_checksum_verification=True
        )


class ParquetRows:
    """The rows of a file of `num_bytes`.

    They are counted as they are in memory, because the sizes in the file may be wrong, many rows
    may share one value of a dictionary, and equal values of lists take next to no bytes in a file.
    """

    def __init__(self, file: ParquetFile, num_bytes: int):
        self._file, self._num_values = file, 0
        self._max_values = max(MIN_VALUES, MAX_VALUES_PER_BYTE * num_bytes)

    def iterate(
        self, group: int, columns: Sequence[str], wanted: Container[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the wanted rows of a group with their numbers in it. Raises CorruptParquet."""
        start = num_bytes = 0
        with _translate_errors():
            for batch in self._file.iter_batches(
                _BATCH_ROWS, [group], list(columns), use_threads=False
            ):
                num_bytes += sum(map(_measure, batch.columns))
                if num_bytes > MAX_ROW_GROUP_BYTES:
                    raise CorruptParquet(f"its rows have more than {MAX_ROW_GROUP_BYTES} bytes")
                self._count(batch)
                numbers = range(start, start + batch.num_rows)
                chosen = [number for number in numbers if wanted is None or number in wanted]
                if chosen:
                    rows = batch.take([number - start for number in chosen])
                    yield from zip(chosen, rows.to_pylist(), strict=True)
                start += batch.num_rows

    def _count(self, batch: Any) -> None:
        """Counts the values in the lists of a few rows."""
        num_values = sum(map(_count_list_values, batch.columns))
        self._num_values += num_values
        for number, limit, place in (
            (num_values, MAX_BATCH_VALUES, f"{batch.num_rows} rows"),
            (self._num_values, self._max_values, "the rows so far"),
        ):
            if number > limit:
                raise CorruptParquet(
                    f"the lists of {place} have {number} values, allowed are {limit}"
                )


def _count_list_values(column: Any) -> int:
    """The number of values in the lists of a column, which may lie in other lists or fields."""
    import pyarrow.types as types

    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_map)
    if types.is_struct(column.type):
        return sum(map(_count_list_values, column.flatten()))
    if any(is_kind(column.type) for is_kind in kinds):
        values = column.flatten()
        return len(values) + _count_list_values(values)
    return 0


def _measure(column: Any) -> int:
    """The bytes of a column. Its rows may be indices of a dictionary, as of pandas' categories."""
    decode = getattr(column, "dictionary_decode", None)
    return decode().nbytes if decode else column.nbytes


def read_rows(file: io.BufferedReader, column: str, rows: Iterable[int]) -> dict[int, bytes]:
    """The images in a column, by row. Those without bytes or in a damaged file are missing."""
    found: dict[int, bytes] = {}
    with contextlib.suppress(CorruptParquet), open_parquet(file) as parquet:
        first, reader = 0, ParquetRows(parquet, 0)
        for group in range(parquet.num_row_groups):
            num_rows = parquet.metadata.row_group(group).num_rows
            wanted = {row - first for row in rows if first <= row < first + num_rows}
            for number, fields in reader.iterate(group, [column], wanted) if wanted else ():
                if isinstance(image := find_bytes(fields.get(column)), bytes):
                    found[first + number] = image
                if number == max(wanted):
                    break
            first += num_rows
    return found


def find_bytes(value: Any) -> Any:
    """The bytes of an image in a column of bytes or of `{bytes, path}`."""
    return value.get("bytes") if isinstance(value, dict) else value


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None):  # the disk, and not the content
            raise
        raise CorruptParquet(" ".join(str(error).split())[:200]) from None
