"""Reads rows of Parquet files, in a folder or in a store, by the parts that hold them.

Of each row group, only the wanted columns are read, in blocks. pyarrow is imported where it is
needed, because other sources do without it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_BATCH_ROWS, _BLOCK_BYTES = 16, 4 << 20


class CorruptParquet(Exception):
    """A file, or a row group of it, that pyarrow cannot read."""


@contextlib.contextmanager
def open_parquet(file: io.BufferedReader) -> Iterator[ParquetFile]:
    """Opens a file for the block. pyarrow reads beneath the buffer, and so no byte too much.

    Raises CorruptParquet, also for damage that the block finds.
    """
    from pyarrow.parquet import ParquetFile

    with _translate_errors():
        yield ParquetFile(
            file.raw, buffer_size=_BLOCK_BYTES, pre_buffer=False, page_checksum_verification=True
        )


def iterate_rows(
    file: ParquetFile, group: int, columns: Sequence[str], wanted: Container[int] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the rows of a row group with their numbers in it, all or the wanted ones.

    Raises CorruptParquet.
    """
    start = 0
    with _translate_errors():
        for batch in file.iter_batches(_BATCH_ROWS, [group], list(columns), use_threads=False):
            numbers = range(start, start + batch.num_rows)
            chosen = [number for number in numbers if wanted is None or number in wanted]
            if chosen:
                rows = batch.take([number - start for number in chosen])
                yield from zip(chosen, rows.to_pylist(), strict=True)
            start += batch.num_rows


def read_rows(file: io.BufferedReader, column: str, rows: Iterable[int]) -> dict[int, bytes]:
    """The bytes in a column of bytes or of `{bytes, path}`, by row.

    Rows without bytes are missing, and so are the rows of a damaged file.
    """
    found: dict[int, bytes] = {}
    with contextlib.suppress(CorruptParquet), open_parquet(file) as parquet:
        first = 0
        for group in range(parquet.num_row_groups):
            num_rows = parquet.metadata.row_group(group).num_rows
            wanted = {row - first for row in rows if first <= row < first + num_rows}
            for number, fields in iterate_rows(parquet, group, [column], wanted) if wanted else ():
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
