"""Recognises files that hold the images: TFRecords, Parquet and tar shards of WebDataset."""

from __future__ import annotations

import glob
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_jobs.io.example import parse
from beam_jobs.io.parquet_rows import CorruptParquet, iterate_rows, open_parquet
from beam_jobs.io.raw import open_raw
from beam_jobs.io.tfrecord_reader import CorruptRecord, scan_records
from beam_jobs.recognition.folder_view import MAX_CANDIDATES, START_BYTES, FolderView
from beam_jobs.recognition.source_match import Certainty, SourceMatch, count, find_split, join_names
from beam_jobs.sources.packed import find_field
from beam_jobs.sources.parsing import CORNERS, parse_json_object
from beam_jobs.stages.stage import Reject
from pipeline_ops.artifacts import dataset as shards
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

_TFRECORD_NAME = re.compile(r"\.(tfrecords?|tfrec|record)(-\d+-of-\d+)?$|-\d+-of-\d+$")
_SHARD_NUMBER = re.compile(r"-\d+-of-(\d+)")
_PARQUET_MAGIC = b"PAR1"
_TAR_BLOCK, _TAR_TYPE, _TAR_MAGIC, _MAX_MEMBERS = 512, slice(156, 157), slice(257, 262), 20
_BOXES = ("boxes", "bbox", "bboxes", "objects", "annotations")
_LABELS = (
    "label",
    "labels",
    "class",
    "class_name",
    "category",
    "categories",
    "category_id",
    "category_name",
)
_XYXY = ("xmin", "ymin", "xmax", "ymax")
"""Names of fields that are looked for, the usual ones first."""
_Fields = Mapping[str, Any]


def recognise_tfrecord(view: FolderView) -> Iterator[SourceMatch]:
    """Finds TFRecord files with images. The first record of the first files is parsed."""
    files = [
        file
        for file in view.list_candidates("")
        if _TFRECORD_NAME.search(file.key)
        and not posixpath.basename(file.key).startswith(shards.QUARANTINE_PREFIX)
    ]
    if not files:
        return
    features, problem = _read_first_record(view, files[0])
    has_boxes = shards.BOX_XMIN in features
    if shards.ENCODED not in features or not (has_boxes or _has_label(features)):
        reason = f"{files[0].key}: {problem or 'its first record has other features'}"
        if any(posixpath.basename(file.key) == "dataset_info.json" for file in view.files):
            reason += ". TensorFlow Datasets made it: use `type: tfds` (docs/data-sources.md)"
        yield SourceMatch("tfrecord", Certainty.UNUSABLE, reason)
        return
    keys: dict[str, Any] = {"task": "detection" if has_boxes else "classification"}
    if maps := view.list_candidates(".pbtxt"):
        keys["label_map"] = maps[0].key
    patterns = list(dict.fromkeys(map(_get_pattern, files)))
    keys |= _list_parts(files) or {"parts": [{"files": pattern} for pattern in patterns]}
    reason = (
        f"{count(len(files), 'TFRecord file')} ({join_names(patterns)}) whose first record "
        f"has an image and {'boxes' if has_boxes else 'a label'}"
    )
    yield SourceMatch("tfrecord", Certainty.CERTAIN, reason, keys)


def _has_label(features: dict[str, Any]) -> bool:
    return shards.LABEL in features or "image/class/text" in features


def _read_first_record(view: FolderView, file: RawFile) -> tuple[dict[str, Any], str]:
    """The features of the first record, or none and the problem."""
    try:
        with open_raw(file, view.folder) as opened:
            for _, record in scan_records(opened, file.num_bytes):
                if isinstance(record, CorruptRecord):
                    return {}, record.detail
                return dict(parse(record)), ""
    except OSError as error:
        raise DataError(f"{file.key}: {error.strerror}. Correct its permissions.") from None
    except ValueError as error:
        return {}, str(error)
    return {}, "it has no records"


def _get_pattern(file: RawFile) -> str:
    """The pattern of a file and of the other shards of its set."""
    key = file.key
    found = _SHARD_NUMBER.search(key)
    if not found:
        return glob.escape(key)
    digits = "?" * (len(found[0]) - len(f"--of-{found[1]}"))
    before, after = glob.escape(key[: found.start()]), glob.escape(key[found.end() :])
    return f"{before}-{digits}-of-{found[1]}{after}"


def recognise_parquet(view: FolderView) -> Iterator[SourceMatch]:
    """Finds Parquet files with a column of images. The first rows of the first file are read."""
    files = view.list_candidates(".parquet")
    if not any(view.read_start(file, 4) == _PARQUET_MAGIC for file in files[:MAX_CANDIDATES]):
        return
    try:
        with open_raw(files[0], view.folder) as opened, open_parquet(opened) as parquet:
            names = parquet.schema_arrow.names
            groups = range(parquet.num_row_groups)
            every = (row for group in groups for _, row in iterate_rows(parquet, group, names))
            rows = list(itertools.islice(every, _MAX_MEMBERS))
    except (CorruptParquet, OSError) as error:
        yield SourceMatch("parquet", Certainty.UNUSABLE, f"{files[0].key}: {error}")
        return
    image, fields = _guess_image_column(view, rows), _guess_fields(rows)
    if image is None or not fields:
        missing = "images" if image is None else "labels or boxes"
        reason = f"{files[0].key} has no known column with {missing}, but {join_names(names)}"
        yield SourceMatch("parquet", Certainty.UNUSABLE, reason)
        return
    kind = "boxes" if fields["task"] == "detection" else "labels"
    reason = f"{count(len(files), 'Parquet file')} with {kind}"
    keys = {**fields, **_list_parts(files), **image}
    yield SourceMatch("parquet", Certainty.CERTAIN, reason, keys)


def _guess_image_column(view: FolderView, rows: Sequence[_Fields]) -> dict[str, Any] | None:
    """The keys `image` and `images` of a Parquet source. None if no column can be the images."""
    paths: dict[str, list[str]] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        values = [each.get("bytes") if isinstance(each, dict) else each for each in values]
        if any(isinstance(value, bytes) for value in values):
            return _omit_default("image", name)
        paths[name] = [value for value in values if isinstance(value, str)]
    for name, found in paths.items():
        folder, number = view.find_images_folder(found, "")
        if number:
            return {**_omit_default("image", name), "images": folder}
    return None


def _guess_fields(rows: Sequence[_Fields]) -> dict[str, Any]:
    """The keys `task`, `label`, `boxes` and so on of a source, from its first annotations.

    Empty if there are neither labels nor boxes.
    """
    names = (*_BOXES, *(f"{outer}.{inner}" for outer in _BOXES for inner in _BOXES))
    for name in names:
        values = [value for row in rows if (value := find_field(row, name)) is not None]
        boxes = [box for value in values for box in _as_list(value)]
        if values and all(map(_is_box, boxes)):
            keys = {"task": "detection", **_omit_default("boxes", name)}
            return {**keys, **_guess_numbers(rows, name, boxes)} if boxes else keys
        if values and all(map(_has_corners, boxes)):
            return {"task": "detection", **_omit_default("boxes", name)}
    if any(all(_has_value(row, name) for name in CORNERS) for row in rows):
        columns = ([_as_list(find_field(row, name)) for name in _XYXY] for row in rows)
        boxes = [box for row in columns for box in zip(*row, strict=False)]
        found = _guess_numbers(rows, "", boxes)
        return {"task": "detection", "corners": list(_XYXY), **found}
    label = _find_label(rows, "")
    return {"task": "classification", **_omit_default("label", label)} if label else {}


def _is_box(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) == 4
    return is_list and all(isinstance(number, int | float) for number in value)


def _has_corners(value: Any) -> bool:
    return isinstance(value, dict) and {*CORNERS, "label"} <= {*value}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _guess_numbers(
    rows: Sequence[_Fields], boxes: str, numbers: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """The label, the format and the unit of boxes of four numbers."""
    outer = boxes.rpartition(".")[0]
    label = (outer and _find_label(rows, f"{outer}.")) or _find_label(rows, "") or "label"
    is_xywh = any(c < a or d < b for a, b, c, d in numbers)
    is_fraction = bool(numbers) and max(map(max, numbers)) <= 1
    keys = _omit_default("label", label) | ({"box_format": "xywh"} if is_xywh else {})
    return keys | ({"units": "fractions"} if is_fraction else {})


def _find_label(rows: Sequence[_Fields], before: str) -> str:
    """The first usual name of labels that has a value in a row, or "" if there is none."""
    names = [f"{before}{name}" for name in _LABELS]
    return next((name for name in names if any(_has_value(row, name) for row in rows)), "")


def _has_value(row: _Fields, name: str) -> bool:
    return any(value is not None for value in _as_list(find_field(row, name)))


def _omit_default(key: str, value: str) -> dict[str, Any]:
    return {} if value == key else {key: value}


def recognise_webdataset(view: FolderView) -> Iterator[SourceMatch]:
    """Finds tar files whose first members are images and annotations of the same names."""
    files = view.list_candidates(".tar")
    members = _list_members(view, files[0]) if files else []
    suffixes = {name.partition(".")[2].lower() for name, _ in members}
    objects = [_parse_object(part) for name, part in members if name.lower().endswith(".json")]
    fields = _guess_fields(objects)
    if fields or suffixes & {"cls", "txt"}:
        keys: dict[str, Any] = {"task": "classification", "annotation": "txt"}
        if fields.get("task") == "detection":
            keys = fields
        elif "cls" in suffixes:
            keys = {"task": "classification"}
        elif fields:
            keys = {**fields, "annotation": "json"}
        keys |= _list_parts(files)
        reason = (
            f"{count(len(files), 'tar file')} of samples with the members "
            f"{join_names(sorted(suffixes))}"
        )
        yield SourceMatch("webdataset", Certainty.CERTAIN, reason, keys)
    elif files:
        names = join_names([name for name, _ in members])
        reason = (
            f"{files[0].key} begins with {names}. In a shard of WebDataset, each image has a "
            "member of the same name with its class or its boxes, .cls, .json or .txt. Unpack an "
            "archive of a folder"
            if members
            else f"{files[0].key} is no tar file, or is damaged. Write it again"
        )
        yield SourceMatch("webdataset", Certainty.UNUSABLE, reason)
    elif packed := view.list_candidates(".tar.gz", ".tgz"):
        reason = f"{packed[0].key} is compressed. Use gunzip first"
        yield SourceMatch("webdataset", Certainty.UNUSABLE, reason)


def _parse_object(content: bytes) -> dict[str, Any]:
    try:
        return parse_json_object(content)
    except Reject:
        return {}


def _list_members(view: FolderView, file: RawFile) -> list[tuple[str, bytes]]:
    """The base names of the first files in a tar file, each with the start of its content."""
    found: list[tuple[str, bytes]] = []
    offset = 0
    for _ in range(_MAX_MEMBERS):
        header = view.read_part(file, offset, _TAR_BLOCK)
        if header[_TAR_MAGIC] != b"ustar" or (size := _parse_size(header)) is None:
            break
        if header[_TAR_TYPE] in b"0\0":
            name = header[:100].rstrip(b"\0").decode("utf-8", "replace")
            content = view.read_part(file, offset + _TAR_BLOCK, min(size, START_BYTES))
            found.append((posixpath.basename(name), content))
        offset += _TAR_BLOCK * (1 + -(-size // _TAR_BLOCK))
    return found


def _parse_size(header: bytes) -> int | None:
    """The size in a header of tar, in bytes. None if it is no octal number."""
    digits = header[124:136].strip(b" \0")
    return int(digits, 8) if re.fullmatch(rb"[0-7]{1,12}", digits) else None


def _list_parts(files: Sequence[RawFile]) -> dict[str, Any]:
    """The key `parts` if the names of the files tell their splits, and otherwise no key."""
    patterns = {pattern: find_split(pattern) for pattern in dict.fromkeys(map(_get_pattern, files))}
    if not any(patterns.values()):
        return {}
    return {
        "parts": [
            {"files": pattern} | ({"split": split} if split else {})
            for pattern, split in patterns.items()
        ]
    }
