"""Rows of NumPy's arrays in `.npy` and `.npz` files, in bounded memory.

Nothing is unpickled. The header of an array must agree with the size of its file or member, so that
a wrong one is noticed before a row is read. `beam_jobs/sources/npz.py` and `raw.py` call this
module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import math
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from pipeline_ops.raw_data.limits import MAX_ARRAY_ROW_BYTES, MAX_PACKED_ARRAY_BYTES

_CHUNK_BYTES = 16 << 20
_HEADER_BYTES = 16 << 10
"""The part of an array that is read for its header. NumPy's own limit is 10,000 bytes."""
_SUFFIX = ".npy"
_AGAIN = "Copy or write the file again"


class UnreadableArray(Exception):
    """An array that cannot be read by rows. The text has the cure."""


@dataclasses.dataclass(frozen=True)
class ArrayRows:
    """An open array. Rows of a compressed one are read fast in their order only."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _stream: BinaryIO
    _start: int

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, first: int, count: int) -> np.ndarray:
        """The rows from `first` on. Raises UnreadableArray."""
        with _translate_errors(f"after row {first}"):
            self._stream.seek(self._start + first * self.row_bytes)
            content = self._stream.read(count * self.row_bytes)
        if len(content) < count * self.row_bytes:
            row = first + len(content) // self.row_bytes
            raise UnreadableArray(f"it ends in row {row} of {self.shape[0]}. {_AGAIN}")
        return np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])

    def iterate(self) -> Iterator[np.ndarray]:
        """Yields all rows in chunks of a few megabytes."""
        count = max(1, _CHUNK_BYTES // self.row_bytes)
        for first in range(0, self.shape[0], count):
            yield self.read(first, min(count, self.shape[0] - first))


def list_arrays(file: BinaryIO) -> list[str]:
    """The names of the arrays in an `.npz` file. Raises UnreadableArray."""
    with _translate_errors("in its list of arrays"), zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(_SUFFIX) for name in archive.namelist()]
    if len({*names}) < len(names):
        raise UnreadableArray("two of its arrays have one name. Write the file again")
    return names


@contextlib.contextmanager
def open_array(file: BinaryIO, name: str) -> Iterator[ArrayRows]:
    """Opens the array of an `.npy` file, or the one with a name in an `.npz` file.

    Raises UnreadableArray, also while rows are read.
    """
    with contextlib.ExitStack() as stack:
        with _translate_errors("in its header"):
            is_archive = file.read(2) == b"PK"
            num_bytes, stream = file.seek(0, io.SEEK_END), file
            if is_archive:
                archive = stack.enter_context(zipfile.ZipFile(file))
                member = archive.getinfo(name + _SUFFIX)
                is_packed = member.compress_type != zipfile.ZIP_STORED
                if is_packed and member.file_size > MAX_PACKED_ARRAY_BYTES:
                    cure = "Unpack the file with unzip, and name the .npy files"
                    raise UnreadableArray(f"{member.file_size} bytes are compressed. {cure}")
                num_bytes = member.file_size
                stream = stack.enter_context(archive.open(member))  # type: ignore[assignment]
            stream.seek(0)
            array = _read_header(stream, num_bytes)
        yield array


def _read_header(stream: BinaryIO, num_bytes: int) -> ArrayRows:
    head = io.BytesIO(stream.read(_HEADER_BYTES))
    try:
        version = np.lib.format.read_magic(head)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read(head)
    except MemoryError:
        raise
    except Exception as error:  # Python's own parser reads it, and raises nearly anything
        text = " ".join(str(error).split())[:200]
        raise UnreadableArray(f"no header of NumPy ({text}). {_AGAIN}") from None
    array = ArrayRows(shape, dtype, stream, head.tell())
    if dtype.hasobject:
        fault = "of Python objects, which only pickle can read"
        raise UnreadableArray(f"{fault}. Save it as numbers or text: array.astype(str)")
    if dtype.names or dtype.subdtype or dtype.kind not in "biufUS":
        raise UnreadableArray(f"of the type {dtype}. Save plain numbers or text")
    if not shape or any(type(size) is not int or size < 1 for size in shape) or not dtype.itemsize:
        raise UnreadableArray(f"of the shape {shape}, which has no rows. Correct the file")
    if head.tell() + shape[0] * array.row_bytes != num_bytes:
        has = f"and the file has {num_bytes - head.tell()}"
        need = f"its header says {shape} of {dtype}, {shape[0] * array.row_bytes} bytes"
        raise UnreadableArray(f"{need}, {has}. {_AGAIN}")
    if array.row_bytes > MAX_ARRAY_ROW_BYTES:
        raise UnreadableArray(
            f"a row has {array.row_bytes} bytes, allowed are {MAX_ARRAY_ROW_BYTES}"
        )
    if is_fortran and len(shape) > 1:
        raise UnreadableArray("in Fortran's order. Save numpy.ascontiguousarray(array)")
    return array


def to_pixels(values: np.ndarray, scale: float) -> np.ndarray:
    """The pixels uint8 [N, H, W, C] of images [N, H, W] or [N, H, W, C]."""
    pixels = values
    if values.dtype != np.uint8:
        pixels = np.rint(values * scale).astype(np.uint8)
    return pixels if pixels.ndim == 4 else pixels[..., np.newaxis]


@contextlib.contextmanager
def _translate_errors(place: str) -> Iterator[None]:
    """RuntimeError is an encrypted member, and NotImplementedError an unknown compression."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, OSError) as error:
        # The disk, and not the content, in which zipfile seeks to places before its beginning.
        if getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        text = " ".join(str(error).split())[:200]
        raise UnreadableArray(f"damaged {place}: {text}. {_AGAIN}") from None
