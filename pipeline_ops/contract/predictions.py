"""The answers of an evaluated classifier to the test examples: `predictions.npz`.

The archive has these arrays of N examples, not compressed. A champion has the last four as well,
with `champion_` before their names.

| name | type | content |
|---|---|---|
| keys | uint8 | the keys of all examples in UTF-8, one after the other |
| key_ends | int64 [N] | the end of each key in `keys` |
| labels | int32 [N] | the class of each example |
| answers | int32 [N] | the class that the model answered |
| confidences | float16 [N] | the probability of that class |
| probabilities | float16 [N, K] | of all classes, or of the most probable ones |
| classes | int32 [N, K] | the classes of `probabilities`. Missing if they are all, in order |

It is read without NumPy, which the Airflow side does not import. Nothing in it is unpickled.
"""

from __future__ import annotations

import dataclasses
import io
import math
import re
import struct
import zipfile
from collections.abc import Sequence
from typing import Any

from pipeline_ops.errors import DataError
from pipeline_ops.storage.store_path import StorePath

_MAX_BYTES = 1 << 30
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(..?.)', 'fortran_order': False, "
    rb"'shape': \((\d{1,10}),(?: (\d{1,5}))?\), \} *\n",
    re.DOTALL,
)
_TYPES = {b"|u1": "B", b"<i4": "i", b"<i8": "q", b"<f2": "e"}


@dataclasses.dataclass(frozen=True)
class _Array:
    """`width` is the number of values of a row."""

    kind: str
    num_rows: int
    width: int
    data: memoryview

    def read_all(self) -> tuple[Any, ...]:
        return struct.unpack(f"<{self.num_rows * self.width}{self.kind}", self.data)

    def read_row(self, index: int) -> tuple[Any, ...]:
        row = struct.Struct(f"<{self.width}{self.kind}")
        return row.unpack_from(self.data, index * row.size)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of a model to an example.

    `label_probability` is None if the label is not among the classes that were kept.
    """

    index: int
    confidence: float
    label_probability: float | None


@dataclasses.dataclass(frozen=True)
class AnswersFile:
    """The labels and answers of all examples as classes, and the rest row by row."""

    labels: Sequence[int]
    answers: Sequence[int]
    champion_answers: Sequence[int] | None
    _arrays: dict[str, _Array]

    def read_key(self, row: int) -> str:
        ends = self._arrays["key_ends"]
        start = ends.read_row(row - 1)[0] if row else 0
        text = self._arrays["keys"].data[max(0, start) : max(0, ends.read_row(row)[0])]
        return bytes(text).decode(errors="replace")

    def read_confidences(self) -> Sequence[float]:
        return self._arrays["confidences"].read_all()

    def read_answer(self, row: int, prefix: str = "") -> Answer:
        """Returns the answer of the challenger, or with the prefix `champion_` the champion's."""
        probabilities = self._arrays[f"{prefix}probabilities"].read_row(row)
        classes: Sequence[int] = range(len(probabilities))
        if f"{prefix}classes" in self._arrays:
            classes = self._arrays[f"{prefix}classes"].read_row(row)
        found = dict(zip(classes, probabilities, strict=True))
        return Answer(
            self._arrays[f"{prefix}answers"].read_row(row)[0],
            self._arrays[f"{prefix}confidences"].read_row(row)[0],
            found.get(self.labels[row]),
        )


def read_answers(file: StorePath, num_classes: int) -> AnswersFile:
    """Reads the answers. Raises DataError if the file is damaged or does not fit the classes."""
    content = file.read(_MAX_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise ValueError("a member is compressed")
            if sum(member.file_size for member in members) > len(content):
                raise ValueError("its members are larger than the file")
            arrays = {
                member.filename.removesuffix(".npy"): _parse_array(archive.read(member))
                for member in members
            }
        return _check(arrays, num_classes)
    except KeyError as error:
        problem = f"the array {error} is missing"
    # NotImplementedError is a RuntimeError.
    except (zipfile.BadZipFile, ValueError, EOFError, RuntimeError, OSError, struct.error) as error:
        problem = str(error)
    raise DataError(
        f"{file}: not the answers of an evaluation: {problem}. Clear the task evaluate."
    )


def _parse_array(content: bytes) -> _Array:
    header = _HEADER.match(content)
    if header is None or header[1] not in _TYPES:
        raise ValueError("an array has another type or form")
    kind, shape = _TYPES[header[1]], [int(size) for size in header.groups()[1:] if size]
    data = memoryview(content)[header.end() :]
    if math.prod(shape) * struct.calcsize(kind) != len(data):
        raise ValueError("an array has not the size of its header")
    return _Array(kind, shape[0], shape[1] if shape[1:] else 1, data)


def _check(arrays: dict[str, _Array], num_classes: int) -> AnswersFile:
    """Checks the number of rows of each array, and every label and answer."""
    prefixes = ["", "champion_"] if "champion_answers" in arrays else [""]
    needed = {
        "key_ends": "q",
        "labels": "i",
        **{f"{prefix}answers": "i" for prefix in prefixes},
        **{f"{prefix}confidences": "e" for prefix in prefixes},
        **{f"{prefix}probabilities": "e" for prefix in prefixes},
        **{f"{prefix}classes": "i" for prefix in prefixes if f"{prefix}classes" in arrays},
    }
    num_rows = arrays["labels"].num_rows
    for name, kind in needed.items():
        if (arrays[name].kind, arrays[name].num_rows) != (kind, num_rows):
            raise ValueError(f"the array {name} has another type, or not {num_rows} rows")
        if arrays[name].width != 1 and not name.endswith(("probabilities", "classes")):
            raise ValueError(f"the array {name} has more than one column")
    for prefix in prefixes:
        kept, named = arrays[f"{prefix}probabilities"], arrays.get(f"{prefix}classes")
        if kept.width != (named.width if named else num_classes):
            raise ValueError(f"the array {prefix}probabilities has {kept.width} columns")
    if arrays["keys"].kind != "B":
        raise ValueError("the array keys has another type")
    columns = {
        name: arrays[name].read_all()
        for name in ("labels", *(f"{prefix}answers" for prefix in prefixes))
    }
    for name, classes in columns.items():
        if num_rows and not 0 <= min(classes) <= max(classes) < num_classes:
            raise ValueError(f"the array {name} has a class that does not exist")
    return AnswersFile(
        columns["labels"], columns["answers"], columns.get("champion_answers"), arrays
    )
