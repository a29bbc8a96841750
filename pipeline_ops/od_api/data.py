"""The data of a `pipeline.config`: the records, the label map, and the size of resized images."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beam_jobs.sources.label_map import parse_label_map
from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.reader import ConfigReader

_SHARDED = re.compile(r"(?P<name>.+)@(?P<count>\d+)(?P<rest>[^/]*)")
_HEAD = struct.Struct("<QI")
_TAIL_BYTES = 4
_VALIDATION = 0.05
"""The validation share of the training records. The API watches a training by the evaluation set,
which is our test.
"""
_UNKNOWN_SIZE = 640


@dataclasses.dataclass(frozen=True)
class RecordInputs:
    """The records of a `pipeline.config`.

    Attributes:
      source: the section `preprocess.source`.
      split: the section `preprocess.split`.
      train_patterns: paths of training records, as glob takes them.
    """

    source: dict[str, Any]
    split: dict[str, float]
    train_patterns: Sequence[str]

    @property
    def train_share(self) -> float:
        return self.split["train"]

    def count(self) -> int | None:
        """Returns the number of training records, or None if there is no file.

        Raises:
          ConfigError: a file is not a TFRecord file.
        """
        files = sorted({file for pattern in self.train_patterns for file in glob.glob(pattern)})
        return sum(map(count_records, files)) if files else None


def read_records(config: ConfigReader) -> RecordInputs:
    """Returns the readers of training and evaluation as a source. Raises ConfigError."""
    if not config.has("train_input_reader"):
        raise ConfigError("pipeline.config: there is no train_input_reader")
    train_reader, test_readers = (
        config.message("train_input_reader"),
        [*config.messages("eval_input_reader"), *config.messages("eval_input_readers")],
    )
    train = _paths(train_reader)
    if not train:
        raise ConfigError(
            "pipeline.config: train_input_reader.tf_record_input_reader.input_path is missing; "
            "other readers have no counterpart"
        )
    test = [path for reader in test_readers for path in _paths(reader)]
    train_reader.take_equal("shuffle", True)
    for reader in test_readers:
        reader.take_equal("shuffle", False)
    label_maps = list(
        dict.fromkeys(
            path
            for reader in (train_reader, *test_readers)
            for path in [reader.take("label_map_path", str, "")]
            if path
        )
    )
    if len(label_maps) > 1:
        raise ConfigError(
            f"pipeline.config: the readers have different label maps ({', '.join(label_maps)}); "
            "a data set of ours has one"
        )
    folder = _common_folder([*train, *test, *map(_absolute, label_maps)])
    relative = lambda path: os.path.relpath(path, folder)  # noqa: E731
    parts = [{"files": relative(path)} for path in train] + [
        {"files": relative(path), "split": "test"} for path in test
    ]
    source: dict[str, Any] = {
        "type": "tfrecord",
        "path": folder,
        "task": "detection",
        "parts": parts,
    }
    for path in map(_absolute, label_maps):
        source |= {"label_map": relative(path), "class_names": _class_names(path)}
    split = (
        {"train": 1 - _VALIDATION, "validation": _VALIDATION, "test": 0}
        if test
        else {"train": 0.8, "validation": 0.1, "test": 0.1}
    )
    config.note(
        f"of the training records, {split['validation']:.0%} become the validation split"
        + (
            "; the evaluation set is the test split"
            if test
            else " and as many the test split: there is no evaluation set"
        )
    )
    return RecordInputs(source, split, train)


def image_size(
    config: ConfigReader, model: ConfigReader, multiple: int
) -> tuple[tuple[int, int], str, int]:
    """Returns height and width, the mode of our stage `resize`, and the number of channels.

    Args:
      config: receives notes.
      model: has the image_resizer.
      multiple: the number of which height and width must be multiples for our model.
    """
    resizer = model.message("image_resizer")
    match resizer.one_of("fixed_shape_resizer", "keep_aspect_ratio_resizer"):
        case "fixed_shape_resizer":
            fixed = resizer.message("fixed_shape_resizer")
            size, mode, kind = (
                (fixed.take("height", int, 300), fixed.take("width", int, 300)),
                "stretch",
                fixed,
            )
        case "keep_aspect_ratio_resizer":
            kind = resizer.message("keep_aspect_ratio_resizer")
            side = kind.take("max_dimension", int, 1024)
            kind.take_equal("pad_to_max_dimension", True)
            size, mode = (side, side), "letterbox"
            config.note(
                f"{kind.path('max_dimension')}: images keep their proportions inside of a square "
                f"of {side} pixels, with bars on both sides; the API pads at the bottom and the "
                "right, or not at all. The served model stretches what it is sent"
            )
        case _:
            size, mode, kind = (_UNKNOWN_SIZE, _UNKNOWN_SIZE), "stretch", resizer
            config.note(
                f"{model.path('image_resizer')}: none that has a counterpart; "
                f"images are stretched to {_UNKNOWN_SIZE}x{_UNKNOWN_SIZE}"
            )
    rounded = tuple(-(-side // multiple) * multiple for side in size)
    if rounded != size:
        config.note(
            f"{model.path('image_resizer')}: {size[0]}x{size[1]} becomes "
            f"{rounded[0]}x{rounded[1]}: our model takes multiples of {multiple}"
        )
    return rounded, mode, 1 if kind.take("convert_to_grayscale", bool, False) else 3


def count_records(file: str) -> int:
    """Counts the records of a TFRecord file by their lengths alone. Raises ConfigError."""
    try:
        with open(file, "rb") as records:
            size, count, position = os.fstat(records.fileno()).st_size, 0, 0
            while position < size:
                head = records.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    raise ConfigError(f"{file}: not a TFRecord file, or one that was cut off")
                position += _HEAD.size + _HEAD.unpack(head)[0] + _TAIL_BYTES
                if position > size:
                    raise ConfigError(f"{file}: not a TFRecord file, or one that was cut off")
                records.seek(position)
                count += 1
            return count
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror}") from error


def _paths(reader: ConfigReader) -> list[str]:
    """Returns absolute paths, with sharded names written out as patterns.

    `train@10` and `train-?????-of-00010` are the same.
    """
    inner = reader.message("tf_record_input_reader")
    return [_pattern(path) for path in inner.take_all("input_path", str)]


def _pattern(path: str) -> str:
    sharded = _SHARDED.fullmatch(path)
    if sharded:
        path = f"{sharded['name']}-?????-of-{int(sharded['count']):05d}{sharded['rest']}"
    return _absolute(path)


def _absolute(path: str) -> str:
    """Returns an absolute path. Relative paths start in the working directory, as with the API."""
    if "://" in path:
        raise ConfigError(
            f"pipeline.config: {path}: TFRecords and label maps are read from local folders only; "
            "copy or mount them, and change the path"
        )
    return os.path.abspath(os.path.expanduser(path))


def _common_folder(paths: Sequence[str]) -> str:
    """Returns the common folder of the paths.

    Everything below it is in the fingerprint, so the root and the home folder are refused.
    """
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    if folder in (os.path.abspath(os.sep), os.path.expanduser("~")):
        raise ConfigError(
            f"pipeline.config: records and label map have no folder in common but {folder}; "
            f"move or link them into one: {', '.join(paths)}"
        )
    return folder


def _class_names(path: str) -> list[str]:
    """Returns the class names, in the order of the label map's numbers.

    Raises:
      ConfigError: the file cannot be read.
      DataError: the file is not a label map.
    """
    try:
        names = parse_label_map(Path(path).read_bytes(), path)
    except OSError as error:
        raise ConfigError(
            f"pipeline.config: label_map_path: {path} can't be read: {error.strerror}; "
            "correct the path"
        ) from error
    return list(dict.fromkeys(names[number] for number in sorted(names)))
