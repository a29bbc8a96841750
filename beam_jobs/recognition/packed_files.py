"""Recognises files that hold the images: TFRecords, Parquet and tar shards of WebDataset."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from beam_jobs.io.example import parse
from beam_jobs.io.tfrecord_reader import CorruptRecord, scan_records
from beam_jobs.recognition.folder_view import MAX_CANDIDATES, START_BYTES, FolderView
from beam_jobs.recognition.source_match import Certainty, SourceMatch, count, find_split, join_names
from pipeline_ops.artifacts import dataset as shards
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

_TFRECORD_NAME = re.compile(r"\.(tfrecords?|tfrec|record)(-\d+-of-\d+)?$|-\d+-of-\d+$")
_SHARD_NUMBER = re.compile(r"-\d+-of-(\d+)")
_PARQUET_MAGIC, _MAX_METADATA_BYTES = b"PAR1", 1 << 20
_TAR_BLOCK, _TAR_TYPE, _TAR_MAGIC, _MAX_MEMBERS = 512, slice(156, 157), slice(257, 262), 20
_BOX_KEY = re.compile(rb'"(boxes|bbox|xmin|objects)"')


def recognise_tfrecord(view: FolderView) -> Iterator[SourceMatch]:
    """Finds TFRecord files with images. The first record of the first files is parsed."""
    files = [
        file
        for file in view.list_candidates("")
        if _TFRECORD_NAME.search(file.key)
        and posixpath.basename(file.key) != shards.QUARANTINE_SHARD
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
        for _, record in scan_records(file.to_path(view.folder)):
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
    """Finds Parquet files. The names of the columns are looked for in the bytes of the first."""
    files = view.list_candidates(".parquet")
    if not any(view.read_start(file, 4) == _PARQUET_MAGIC for file in files[:MAX_CANDIDATES]):
        return
    columns = _find_parquet_words(view, files[0])
    fields: dict[str, str] = {"image": "img"} if "img" in columns and "image" not in columns else {}
    if {"objects", "bbox"} <= columns:  # as in data sets of Hugging Face
        label = "category" if "category" in columns else "label"
        fields |= {"bbox": "objects.bbox", "label": f"objects.{label}"}
    has_boxes = bool({"bbox", "boxes", "xmin"} & columns)
    keys: dict[str, Any] = {"task": "detection" if has_boxes else "classification"}
    keys |= _list_parts(files) | ({"fields": fields} if fields else {})
    reason = f"{count(len(files), 'Parquet file')} with {'boxes' if has_boxes else 'labels'}"
    yield SourceMatch("parquet", Certainty.CERTAIN, reason, keys)


def _find_parquet_words(view: FolderView, file: RawFile) -> set[str]:
    """The words in the metadata at the end of a file. The names of the columns are among them."""
    tail = view.read_part(file, max(0, file.num_bytes - 8), 8)
    length = min(int.from_bytes(tail[:4], "little"), _MAX_METADATA_BYTES)
    metadata = view.read_part(file, max(0, file.num_bytes - 8 - length), length)
    return {word.decode() for word in re.findall(rb"[A-Za-z_]+", metadata)}


def recognise_webdataset(view: FolderView) -> Iterator[SourceMatch]:
    """Finds tar files whose first members are images and annotations of the same names."""
    files = view.list_candidates(".tar")
    members = _list_members(view, files[0]) if files else []
    suffixes = {name.partition(".")[2].lower(): part for name, part in members}
    if annotations := [name for name in ("cls", "json", "txt") if name in suffixes]:
        annotation = annotations[0]
        has_boxes = annotation == "json" and bool(_BOX_KEY.search(suffixes["json"]))
        keys: dict[str, Any] = {"task": "detection" if has_boxes else "classification"}
        keys |= _list_parts(files)
        if not has_boxes and annotation != "cls":
            keys["annotation"] = annotation
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
