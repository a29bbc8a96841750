"""Reads rows of Parquet files, with at most one row group of compressed bytes in memory.

pyarrow is imported where it is needed, because other sources do without it.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_BATCH_ROWS, _BUFFER_BYTES = 16, 1 << 20


class CorruptParquet(Exception):
    """A file, or a row group of it, that pyarrow cannot read."""


@contextlib.contextmanager
def open_parquet(path: bytes) -> Iterator[ParquetFile]:
    """Opens a file.

    Raises:
      CorruptParquet: it is no Parquet file.
      OSError: the file cannot be read.
    """
    from pyarrow.parquet import ParquetFile

    with open(path, "rb") as file:
        with _translate_errors():
            opened = ParquetFile(
                file, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            )
        yield opened


def iterate_rows(file: ParquetFile, group: int, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a row group. Raises CorruptParquet."""
    with _translate_errors():
        for batch in file.iter_batches(_BATCH_ROWS, [group], list(columns), use_threads=False):
            yield from batch.to_pylist()


def read_rows(path: bytes, column: str, rows: Sequence[int]) -> dict[int, bytes]:
    """The bytes in a column such as `image` or `image.bytes`, by row.

    Rows without bytes are missing, and so are the rows of a damaged file.

    Raises OSError: the file cannot be read.
    """
    found: dict[int, bytes] = {}
    with contextlib.suppress(CorruptParquet), open_parquet(path) as file:
        counts = (file.metadata.row_group(g).num_rows for g in range(file.num_row_groups))
        starts = list(itertools.accumulate(counts, initial=0))
        by_group: dict[int, set[int]] = defaultdict(set)
        for row in rows:
            by_group[bisect.bisect_right(starts, row) - 1].add(row)
        for group, wanted in sorted(by_group.items()):
            if group >= file.num_row_groups:
                continue
            found |= _read_group(file, group, column, starts[group], wanted)
    return found


def _read_group(
    file: ParquetFile, group: int, column: str, start: int, wanted: set[int]
) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    with _translate_errors():
        for batch in file.iter_batches(_BATCH_ROWS, [group], [column], use_threads=False):
            values = batch.column(0) if batch.num_columns else ()
            for row in wanted.intersection(range(start, start + len(values))):
                value = values[row - start].as_py()
                image = value.get("bytes") if isinstance(value, dict) else value
                if isinstance(image, bytes):
                    found[row] = image
            start += len(values)
            if start > max(wanted):
                break
    return found


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # the disk, and not the content
            raise
        raise CorruptParquet(" ".join(str(error).split())[:200]) from None
