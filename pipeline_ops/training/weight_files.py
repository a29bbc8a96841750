"""Weights in `.npz` files, with the paths of their variables.

Another process may make the layers of a model in another order. So a file has the paths beside its
arrays, and a reader arranges the arrays by them.

    w0000.. weights, o0000.. variables of the optimizer, a0000.. answers, paths
"""

from __future__ import annotations

import collections
import hashlib
import json
import math
import os
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import TypeAdapter

from pipeline_ops.errors import ConfigError
from pipeline_ops.raw_data.limits import check_expansion
from pipeline_ops.storage.local_files import open_new_below

_PATHS_KEY = "paths"
_MAX_PATHS = 8
"""The most paths that a message lists."""
_MAX_ERROR_CHARACTERS = 100
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
Arrays = list[np.ndarray]


class Paths(NamedTuple):
    """The paths of a loop's weights and of its optimizer's variables, in the order of the arrays.

    A file has them beside its arrays, because another process may make the layers in another order.
    Empty in a file of others.
    """

    weights: list[str] = []
    optimizer: list[str] = []


_PATHS, NO_PATHS = TypeAdapter(Paths), Paths()


def read_npz(
    path: Path, weight_shapes: Collection[tuple[int, ...]] | None = None
) -> dict[str, np.ndarray]:
    """Reads all arrays of an .npz file, and checks the CRC of each.

    With `weight_shapes`, only weights and their paths are read. Weights of other shapes come as
    zeros that take no memory.

    Raises:
      TooLarge: the arrays would take far more memory than the file has bytes.
      ValueError: a header does not agree with its array.
      zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError: the file is damaged.
    """
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if weight_shapes is not None:
            members = {
                name: member
                for name, member in members.items()
                if name == _PATHS_KEY or (name[:1] == "w" and name[1:].isdecimal())
            }
        num_bytes = sum(member.file_size for member in members.values())
        check_expansion(path, os.fstat(file.fileno()).st_size, num_bytes)
        return {
            name: _restore_type(
                _read_array(archive, member, None if name == _PATHS_KEY else weight_shapes)
            )
            for name, member in members.items()
        }


def _read_array(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, shapes: Collection[tuple[int, ...]] | None
) -> np.ndarray:
    """Reads an array of one of the shapes. Its header is checked first: it decides on memory."""
    with archive.open(member) as stream:
        try:
            shape, _, dtype = _HEADER_READERS[np.lib.format.read_magic(stream)](stream)
        except (MemoryError, OSError, zipfile.BadZipFile):
            raise
        except Exception as error:  # Python's own parser reads it, and raises nearly anything
            text = " ".join(str(error).split())[:_MAX_ERROR_CHARACTERS]
            raise ValueError(f"{member.filename} has no header of NumPy ({text})") from None
        num_bytes, declared = member.file_size - stream.tell(), math.prod(shape) * dtype.itemsize
    if declared != num_bytes or any(size < 0 for size in shape):
        raise ValueError(
            f"the header of {member.filename} says {shape} of {dtype}, {declared} bytes, and there "
            f"are {num_bytes}"
        )
    if shapes is not None and shape not in shapes:
        return np.broadcast_to(np.zeros((), dtype), shape)
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _restore_type(array: np.ndarray) -> np.ndarray:
    """Returns an array with its type bfloat16, which an .npz file has as two bytes without one."""
    # TensorFlow has taught NumPy the type.
    return array.view(np.dtype("bfloat16")) if array.dtype == np.dtype("V2") else array


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one .npz file, array by array, without a second copy in memory."""
    with open_new_below(path.parent, path.name) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # taken for `allow_pickle`


def name_arrays(letter: str, arrays: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """Names the arrays so that the names sort in the order of the arrays."""
    return {f"{letter}{i:04d}": array for i, array in enumerate(arrays)}


def select_arrays(letter: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Returns the arrays that `name_arrays` named, in order."""
    return [arrays[name] for name in sorted(arrays) if name.startswith(letter)]


def pack_paths(paths: Paths) -> dict[str, np.ndarray]:
    return {_PATHS_KEY: np.frombuffer(json.dumps(paths).encode(), np.uint8)}


def unpack_paths(arrays: Mapping[str, np.ndarray]) -> Paths:
    """Returns the paths in a file of arrays. Raises ValueError if they are no lists of texts."""
    if _PATHS_KEY not in arrays:
        return NO_PATHS
    return _PATHS.validate_json(arrays[_PATHS_KEY].tobytes())


def arrange(
    arrays: Arrays, stored: Sequence[str], wanted: Sequence[str], location: str | Path
) -> Arrays:
    """Puts arrays with the stored paths into the order of the wanted ones.

    They stay as they are where one of both has no paths. Raises ConfigError if the paths differ.
    """
    if not stored or not wanted or stored == wanted:
        return arrays
    found = dict(zip(stored, arrays, strict=True))
    if found.keys() != set(wanted):
        added, gone = (
            ", ".join(sorted(one - other)[:_MAX_PATHS]) or "none"
            for one, other in ((set(wanted), found.keys()), (found.keys(), set(wanted)))
        )
        raise ConfigError(
            f"{location} has other weights than the model that train.model builds now: the file "
            f"lacks {added}, and the model lacks {gone}. The function must build the same "
            "model each time. Do not let its layers depend on chance, time or the environment."
        )
    return [found[path] for path in wanted]


def number_paths(paths: Iterable[str]) -> list[str]:
    """Makes paths unique: the second one of a name ends in #2."""
    seen = collections.Counter[str]()
    numbered = []
    for path in paths:
        seen[path] += 1
        numbered.append(path if seen[path] == 1 else f"{path}#{seen[path]}")
    return numbered


def read_arrays(path: Path, wanted: Sequence[str] = ()) -> Arrays:
    """Reads weights that `write_arrays` wrote, in the order of the wanted paths.

    Raises ConfigError if the file has other paths.
    """
    arrays = read_npz(path)
    return arrange(select_arrays("w", arrays), unpack_paths(arrays).weights, wanted, path)


def read_named_arrays(
    path: Path, shapes: Collection[tuple[int, ...]]
) -> list[tuple[str, np.ndarray]]:
    """Reads weights with their paths, which are empty in a file of others.

    Those of other shapes come as zeros that take no memory. Raises as `read_npz`.
    """
    arrays = read_npz(path, shapes)
    found = select_arrays("w", arrays)
    return [*zip(unpack_paths(arrays).weights or [""] * len(found), found, strict=True)]


def write_arrays(
    path: Path,
    arrays: Sequence[np.ndarray],
    paths: Sequence[str] = (),
    answers: Sequence[np.ndarray] = (),
) -> None:
    """Writes weights as one .npz file, with the answers of their model, if any are given."""
    content = name_arrays("w", arrays) | pack_paths(Paths([*paths])) | name_arrays("a", answers)
    write_npz(path, content)


def read_answers(path: Path) -> Arrays:
    """Reads the answers beside weights."""
    return select_arrays("a", read_npz(path))


def compute_weights_digest(weights: Sequence[np.ndarray]) -> str:
    """Returns a digest of 32 hex digits over shapes, types and bytes, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for array in weights:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
