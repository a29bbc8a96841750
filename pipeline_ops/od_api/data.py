"""The data of a `pipeline.config`: the records, the label map, and the size of resized images."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from beam_jobs.sources.tfrecord import parse_label_map
from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.text_proto import ConfigReader
from pipeline_ops.storage.tfrecord import list_record_offsets

_SHARDED_NAME = re.compile(r"(?P<name>.+)@(?P<count>\d+)(?P<rest>[^/]*)")
_VALIDATION_SHARE = 0.05
"""The validation share of the training records. The API monitors a training by the evaluation set,
which is our test.
"""
_MIN_EXAMPLES = 5
"""The number of examples that a split of a small set gets on average, so that it is not empty."""
_DEFAULT_SIZE = 640


class RecordInputs(NamedTuple):
    """The sections `preprocess.source` and `preprocess.split`.

    `num_examples` is the number of training records, None if there is no file.
    """

    source: dict[str, Any]
    split: dict[str, float]
    num_examples: int | None


def read_records(config: ConfigReader, num_examples: int | None) -> RecordInputs:
    """Converts the readers of training and evaluation. Without `num_examples`, records are counted.

    Raises ConfigError if there are no readers, they cannot be converted, or a file is no TFRecord
    file.
    """
    if not config.has("train_input_reader"):
        raise ConfigError("pipeline.config: there is no train_input_reader. Add one.")
    train_reader = config.message("train_input_reader")
    test_readers = [*config.messages("eval_input_reader"), *config.messages("eval_input_readers")]
    train = _read_paths(train_reader)
    if not train:
        raise ConfigError(
            "pipeline.config: train_input_reader.tf_record_input_reader.input_path is missing. "
            "Set it. Other readers have no counterpart."
        )
    test = [path for reader in test_readers for path in _read_paths(reader)]
    if both := sorted(_find_files(train) & _find_files(test)) or sorted({*train} & {*test}):
        raise ConfigError(
            f"pipeline.config: train_input_reader and eval_input_reader both read {both[0]}, so "
            "the model would be evaluated on its training examples. Give eval_input_reader other "
            "records."
        )
    train_reader.take_equal("shuffle", True)
    for reader in test_readers:
        reader.take_equal("shuffle", False)
    label_maps = _read_label_maps([train_reader, *test_readers])
    folder = _find_common_folder([*train, *test, *label_maps])
    parts = [{"files": os.path.relpath(path, folder)} for path in train]
    parts += [{"files": os.path.relpath(path, folder), "split": "test"} for path in test]
    source = {"type": "tfrecord", "path": folder, "task": "detection", "parts": parts}
    for path in label_maps:
        source["label_map"] = os.path.relpath(path, folder)
        source["class_names"] = _read_class_names(path)
    if num_examples is None and (files := sorted(_find_files(train))):
        num_examples = sum(map(_count_records, files))
    split = _choose_split(config, bool(test), num_examples)
    return RecordInputs(source, split, num_examples)


def _find_files(patterns: Iterable[str]) -> set[str]:
    return {os.path.realpath(file) for pattern in patterns for file in glob.glob(pattern)}


def _read_label_maps(readers: Iterable[ConfigReader]) -> list[str]:
    """Returns the absolute path of the readers' label map, or nothing if they have none."""
    paths = [reader.take("label_map_path", str, "") for reader in readers]
    label_maps = [path for path in dict.fromkeys(paths) if path]
    if len(label_maps) > 1:
        try:
            are_equal = len({Path(_to_absolute(path)).read_bytes() for path in label_maps}) == 1
        except OSError:
            are_equal = False
        if not are_equal:
            raise ConfigError(
                f"pipeline.config: the readers have different label maps ({', '.join(label_maps)}),"
                " and a data set has only one. Merge the label maps."
            )
    return [_to_absolute(path) for path in label_maps[:1]]


def _choose_split(
    config: ConfigReader, has_test: bool, num_examples: int | None
) -> dict[str, float]:
    least = _MIN_EXAMPLES / num_examples if num_examples else 0.0
    if has_test:
        share = round(min(0.5, max(_VALIDATION_SHARE, least)), 2)
        config.note(
            f"{share:.0%} of the training records become the validation split. "
            "The evaluation set becomes the test split."
        )
        return {"train": round(1 - share, 2), "validation": share, "test": 0}
    share = round(min(0.3, max(0.1, least)), 2)
    config.note(
        f"There is no evaluation set. {share:.0%} of the training records become the validation "
        f"split, and {share:.0%} the test split."
    )
    return {"train": round(1 - 2 * share, 2), "validation": share, "test": share}


def read_image_stages(model: ConfigReader, multiple: int) -> list[str | dict[str, Any]]:
    """Returns the stages that decode and resize images, to multiples of a number of pixels."""
    resizers = model.message("image_resizer")
    kind = resizers.find_present("fixed_shape_resizer", "keep_aspect_ratio_resizer")
    resizer = resizers.message(kind) if kind else resizers
    mode: dict[str, str] = {}
    if kind == "fixed_shape_resizer":
        height, width = resizer.take("height", int, 300), resizer.take("width", int, 300)
    elif kind:
        height = width = resizer.take("max_dimension", int, 1024)
        resizer.take_equal("pad_to_max_dimension", True)
        mode = {"mode": "letterbox"}
        model.note(
            f"{resizer.path('max_dimension')}: images keep their proportions inside of a "
            f"square of {height} pixels, with bars on both sides. The API pads at the bottom "
            "and the right, or not at all. The served model does the same."
        )
    else:
        height = width = _DEFAULT_SIZE
        model.note(
            f"{model.path('image_resizer')}: no resizer that has a counterpart. "
            f"Images are stretched to {height}x{width}."
        )
    sides = {"height": height, "width": width}
    size = {name: -(-side // multiple) * multiple for name, side in sides.items()}
    if size != sides:
        model.note(
            f"{model.path('image_resizer')}: {height}x{width} becomes "
            f"{size['height']}x{size['width']}, because our model needs multiples of {multiple}"
        )
    channels = 1 if resizer.take("convert_to_grayscale", bool, False) else 3
    return [{"decode": {"channels": channels}}, "clip_boxes", {"resize": size | mode}]


def _count_records(file: str) -> int:
    """Counts the records of a TFRecord file by their lengths alone. Raises ConfigError."""
    try:
        return len(list_record_offsets(Path(file)))
    except ValueError as error:
        raise ConfigError(f"{error} Replace it with a whole one.") from None
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}. Correct the paths of train_input_reader."
        ) from error


def _read_paths(reader: ConfigReader) -> list[str]:
    """Returns absolute paths, with sharded names written out as patterns.

    `train@10` and `train-?????-of-00010` are the same.
    """
    paths = reader.message("tf_record_input_reader").take_all("input_path", str)
    return [
        _to_absolute(
            f"{sharded['name']}-?????-of-{int(sharded['count']):05d}{sharded['rest']}"
            if (sharded := _SHARDED_NAME.fullmatch(path))
            else path
        )
        for path in paths
    ]


def _to_absolute(path: str) -> str:
    """Returns an absolute path. Relative paths start in the working directory, as with the API."""
    if "://" in path:
        raise ConfigError(
            f"pipeline.config: {path}: only records and label maps in local folders are converted. "
            "Copy or mount them, and change the path."
        )
    return os.path.abspath(os.path.expanduser(path))


def _find_common_folder(paths: Sequence[str]) -> str:
    """Returns the common folder of the paths.

    Everything below it is in the fingerprint, so the root and the home folder are rejected.
    """
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    if folder in (os.path.abspath(os.sep), os.path.expanduser("~")):
        raise ConfigError(
            f"pipeline.config: records and label map have no folder in common but {folder}. "
            f"Move or link them into one: {', '.join(paths)}"
        )
    return folder


def _read_class_names(path: str) -> list[str]:
    """Returns the class names, in the order of the label map's numbers."""
    try:
        names = parse_label_map(Path(path).read_bytes(), path).names
    except OSError as error:
        raise ConfigError(
            f"pipeline.config: label_map_path: cannot read {path}: {error.strerror}. "
            "Correct the path."
        ) from error
    return list(dict.fromkeys(names[number] for number in sorted(names)))
