"""Recognises files that hold the images: TFRecords, Parquet and tar shards of WebDataset."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from beam_jobs.io.example import parse
from beam_jobs.io.tfrecord_reader import CorruptRecord, scan_records
from beam_jobs.recognition.folder_view import MAX_CANDIDATES, FolderView
from beam_jobs.recognition.source_match import Certainty, SourceMatch, count, find_split, join_names
from pipeline_ops.artifacts import dataset as shards
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

_TFRECORD_NAME = re.compile(r"\.(tfrecords?|tfrec|record)(-\d+-of-\d+)?$|-\d+-of-\d+$")
_SHARD_NUMBER = re.compile(r"-\d+-of-(\d+)")
_TAR_MAGIC_AT = 257


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
    patterns = dict.fromkeys(_to_pattern(file.key) for file in files)
    keys["parts"] = [
        {"files": pattern} | ({"split": split} if (split := find_split(pattern)) else {})
        for pattern in patterns
    ]
    reason = (
        f"{count(len(files), 'TFRecord file')} ({join_names(list(patterns))}) whose first record "
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


def _to_pattern(key: str) -> str:
    """The pattern of a file and of the other shards of its set."""
    found = _SHARD_NUMBER.search(key)
    if not found:
        return glob.escape(key)
    digits = "?" * (len(found[0]) - len(f"--of-{found[1]}"))
    before, after = glob.escape(key[: found.start()]), glob.escape(key[found.end() :])
    return f"{before}-{digits}-of-{found[1]}{after}"


def recognise_parquet(view: FolderView) -> Iterator[SourceMatch]:
    """Finds Parquet files by their first bytes."""
    files = view.list_candidates(".parquet")
    if any(view.read_start(file, 4) == b"PAR1" for file in files[:MAX_CANDIDATES]):
        reason = count(len(files), "Parquet file")
        yield SourceMatch("parquet", Certainty.CERTAIN, reason)


def recognise_webdataset(view: FolderView) -> Iterator[SourceMatch]:
    """Finds tar files. Compressed ones are named with the cure."""
    files = view.list_candidates(".tar")
    starts = [view.read_start(file, 512) for file in files[:MAX_CANDIDATES]]
    if names := [start[:100].rstrip(b"\0") for start in starts if _is_tar(start)]:
        first = names[0].decode("utf-8", "replace")
        reason = f"{count(len(files), 'tar file')}, the first of which begins with {first}"
        yield SourceMatch("webdataset", Certainty.LIKELY, reason)
    elif packed := view.list_candidates(".tar.gz", ".tgz"):
        reason = f"{packed[0].key} is compressed. Use gunzip first"
        yield SourceMatch("webdataset", Certainty.UNUSABLE, reason)


def _is_tar(start: bytes) -> bool:
    return start[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar"
